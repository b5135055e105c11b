# Heterogeneous nproc: the rank offset of a node is the sum of the workers before it, and a restart keeps group ranks.
job 3:3 restarts=1
join a nproc=2
join b nproc=1
join c nproc=3
----
    0.0  a joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 3 nodes joined (a); waiting up to 600 s for more
    0.0  a joining: round 1: 1 of at least 3 nodes joined (a); waiting up to 600 s for more
    0.1  b joining: the store answers
    0.1  b joining: round 1: 1 of at least 3 nodes joined (a); waiting up to 600 s for more
    0.2  c joining: the store answers
    0.2  c joining: round 1: 1 of at least 3 nodes joined (a); waiting up to 600 s for more
    0.2  coordinator: round 1 running [a:0-1 b:2 c:3-5]: every place is taken
    0.2  a working: round 1 begins with 3 nodes, group rank 0: every place is taken
    0.2  a starts ranks 0 to 1
    0.2  b working: round 1 begins with 3 nodes, group rank 1: every place is taken
    0.2  b starts ranks 2 to 2
    0.2  c working: round 1 begins with 3 nodes, group rank 2: every place is taken
    0.2  c starts ranks 3 to 5

worker a/1 fails 5
----
    0.3  a stopping: worker failed: rank 1 (local rank 1, pid 102) on a, exit code 5
    0.3  a signal 15 to its workers
    0.3  coordinator: round 1 over [a:0-1 b:2 c:3-5]: worker failed: rank 1 (local rank 1, pid 102) on a, exit code 5
    0.3  b stopping: round 1 is over: worker failed: rank 1 (local rank 1, pid 102) on a, exit code 5
    0.3  b signal 15 to its workers
    0.3  c stopping: round 1 is over: worker failed: rank 1 (local rank 1, pid 102) on a, exit code 5
    0.3  c signal 15 to its workers
    0.3  a joining: workers of round 1 are gone
    0.3  a joining: waiting for a place in a round
    0.3  b joining: workers of round 1 are gone
    0.3  c joining: workers of round 1 are gone
    0.3  b joining: waiting for a place in a round
    0.3  c joining: waiting for a place in a round
    0.3  coordinator: round 2 running [a:0-1 b:2 c:3-5], a charged: every place is taken
    0.3  a working: round 2 begins with 3 nodes, group rank 0: every place is taken
    0.3  a starts ranks 0 to 1
    0.3  b working: round 2 begins with 3 nodes, group rank 1: every place is taken
    0.3  b starts ranks 2 to 2
    0.3  c working: round 2 begins with 3 nodes, group rank 2: every place is taken
    0.3  c starts ranks 3 to 5

finish
----
    0.4  b exits 0
    0.4  c exits 0
    0.4  a exits 0
