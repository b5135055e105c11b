# With max_restarts=0 a worker failure ends the job at once, on both nodes.
job 2:2
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

worker a/0 fails 9
wait 1
----
    0.1  a stopping: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 9
    0.1  a signal 15 to its workers
    0.1  a joining: workers of round 1 are gone
    0.1  a joining: waiting for a place in a round
    0.1  coordinator: round 1 over [a:0 b:1]: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 9
    0.1  b stopping: round 1 is over: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 9
    0.1  b signal 15 to its workers
    0.1  b joining: workers of round 1 are gone
    0.1  b joining: waiting for a place in a round
    0.1  coordinator: round 1 closed failed [], a charged: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 9; probably: the first seen to fail; no restarts are left there
    0.1  a ending: the job failed: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 9; probably: the first seen to fail; no restarts are left there
    0.1  b ending: the job failed: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 9; probably: the first seen to fail; no restarts are left there
    0.1  b ended: the job failed: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 9; probably: the first seen to fail; no restarts are left there
    0.1  b exits 1
    0.1  a ended: the job failed: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 9; probably: the first seen to fail; no restarts are left there
    0.1  a exits 1
