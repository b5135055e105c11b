# The stop ladder: SIGTERM, grace, SIGKILL. b waits for a: no round begins while workers of the last one run.
job 2:2 restarts=1 grace=30
join a b
stubborn a
----
    0.0  a joining: the store answers
    0.0  b joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  b joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.0  a working: round 1 begins with 2 nodes, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.0  b working: round 1 begins with 2 nodes, group rank 1: every place is taken
    0.0  b starts ranks 1 to 1

worker b/0 fails 3
wait 29
----
    0.2  b stopping: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
    0.2  b signal 15 to its workers
    0.2  b joining: workers of round 1 are gone
    0.2  b joining: waiting for a place in a round
    0.2  coordinator: round 1 over [a:0 b:1]: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
    0.2  a stopping: round 1 is over: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
    0.2  a signal 15 to its workers
    1.2  coordinator: round 1 over [a:0 b:1]: waiting for a to stop the workers of round 1 (1 s so far)
    1.2  b joining: round 1: waiting for a to stop the workers of round 1 (1 s so far)
    3.2  coordinator: round 1 over [a:0 b:1]: waiting for a to stop the workers of round 1 (3 s so far)
    3.2  b joining: round 1: waiting for a to stop the workers of round 1 (3 s so far)
    9.2  coordinator: round 1 over [a:0 b:1]: waiting for a to stop the workers of round 1 (9 s so far)
    9.2  b joining: round 1: waiting for a to stop the workers of round 1 (9 s so far)
   27.2  coordinator: round 1 over [a:0 b:1]: waiting for a to stop the workers of round 1 (27 s so far)
   27.2  b joining: round 1: waiting for a to stop the workers of round 1 (27 s so far)

wait 2
----
   30.2  a stopping: workers did not stop within 30 s; killing them
   30.2  a kills its workers
   30.2  a joining: workers of round 1 are gone
   30.2  a joining: waiting for a place in a round
   30.2  coordinator: round 2 running [a:0 b:1], b charged: every place is taken
   30.2  a working: round 2 begins with 2 nodes, group rank 0: every place is taken
   30.2  a starts ranks 0 to 0
   30.2  b working: round 2 begins with 2 nodes, group rank 1: every place is taken
   30.2  b starts ranks 1 to 1

finish
----
   31.3  b exits 0
   31.3  a exits 0
