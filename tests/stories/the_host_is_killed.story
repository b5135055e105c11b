# The store is lost for good. The workers of b run on for store_grace, then b stops them and exits 80, naming the host.
job 1:2 store_grace=30
join a b
----
    0.0  a joining: the store answers
    0.0  b joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  b joining: waiting for a place in a round
    0.0  coordinator: round 1 last call []: 1 of at most 2 nodes joined (a); waiting up to 3 s for more
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.0  a working: round 1 begins with 2 nodes, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.0  b working: round 1 begins with 2 nodes, group rank 1: every place is taken
    0.0  b starts ranks 1 to 1

kill a
wait 10
----
    0.1  a is killed with signal 9
    5.1  b working: the store does not answer (no answer within 5 s); workers go on for up to 30 s

wait 30
----
   35.1  b stopping: the store at host:29400 did not answer for 30 s (store_grace): no answer within 5 s; check the node that hosts it
   35.1  b signal 15 to its workers
   35.1  b ending: the store at host:29400 did not answer for 30 s (store_grace): no answer within 5 s; check the node that hosts it
   38.1  b ended: the store at host:29400 did not answer for 30 s (store_grace): no answer within 5 s; check the node that hosts it
   38.1  b exits 80
