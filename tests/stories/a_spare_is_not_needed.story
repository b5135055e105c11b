# The job succeeds without the spare, which exits 0.
job 1:1
join a
join b
----
    0.0  a joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  coordinator: round 1 running [a:0]: every place is taken
    0.0  a working: round 1 begins with 1 node, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.1  b joining: the store answers
    0.1  b joining: round 1 runs without this node; waiting as a spare for up to 600 s
    0.1  b joining: waiting for a place in a round

workers a finish
wait 1
----
    0.2  a stopping: all workers of this node exited 0
    0.2  a finished: all workers of this node exited 0
    0.2  coordinator: round 1 closed succeeded []: all nodes of round 1 finished
    0.2  a ending: this node's workers all finished: all nodes of round 1 finished
    0.2  b ending: this node was a spare and was not needed; the job succeeded: all nodes of round 1 finished
    0.2  b ended: this node was a spare and was not needed; the job succeeded: all nodes of round 1 finished
    0.2  b exits 0
    0.2  a ended: this node's workers all finished: all nodes of round 1 finished
    0.2  a exits 0
