# The workers go on: c waits as a spare, and joins when a place is free.
job 2:2 join=60
join a b
join c
wait 5
----
    0.0  a joining: the store answers
    0.0  b joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  b joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 2 nodes joined (a); waiting up to 60 s for more
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.0  a working: round 1 begins with 2 nodes, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.0  b working: round 1 begins with 2 nodes, group rank 1: every place is taken
    0.0  b starts ranks 1 to 1
    0.1  c joining: the store answers
    0.1  c joining: round 1 runs without this node; waiting as a spare for up to 60 s
    0.1  c joining: waiting for a place in a round

term b
wait 1
----
    5.2  b is asked to stop
    5.2  b stopping: the agent was stopped by signal 15
    5.2  b signal 15 to its workers
    5.2  coordinator: round 1 over [a:0 b:1]: b left: the agent was stopped by signal 15
    5.2  a stopping: round 1 is over: b left: the agent was stopped by signal 15
    5.2  a signal 15 to its workers
    5.2  b ending: the agent was stopped by signal 15
    5.2  b ended: the agent was stopped by signal 15
    5.2  b exits 143
    5.2  a joining: workers of round 1 are gone
    5.2  a joining: waiting for a place in a round
    5.2  coordinator: round 2 running [a:0 c:1]: every place is taken
    5.2  a working: round 2 begins with 2 nodes, group rank 0: every place is taken; b left: the agent was stopped by signal 15
    5.2  a starts ranks 0 to 0
    5.2  c working: round 2 begins with 2 nodes, group rank 1: every place is taken
    5.2  c starts ranks 1 to 1

finish
----
    6.3  c exits 0
    6.3  a exits 0
