# The round ends once for all arrivals, when none has come for 3 s; no node is charged.
job 1:4
join a
wait 3
----
    0.0  a joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  coordinator: round 1 last call []: 1 of at most 4 nodes joined (a); waiting up to 3 s for more
    0.0  a joining: round 1: 1 of at most 4 nodes joined (a); waiting up to 3 s for more
    1.0  coordinator: round 1 last call []: 1 of at most 4 nodes joined (a); waiting up to 2 s for more
    1.0  a joining: round 1: 1 of at most 4 nodes joined (a); waiting up to 2 s for more
    3.0  coordinator: round 1 running [a:0]: last call ended with 1 node
    3.0  a working: round 1 begins with 1 node, group rank 0: last call ended with 1 node
    3.0  a starts ranks 0 to 0

join b
wait 1
join c
wait 3
----
    3.1  b joining: the store answers
    3.1  b joining: round 1 runs without this node; waiting for the next round for up to 600 s
    3.1  b joining: waiting for a place in a round
    4.2  c joining: the store answers
    4.2  c joining: round 1 runs without this node; waiting for the next round for up to 600 s
    4.2  c joining: waiting for a place in a round
    7.2  coordinator: round 1 over [a:0]: b, c arrived and there is room
    7.2  a stopping: round 1 is over: b, c arrived and there is room
    7.2  a signal 15 to its workers
    7.2  a joining: workers of round 1 are gone
    7.2  a joining: waiting for a place in a round
    7.2  coordinator: round 2 running [a:0 b:1 c:2]: 3 nodes joined, enough for min_nodes 1
    7.2  a working: round 2 begins with 3 nodes, group rank 0: 3 nodes joined, enough for min_nodes 1
    7.2  a starts ranks 0 to 0
    7.2  b working: round 2 begins with 3 nodes, group rank 1: 3 nodes joined, enough for min_nodes 1
    7.2  b starts ranks 1 to 1
    7.2  c working: round 2 begins with 3 nodes, group rank 2: 3 nodes joined, enough for min_nodes 1
    7.2  c starts ranks 2 to 2

finish
----
    7.3  b exits 0
    7.3  c exits 0
    7.3  a exits 0
