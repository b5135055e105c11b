# A coordinator that is asked to stop hands over after its last record: no node waits for its lease to run out.
job 1:2 store=etcd
join a b
wait 5
----
    0.0  a joining: the store answers
    0.0  b joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  b joining: waiting for a place in a round
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.0  a working: round 1 begins with 2 nodes, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.0  b working: round 1 begins with 2 nodes, group rank 1: every place is taken
    0.0  b starts ranks 1 to 1

term a
wait 1
----
    5.1  a is asked to stop
    5.1  a stopping: the agent was stopped by signal 15
    5.1  a signal 15 to its workers
    5.1  coordinator: round 1 over [a:0 b:1]: a left: the agent was stopped by signal 15
    5.1  a ending: the agent was stopped by signal 15
    5.1  b stopping: round 1 is over: a left: the agent was stopped by signal 15
    5.1  b signal 15 to its workers
    5.1  a ended: the agent was stopped by signal 15
    5.1  a exits 143
    5.1  b joining: workers of round 1 are gone
    5.1  b joining: waiting for a place in a round
    5.1  coordinator: round 1 over [a:0 b:1]: a left: the agent was stopped by signal 15
    5.1  coordinator: round 2 running [b:0]: 1 node joined, enough for min_nodes 1
    5.1  b working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; a left: the agent was stopped by signal 15
    5.1  b starts ranks 0 to 0

workers b finish
wait 5
----
    6.2  b stopping: all workers of this node exited 0
    6.2  b finished: all workers of this node exited 0
    6.2  coordinator: round 2 closed succeeded []: all nodes of round 2 finished
    6.2  b ending: this node's workers all finished: all nodes of round 2 finished
    6.2  b ending: removing the job's keys from the store once the other nodes have ended
    6.2  b ended: this node's workers all finished: all nodes of round 2 finished
    6.2  b exits 0
