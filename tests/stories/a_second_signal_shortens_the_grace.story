# The workers are killed at once, and the agent waits until they have exited.
job 1:1 grace=30
join a
stubborn a
term a
wait 5
----
    0.0  a joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  coordinator: round 1 running [a:0]: every place is taken
    0.0  a working: round 1 begins with 1 node, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.2  a is asked to stop
    0.2  a stopping: the agent was stopped by signal 15
    0.2  a signal 15 to its workers
    0.2  coordinator: round 1 closed abandoned []: a left: the agent was stopped by signal 15; every node that had not finished has left

term a
wait 1
----
    5.3  a is asked to stop
    5.3  a stopping: the agent was stopped by signal 15 again: killing workers now
    5.3  a kills its workers
    5.3  a ending: the agent was stopped by signal 15
    5.3  a ended: the agent was stopped by signal 15
    5.3  a exits 143
