# b is killed, and the worker of a fails because its connection broke. a is not charged: it has no restart left, and
# goes on all the same.
job 1:2 restarts=0
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

kill b
worker a/0 fails 1
----
    0.1  b is killed with signal 9
    0.2  a stopping: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 1
    0.2  a signal 15 to its workers
    0.2  a joining: workers of round 1 are gone
    0.2  a joining: waiting for a place in a round
    0.2  coordinator: round 1 over [a:0 b:1]: worker failed: rank 0 (local rank 0, pid 101) on a, exit code 1

# a waits until the cause is settled, which is when b is lost.
wait 6
----
    1.2  coordinator: round 1 over [a:0 b:1]: waiting for b to stop the workers of round 1 (1 s so far)
    1.2  a joining: round 1: waiting for b to stop the workers of round 1 (1 s so far)
    3.2  coordinator: round 1 over [a:0 b:1]: waiting for b (no heartbeat for 3.2 s; lost after 5 s) to stop the workers of round 1 (3 s so far)
    3.2  a joining: round 1: waiting for b (no heartbeat for 3.2 s; lost after 5 s) to stop the workers of round 1 (3 s so far)
    5.0  coordinator: round 2 running [a:0]: 1 node joined, enough for min_nodes 1
    5.0  a working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; round 1 costs this node no restart: b was lost: no heartbeat for 5.0 s (lease 5 s); then worker failed: rank 0 (local rank 0, pid 101) on a, exit code 1
    5.0  a starts ranks 0 to 0

finish
----
    6.3  a exits 0
