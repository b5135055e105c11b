# SIGTERM where workers save first: all act at one boundary and wait there; only then the round ends, and b leaves.
job 1:2 settle=60
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

term b
wait 1
----
    0.1  b is asked to stop
    0.1  b working: leaving; workers may first save what they have done, for up to 15 s
    0.1  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.1  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.1  a working: all ranks save and wait at boundary 1: the agent was stopped by signal 15
    0.1  a acts at boundary 1: settle
    0.1  b working: all ranks save and wait at boundary 1: the agent was stopped by signal 15
    0.1  b acts at boundary 1: settle
    0.1  coordinator: round 1 over [a:0 b:1]: b left: the agent was stopped by signal 15
    0.1  a stopping: round 1 is over: b left: the agent was stopped by signal 15
    0.1  a signal 15 to its workers
    0.1  b stopping: the agent was stopped by signal 15; its workers saved before
    0.1  b signal 15 to its workers
    0.1  coordinator: round 1 over [a:0 b:1]: b left: the agent was stopped by signal 15
    0.1  a joining: workers of round 1 are gone
    0.1  b ending: the agent was stopped by signal 15; its workers saved before
    0.1  a joining: waiting for a place in a round
    0.1  b ended: the agent was stopped by signal 15; its workers saved before
    0.1  b exits 75
    0.1  coordinator: round 2 running [a:0]: 1 node joined, enough for min_nodes 1
    0.1  a working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; b left: the agent was stopped by signal 15
    0.1  a starts ranks 0 to 0

finish
----
    1.2  a exits 0
