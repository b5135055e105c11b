# No place came free within the join timeout. The job goes on undisturbed.
job 1:1 join=60
join a
join b
wait 61
----
    0.0  a joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  coordinator: round 1 running [a:0]: every place is taken
    0.0  a working: round 1 begins with 1 node, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.1  b joining: the store answers
    0.1  b joining: round 1 runs without this node; waiting as a spare for up to 60 s
    0.1  b joining: waiting for a place in a round
   60.1  b ending: no place came free within the join timeout of 60 s
   60.1  b ended: no place came free within the join timeout of 60 s
   60.1  b exits 76

workers a finish
wait 1
----
   61.2  a stopping: all workers of this node exited 0
   61.2  a finished: all workers of this node exited 0
   61.2  coordinator: round 1 closed succeeded []: all nodes of round 1 finished
   61.2  a ending: this node's workers all finished: all nodes of round 1 finished
   61.2  a ended: this node's workers all finished: all nodes of round 1 finished
   61.2  a exits 0
