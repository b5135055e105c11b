# The process of a that serves the workers' store is killed: a failure of the host, which charges no node.
job 2:2
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

store a dies
----
    0.1  a stopping: worker failed: rank 0 (local rank 0) on a: a failure of this host, not of the script: the process that serves the workers' store died (it was killed by signal 9)
    0.1  a signal 15 to its workers
    0.1  coordinator: round 1 over [a:0 b:1]: worker failed: rank 0 (local rank 0) on a: a failure of this host, not of the script: the process that serves the workers' store died (it was killed by signal 9)
    0.1  b stopping: round 1 is over: worker failed: rank 0 (local rank 0) on a: a failure of this host, not of the script: the process that serves the workers' store died (it was killed by signal 9)
    0.1  b signal 15 to its workers
    0.1  a joining: workers of round 1 are gone
    0.1  a joining: waiting for a place in a round
    0.1  b joining: workers of round 1 are gone
    0.1  b joining: waiting for a place in a round
    0.1  coordinator: round 2 running [a:0 b:1]: every place is taken
    0.1  a working: round 2 begins with 2 nodes, group rank 0: every place is taken; round 1 costs this node no restart: worker failed: rank 0 (local rank 0) on a: a failure of this host, not of the script: the process that serves the workers' store died (it was killed by signal 9); the cause: lost its store
    0.1  a starts ranks 0 to 0
    0.1  b working: round 2 begins with 2 nodes, group rank 1: every place is taken
    0.1  b starts ranks 1 to 1

finish
----
    0.2  b exits 0
    0.2  a exits 0
