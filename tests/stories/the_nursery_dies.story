# The nursery of b is killed, and its workers with it: a failure of the host, which charges no node.
job 2:2
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

nursery b dies
----
    0.1  b joining: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it
    0.1  b starts another nursery
    0.1  b joining: waiting for a place in a round
    0.1  coordinator: round 1 over [a:0 b:1]: worker failed: rank 1 (local rank 0) on b: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it
    0.1  a stopping: round 1 is over: worker failed: rank 1 (local rank 0) on b: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it
    0.1  a signal 15 to its workers
    0.1  a joining: workers of round 1 are gone
    0.1  a joining: waiting for a place in a round
    0.1  coordinator: round 2 running [a:0 b:1]: every place is taken
    0.1  a working: round 2 begins with 2 nodes, group rank 0: every place is taken
    0.1  a starts ranks 0 to 0
    0.1  b working: round 2 begins with 2 nodes, group rank 1: every place is taken; round 1 costs this node no restart: worker failed: rank 1 (local rank 0) on b: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it; the cause: died with its nursery
    0.1  b starts ranks 1 to 1

finish
----
    0.2  b exits 0
    0.2  a exits 0
