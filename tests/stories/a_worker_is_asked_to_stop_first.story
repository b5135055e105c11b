# A scheduler signals all processes of a node, the worker first: the node leaves, which is no failure, with 0 restarts.
job 1:2
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

worker b/0 fails -15
term b
wait 1
----
    0.1  b stopping: worker failed: rank 1 (local rank 0, pid 102) on b, signal 15
    0.1  b signal 15 to its workers
    0.1  b stopping: a stop signal from outside ended a worker; waiting 1 s for the same signal to this agent
    0.1  coordinator: round 1 over [a:0 b:1]: worker failed: rank 1 (local rank 0, pid 102) on b, signal 15
    0.1  a stopping: round 1 is over: worker failed: rank 1 (local rank 0, pid 102) on b, signal 15
    0.1  a signal 15 to its workers
    0.1  a joining: workers of round 1 are gone
    0.1  a joining: waiting for a place in a round
    0.2  b is asked to stop
    0.2  b ending: the agent was stopped by signal 15
    0.2  coordinator: round 2 running [a:0]: 1 node joined, enough for min_nodes 1
    0.2  b ended: the agent was stopped by signal 15
    0.2  b exits 143
    0.2  a working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; b left: the agent was stopped by signal 15; then worker failed: rank 1 (local rank 0, pid 102) on b, signal 15
    0.2  a starts ranks 0 to 0

worker a/0 fails -15
----
    1.3  a stopping: worker failed: rank 0 (local rank 0, pid 103) on a, signal 15
    1.3  a signal 15 to its workers
    1.3  a stopping: a stop signal from outside ended a worker; waiting 1 s for the same signal to this agent
    1.3  coordinator: round 2 over [a:0]: worker failed: rank 0 (local rank 0, pid 103) on a, signal 15

wait 2
----
    2.3  a joining: workers of round 2 are gone
    2.3  a joining: waiting for a place in a round
    2.3  coordinator: round 2 closed failed [], a charged: worker failed: rank 0 (local rank 0, pid 103) on a, signal 15; no restarts are left there
    2.3  a ending: the job failed: worker failed: rank 0 (local rank 0, pid 103) on a, signal 15; no restarts are left there
    2.3  a ended: the job failed: worker failed: rank 0 (local rank 0, pid 103) on a, signal 15; no restarts are left there
    2.3  a exits 1
