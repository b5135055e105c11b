# The rendezvous closes, all workers are stopped, and both agents exit 1 and name node, rank and error of the cause.
job 2:2 restarts=1
join a
join b nproc=2
----
    0.0  a joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.0  a joining: round 1: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.1  b joining: the store answers
    0.1  b joining: round 1: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.1  coordinator: round 1 running [a:0 b:1-2]: every place is taken
    0.1  a working: round 1 begins with 2 nodes, group rank 0: every place is taken
    0.1  a starts ranks 0 to 0
    0.1  b working: round 1 begins with 2 nodes, group rank 1: every place is taken
    0.1  b starts ranks 1 to 2

worker b/1 fails 3
----
    0.2  b stopping: worker failed: rank 2 (local rank 1, pid 103) on b, exit code 3
    0.2  b signal 15 to its workers
    0.2  coordinator: round 1 over [a:0 b:1-2]: worker failed: rank 2 (local rank 1, pid 103) on b, exit code 3
    0.2  a stopping: round 1 is over: worker failed: rank 2 (local rank 1, pid 103) on b, exit code 3
    0.2  a signal 15 to its workers
    0.2  b joining: workers of round 1 are gone
    0.2  b joining: waiting for a place in a round
    0.2  a joining: workers of round 1 are gone
    0.2  a joining: waiting for a place in a round
    0.2  coordinator: round 2 running [a:0 b:1-2], b charged: every place is taken
    0.2  a working: round 2 begins with 2 nodes, group rank 0: every place is taken
    0.2  a starts ranks 0 to 0
    0.2  b working: round 2 begins with 2 nodes, group rank 1: every place is taken
    0.2  b starts ranks 1 to 2

# The second failure exceeds the budget of one restart.
worker b/0 fails 3
----
    0.3  b stopping: worker failed: rank 1 (local rank 0, pid 105) on b, exit code 3
    0.3  b signal 15 to its workers
    0.3  coordinator: round 2 over [a:0 b:1-2], b charged: worker failed: rank 1 (local rank 0, pid 105) on b, exit code 3
    0.3  a stopping: round 2 is over: worker failed: rank 1 (local rank 0, pid 105) on b, exit code 3
    0.3  a signal 15 to its workers
    0.3  b joining: workers of round 2 are gone
    0.3  b joining: waiting for a place in a round
    0.3  a joining: workers of round 2 are gone
    0.3  a joining: waiting for a place in a round
    0.3  coordinator: round 2 closed failed [], b charged: worker failed: rank 1 (local rank 0, pid 105) on b, exit code 3; probably: the first seen to fail; no restarts are left there
    0.3  a ending: the job failed: worker failed: rank 1 (local rank 0, pid 105) on b, exit code 3; probably: the first seen to fail; no restarts are left there
    0.3  b ending: the job failed: worker failed: rank 1 (local rank 0, pid 105) on b, exit code 3; probably: the first seen to fail; no restarts are left there
    0.3  b ended: the job failed: worker failed: rank 1 (local rank 0, pid 105) on b, exit code 3; probably: the first seen to fail; no restarts are left there
    0.3  b exits 1
    0.3  a ended: the job failed: worker failed: rank 1 (local rank 0, pid 105) on b, exit code 3; probably: the first seen to fail; no restarts are left there
    0.3  a exits 1

wait 1
----
nothing
