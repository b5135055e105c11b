# b restarts alone at once, as min_nodes permits, and does not wait for the end of the finalisation barrier.
job 1:2 restarts=1
join a b
----
    0.0  a joining: the store answers
    0.0  b joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  b joining: waiting for a place in a round
    0.0  coordinator: round 1 last call []: 1 of at most 2 nodes joined (a); waiting up to 3 s for more
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.0  a working: round 1 begins with 2 nodes, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.0  b working: round 1 begins with 2 nodes, group rank 1: every place is taken
    0.0  b starts ranks 1 to 1

workers a finish
worker b/0 fails 3
wait 1
----
    0.1  a stopping: all workers of this node exited 0
    0.1  a finished: all workers of this node exited 0
    0.1  coordinator: round 1 running finishing [a:0 b:1]: every place is taken
    0.2  b stopping: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
    0.2  b signal 15 to its workers
    0.2  b joining: workers of round 1 are gone
    0.2  b joining: waiting for a place in a round
    0.2  coordinator: round 1 over finishing [a:0 b:1]: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
    0.2  coordinator: round 2 running finishing [b:0], b charged: 1 node joined, enough for min_nodes 1
    0.2  b working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1
    0.2  b starts ranks 0 to 0
    1.2  coordinator: round 2 running finishing [b:0], b charged: waiting for b to finish; the finalisation barrier ends in 299 s
    1.2  a finished: round 2: waiting for b to finish; the finalisation barrier ends in 299 s
    1.2  b working: round 2: waiting for b to finish; the finalisation barrier ends in 299 s

workers b finish
wait 1
----
    1.3  b stopping: all workers of this node exited 0
    1.3  b finished: all workers of this node exited 0
    1.3  coordinator: round 2 closed succeeded [], b charged: all nodes of round 2 finished
    1.3  a ending: this node's workers all finished: all nodes of round 2 finished
    1.3  b ending: this node's workers all finished: all nodes of round 2 finished
    1.3  b ended: this node's workers all finished: all nodes of round 2 finished
    1.3  b exits 0
    1.3  a ended: this node's workers all finished: all nodes of round 2 finished
    1.3  a exits 0
