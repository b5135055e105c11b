# A worker fails again and again: no pause before the first restart, then one before each. The other node waits, as it
# does for a node that is slow to stop its workers, and is not charged.
job 1:2 restarts=3 backoff=2:5
join a b
wait 10
worker b/0 fails 3
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
   10.1  b stopping: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
   10.1  b signal 15 to its workers
   10.1  b joining: workers of round 1 are gone
   10.1  b joining: waiting for a place in a round
   10.1  coordinator: round 1 over [a:0 b:1]: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
   10.1  a stopping: round 1 is over: worker failed: rank 1 (local rank 0, pid 102) on b, exit code 3
   10.1  a signal 15 to its workers
   10.1  a joining: workers of round 1 are gone
   10.1  a joining: waiting for a place in a round
   10.1  coordinator: round 2 running [a:0 b:1], b charged: every place is taken
   10.1  a working: round 2 begins with 2 nodes, group rank 0: every place is taken
   10.1  a starts ranks 0 to 0
   10.1  b working: round 2 begins with 2 nodes, group rank 1: every place is taken
   10.1  b starts ranks 1 to 1

# The second failure is a crash loop.
worker b/0 fails 3
----
   10.2  b stopping: worker failed: rank 1 (local rank 0, pid 104) on b, exit code 3
   10.2  b signal 15 to its workers
   10.2  b joining: workers of round 2 are gone; pausing 2.7 s before the next round, as workers keep failing (--restart-backoff)
   10.2  coordinator: round 2 over [a:0 b:1], b charged: worker failed: rank 1 (local rank 0, pid 104) on b, exit code 3
   10.2  a stopping: round 2 is over: worker failed: rank 1 (local rank 0, pid 104) on b, exit code 3
   10.2  a signal 15 to its workers
   10.2  a joining: workers of round 2 are gone
   10.2  a joining: waiting for a place in a round
   10.2  coordinator: round 2 over [a:0 b:1], b charged: worker failed: rank 1 (local rank 0, pid 104) on b, exit code 3

wait 5
----
   11.2  coordinator: round 2 over [a:0 b:1], b charged: waiting for b, which pauses after a failure (--restart-backoff) to stop the workers of round 2 (1 s so far)
   11.2  a joining: round 2: waiting for b, which pauses after a failure (--restart-backoff) to stop the workers of round 2 (1 s so far)
   11.2  b joining: round 2: waiting for b, which pauses after a failure (--restart-backoff) to stop the workers of round 2 (1 s so far)
   12.9  b joining: the pause is over
   12.9  b joining: waiting for a place in a round
   12.9  coordinator: round 3 running [a:0 b:1], b charged: every place is taken
   12.9  a working: round 3 begins with 2 nodes, group rank 0: every place is taken
   12.9  a starts ranks 0 to 0
   12.9  b working: round 3 begins with 2 nodes, group rank 1: every place is taken
   12.9  b starts ranks 1 to 1

# A failure long after the last one begins no crash loop.
wait 60
worker b/0 fails 3
----
   75.3  b stopping: worker failed: rank 1 (local rank 0, pid 106) on b, exit code 3
   75.3  b signal 15 to its workers
   75.3  b joining: workers of round 3 are gone
   75.3  b joining: waiting for a place in a round
   75.3  coordinator: round 3 over [a:0 b:1], b charged: worker failed: rank 1 (local rank 0, pid 106) on b, exit code 3
   75.3  a stopping: round 3 is over: worker failed: rank 1 (local rank 0, pid 106) on b, exit code 3
   75.3  a signal 15 to its workers
   75.3  a joining: workers of round 3 are gone
   75.3  a joining: waiting for a place in a round
   75.3  coordinator: round 4 running [a:0 b:1], b charged: every place is taken
   75.3  a working: round 4 begins with 2 nodes, group rank 0: every place is taken
   75.3  a starts ranks 0 to 0
   75.3  b working: round 4 begins with 2 nodes, group rank 1: every place is taken
   75.3  b starts ranks 1 to 1

term b
workers a finish
wait 1
----
   75.4  b is asked to stop
   75.4  b stopping: the agent was stopped by signal 15
   75.4  b signal 15 to its workers
   75.4  coordinator: round 4 over [a:0 b:1], b charged: b left: the agent was stopped by signal 15
   75.4  a stopping: round 4 is over: b left: the agent was stopped by signal 15
   75.4  a signal 15 to its workers
   75.4  b ending: the agent was stopped by signal 15
   75.4  b ended: the agent was stopped by signal 15
   75.4  b exits 143
   75.4  a joining: workers of round 4 are gone
   75.4  a joining: waiting for a place in a round
   75.4  coordinator: round 5 running [a:0]: 1 node joined, enough for min_nodes 1
   75.4  a working: round 5 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; b left: the agent was stopped by signal 15
   75.4  a starts ranks 0 to 0
   75.5  a stopping: all workers of this node exited 0
   75.5  a finished: all workers of this node exited 0
   75.5  coordinator: round 5 closed succeeded []: all nodes of round 5 finished
   75.5  a ending: this node's workers all finished: all nodes of round 5 finished
   75.5  a ended: this node's workers all finished: all nodes of round 5 finished
   75.5  a exits 0
