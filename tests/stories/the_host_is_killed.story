# The store is lost for good. The workers of b run on for store_grace, then b stops them and exits 80, naming the host.
job 1:2 store_grace=30
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

kill a
wait 10
----
    0.1  a is killed with signal 9
    5.1  b working: the store at host:29400 does not answer (no answer within 5 s); workers go on for up to 30 s

wait 30
----
   35.1  b stopping: the store at host:29400 did not answer for 30 s (store_grace): no answer within 5 s; check the node that hosts it
   35.1  b signal 15 to its workers
   35.1  b ending: the store at host:29400 did not answer for 30 s (store_grace): no answer within 5 s; check the node that hosts it
   38.1  b ended: the store at host:29400 did not answer for 30 s (store_grace): no answer within 5 s; check the node that hosts it
   38.1  b exits 80
