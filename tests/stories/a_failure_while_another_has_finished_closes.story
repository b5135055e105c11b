# b alone is fewer than min_nodes: the job closes when b has reported how its workers ended. a had finished and exits 0.
job 2:2 restarts=3
join a b
workers a finish
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
    0.1  a stopping: all workers of this node exited 0
    0.1  a finished: all workers of this node exited 0
    0.1  coordinator: round 1 running finishing [a:0 b:1]: every place is taken

worker b/0 fails 3
wait 1
----
    0.2  b stopping: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
    0.2  b signal 15 to its workers
    0.2  b joining: workers of round 1 are gone
    0.2  b joining: waiting for a place in a round
    0.2  coordinator: round 1 over finishing [a:0 b:1]: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
    0.2  coordinator: round 1 closed failed [], b charged: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3; a had already finished, and 1 node remains, fewer than min_nodes 2
    0.2  a ending: this node's workers all finished, but the job failed: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3; a had already finished, and 1 node remains, fewer than min_nodes 2
    0.2  b ending: the job failed: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3; a had already finished, and 1 node remains, fewer than min_nodes 2
    0.2  b ended: the job failed: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3; a had already finished, and 1 node remains, fewer than min_nodes 2
    0.2  b exits 1
    0.2  a ended: this node's workers all finished, but the job failed: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3; a had already finished, and 1 node remains, fewer than min_nodes 2
    0.2  a exits 0
