# A frozen agent loses its lease while its workers run on. When it is thawed it stops them and joins as a new node.
job 1:2
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

freeze b
wait 8
----
    0.1  b is frozen
    5.0  coordinator: round 1 over [a:0 b:1]: b was lost: no heartbeat for 5.0 s (lease 5 s)
    5.0  a stopping: round 1 is over: b was lost: no heartbeat for 5.0 s (lease 5 s)
    5.0  a signal 15 to its workers
    5.0  a joining: workers of round 1 are gone
    5.0  a joining: waiting for a place in a round
    5.0  coordinator: round 2 running [a:0]: 1 node joined, enough for min_nodes 1
    5.0  a working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; b was lost: no heartbeat for 5.0 s (lease 5 s)
    5.0  a starts ranks 0 to 0

thaw b
wait 5
----
    8.2  b is thawed
    8.2  b stopping: round 1 is over: b was lost: no heartbeat for 5.0 s (lease 5 s)
    8.2  b signal 15 to its workers
    8.2  b joining: workers of round 1 are gone
    8.2  b joining: round 2 runs without this node; waiting for the next round for up to 600 s
    8.2  coordinator: round 2 over [a:0]: b arrived and there is room
    8.2  a stopping: round 2 is over: b arrived and there is room
    8.2  a signal 15 to its workers
    8.2  a joining: workers of round 2 are gone
    8.2  a joining: waiting for a place in a round
    8.2  coordinator: round 3 running [a:0 b:1]: every place is taken
    8.2  a working: round 3 begins with 2 nodes, group rank 0: every place is taken
    8.2  a starts ranks 0 to 0
    8.2  b working: round 3 begins with 2 nodes, group rank 1: every place is taken
    8.2  b starts ranks 1 to 1

finish
----
   13.3  b exits 0
   13.3  a exits 0
