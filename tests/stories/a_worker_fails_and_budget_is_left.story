# A worker fails and the budget is above 0: its agent charges itself one restart, a new round begins, and the workers of
# the other agent are stopped and restarted, its budget untouched.
job 2:2 restarts=1
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

worker b/0 fails 3
----
    0.1  b stopping: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
    0.1  b signal 15 to its workers
    0.1  b joining: workers of round 1 are gone
    0.1  b joining: waiting for a place in a round
    0.1  coordinator: round 1 over [a:0 b:1]: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
    0.1  a stopping: round 1 is over: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
    0.1  a signal 15 to its workers
    0.1  a joining: workers of round 1 are gone
    0.1  a joining: waiting for a place in a round
    0.1  coordinator: round 2 running [a:0 b:1], b charged: every place is taken
    0.1  a working: round 2 begins with 2 nodes, group rank 0: every place is taken
    0.1  a starts ranks 0 to 0
    0.1  b working: round 2 begins with 2 nodes, group rank 1: every place is taken
    0.1  b starts ranks 1 to 1

# b has used its only restart. a has not: its worker may fail and is restarted.
worker a/0 fails 4
----
    0.2  a stopping: worker failed: rank 0 (local rank 0, pid 103) on a, exit code 4
    0.2  a signal 15 to its workers
    0.2  a joining: workers of round 2 are gone
    0.2  a joining: waiting for a place in a round
    0.2  coordinator: round 2 over [a:0 b:1], b charged: worker failed: rank 0 (local rank 0, pid 103) on a, exit code 4
    0.2  b stopping: round 2 is over: worker failed: rank 0 (local rank 0, pid 103) on a, exit code 4
    0.2  b signal 15 to its workers
    0.2  b joining: workers of round 2 are gone
    0.2  b joining: waiting for a place in a round
    0.2  coordinator: round 3 running [a:0 b:1], a charged: every place is taken
    0.2  a working: round 3 begins with 2 nodes, group rank 0: every place is taken
    0.2  a starts ranks 0 to 0
    0.2  b working: round 3 begins with 2 nodes, group rank 1: every place is taken
    0.2  b starts ranks 1 to 1

finish
----
    0.3  b exits 0
    0.3  a exits 0
