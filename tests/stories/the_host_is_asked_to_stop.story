# SIGTERM to the host: its workers stop, b runs on without it, and it serves the store until b has ended.
job 1:2
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

term a
wait 1
----
    0.1  a is asked to stop
    0.1  a stopping: the agent was stopped by signal 15
    0.1  a signal 15 to its workers
    0.1  coordinator: round 1 over [a:0 b:1]: a left: the agent was stopped by signal 15
    0.1  b stopping: round 1 is over: a left: the agent was stopped by signal 15
    0.1  b signal 15 to its workers
    0.1  a ending: the agent was stopped by signal 15
    0.1  a ending: serving the store until the other nodes have ended; another signal stops that
    0.1  b joining: workers of round 1 are gone
    0.1  b joining: waiting for a place in a round
    0.1  coordinator: round 2 running [b:0]: 1 node joined, enough for min_nodes 1
    0.1  b working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; a left: the agent was stopped by signal 15
    0.1  b starts ranks 0 to 0

workers b finish
wait 1
----
    1.2  b stopping: all workers of this node exited 0
    1.2  b finished: all workers of this node exited 0
    1.2  coordinator: round 2 closed succeeded []: all nodes of round 2 finished
    1.2  b ending: this node's workers all finished: all nodes of round 2 finished
    1.2  b ended: this node's workers all finished: all nodes of round 2 finished
    1.2  b exits 0
    1.2  a ended: the agent was stopped by signal 15
    1.2  a exits 143
