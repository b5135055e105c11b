# A node sends heartbeats but does not report that its workers are gone: the others wait for its grace and 30 s more.
job 1:2 restarts=1 grace=5
begin a b
stall b
worker a/0 fails
wait 45
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.1  b stands still
    0.2  a stopping: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 1
    0.2  a signal 15 to its workers
    0.2  a joining: workers of round 1 are gone
    0.2  a joining: waiting for a place in a round
    0.2  coordinator: round 1 over [a:0 b:1]: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 1
    1.2  coordinator: round 1 over [a:0 b:1]: waiting for b to stop the workers of round 1 (1 s so far)
    1.2  a joining: round 1: waiting for b to stop the workers of round 1 (1 s so far)
    3.2  coordinator: round 1 over [a:0 b:1]: waiting for b to stop the workers of round 1 (3 s so far)
    3.2  a joining: round 1: waiting for b to stop the workers of round 1 (3 s so far)
    9.2  coordinator: round 1 over [a:0 b:1]: waiting for b to stop the workers of round 1 (9 s so far)
    9.2  a joining: round 1: waiting for b to stop the workers of round 1 (9 s so far)
   27.2  coordinator: round 1 over [a:0 b:1]: waiting for b to stop the workers of round 1 (27 s so far)
   27.2  a joining: round 1: waiting for b to stop the workers of round 1 (27 s so far)
   35.6  coordinator: round 2 running [a:0]: 1 node joined, enough for min_nodes 1
   35.7  a working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; round 1 costs this node no restart: b was lost: its agent sends heartbeats but did not report within 35 s (its grace of 5 s, and 30 s more); then worker failed: rank 0 (local rank 0, pid 101) on a, exit code 1
   35.7  a starts ranks 0 to 0

# It comes back when it goes on.
resume b
wait 10
----
   45.3  b goes on
   45.3  b stopping: round 1 is over: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 1
   45.3  b signal 15 to its workers
   45.3  b joining: workers of round 1 are gone
   45.3  b joining: round 2 runs without this node; waiting for the next round for up to 600 s
   45.3  coordinator: round 2 over [a:0]: b arrived and there is room
   45.3  a stopping: round 2 is over: b arrived and there is room
   45.3  a signal 15 to its workers
   45.3  a joining: workers of round 2 are gone
   45.3  a joining: waiting for a place in a round
   45.3  coordinator: round 3 running [a:0 b:1]: every place is taken
   45.3  a working: round 3 begins with 2 nodes, group rank 0: every place is taken
   45.3  a starts ranks 0 to 0
   45.3  b working: round 3 begins with 2 nodes, group rank 1: every place is taken
   45.3  b starts ranks 1 to 1

# The same once the job is over: the host serves the store until then, and names the node.
workers b finish
stall b
workers a finish
wait 40
resume b
wait 10
----
   55.4  b stopping: all workers of this node exited 0
   55.4  b finished: all workers of this node exited 0
   55.4  coordinator: round 3 running finishing [a:0 b:1]: every place is taken
   55.5  b stands still
   55.6  a stopping: all workers of this node exited 0
   55.6  a finished: all workers of this node exited 0
   55.6  coordinator: round 3 closed succeeded []: all nodes of round 3 finished
   55.6  a ending: this node's workers all finished: all nodes of round 3 finished
   60.6  a the job is over; waiting for b to end (5 s so far)
   82.6  a the job is over; waiting for b to end (27 s so far)
   90.9  a ended: this node's workers all finished: all nodes of round 3 finished
   90.9  a exits 0
   95.7  b goes on
   95.7  b ending: this node's workers all finished: all nodes of round 3 finished
   95.9  b ended: this node's workers all finished: all nodes of round 3 finished
   95.9  b exits 0
