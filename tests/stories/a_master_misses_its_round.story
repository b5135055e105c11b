# b is group rank 0 of a round whose announcement it never receives. Workers of a may already use its port, so it offers
# another one for the next round, in which it is group rank 0 again.
job 2:3 restarts=1
join a
join b node_rank=0
----
    0.0  a joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.0  a joining: round 1: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.1  b joining: the store answers
    0.1  b joining: round 1: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.1  coordinator: round 1 last call []: 2 of at most 3 nodes joined (a, b); waiting up to 3 s for more
    0.1  a joining: round 1: 2 of at most 3 nodes joined (a, b); waiting up to 3 s for more
    0.1  b joining: round 1: 2 of at most 3 nodes joined (a, b); waiting up to 3 s for more

cut b
wait 4
----
    1.0  coordinator: round 1 last call []: 2 of at most 3 nodes joined (a, b); waiting up to 2 s for more
    1.0  a joining: round 1: 2 of at most 3 nodes joined (a, b); waiting up to 2 s for more
    3.0  coordinator: round 1 last call []: 2 of at most 3 nodes joined (a, b); waiting up to 0 s for more
    3.0  a joining: round 1: 2 of at most 3 nodes joined (a, b); waiting up to 0 s for more
    3.1  coordinator: round 1 running [b:0 a:1]: last call ended with 2 nodes
    3.1  a working: round 1 begins with 2 nodes, group rank 1: last call ended with 2 nodes
    3.1  a starts ranks 1 to 1

worker a/0 fails 1
----
    4.3  a stopping: worker failed: rank 1 (local rank 0, pid 101) on a, exit code 1
    4.3  a signal 15 to its workers
    4.3  a joining: workers of round 1 are gone
    4.3  a joining: waiting for a place in a round
    4.3  coordinator: round 1 over [b:0 a:1]: worker failed: rank 1 (local rank 0, pid 101) on a, exit code 1

heal b
wait 4
----
    4.4  b joining: round 1 is over; no worker of it runs here
    4.4  b joining: waiting for a place in a round
    4.4  coordinator: round 2 running [b:0 a:1], a charged: 2 nodes joined, enough for min_nodes 2
    4.4  a working: round 2 begins with 2 nodes, group rank 1: 2 nodes joined, enough for min_nodes 2
    4.4  a starts ranks 1 to 1
    4.4  b working: round 2 begins with 2 nodes, group rank 0: 2 nodes joined, enough for min_nodes 2
    4.4  b starts ranks 0 to 0

finish
----
    8.5  b exits 0
    8.5  a exits 0
