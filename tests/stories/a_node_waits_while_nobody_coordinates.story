# The coordinator is killed and a worker fails elsewhere. Until the lease has run out nobody can say that the round is
# over: the node that has asked for the next one says after 5 s for whom it waits, once.
job 2:3 restarts=1 store=etcd lease=12
join a b c
----
    0.0  a joining: the store answers
    0.0  b joining: the store answers
    0.0  c joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  b joining: waiting for a place in a round
    0.0  c joining: waiting for a place in a round
    0.0  coordinator: round 1 running [a:0 b:1 c:2]: every place is taken
    0.0  a working: round 1 begins with 3 nodes, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.0  b working: round 1 begins with 3 nodes, group rank 1: every place is taken
    0.0  b starts ranks 1 to 1
    0.0  c working: round 1 begins with 3 nodes, group rank 2: every place is taken
    0.0  c starts ranks 2 to 2

kill a
worker c/0 fails 3
wait 8
----
    0.1  a is killed with signal 9
    0.2  c stopping: worker failed: rank 2 (local rank 0, pid 103) on c, exit code 3
    0.2  c signal 15 to its workers
    0.2  c joining: workers of round 1 are gone
    0.2  c joining: waiting for a place in a round
    5.2  c joining: no announcement since this node asked for a place 5 s ago; waiting for a, which coordinates, or for another node to take over once its lease has run out

wait 10
----
    9.0  coordinator: round 1 over [a:0 b:1 c:2]: worker failed: rank 2 (local rank 0, pid 103) on c, exit code 3
    9.0  b stopping: round 1 is over: worker failed: rank 2 (local rank 0, pid 103) on c, exit code 3
    9.0  b signal 15 to its workers
    9.0  b joining: workers of round 1 are gone
    9.0  b joining: waiting for a place in a round
   10.0  coordinator: round 1 over [a:0 b:1 c:2]: waiting for a to stop the workers of round 1 (1 s so far)
   10.0  b joining: round 1: waiting for a to stop the workers of round 1 (1 s so far)
   10.0  c joining: round 1: waiting for a to stop the workers of round 1 (1 s so far)
   12.0  coordinator: round 1 over [a:0 b:1 c:2]: waiting for a (no heartbeat for 3.0 s; lost after 12 s) to stop the workers of round 1 (3 s so far)
   12.0  b joining: round 1: waiting for a (no heartbeat for 3.0 s; lost after 12 s) to stop the workers of round 1 (3 s so far)
   12.0  c joining: round 1: waiting for a (no heartbeat for 3.0 s; lost after 12 s) to stop the workers of round 1 (3 s so far)
   12.0  coordinator: round 2 running [c:0 b:1]: 2 nodes joined, enough for min_nodes 2
   13.1  b working: round 2 begins with 2 nodes, group rank 1: 2 nodes joined, enough for min_nodes 2; a was lost: its lease of 12 s ran out; then worker failed: rank 2 (local rank 0, pid 103) on c, exit code 3
   13.1  b starts ranks 1 to 1
   13.1  c working: round 2 begins with 2 nodes, group rank 0: 2 nodes joined, enough for min_nodes 2; round 1 costs this node no restart: a was lost: its lease of 12 s ran out; then worker failed: rank 2 (local rank 0, pid 103) on c, exit code 3
   13.1  c starts ranks 0 to 0

worker b/0 finishes
worker c/0 finishes
wait 5
----
   18.3  b stopping: all workers of this node exited 0
   18.3  b finished: all workers of this node exited 0
   18.4  c stopping: all workers of this node exited 0
   18.4  c finished: all workers of this node exited 0
   19.1  coordinator: round 2 closed succeeded []: all nodes of round 2 finished
   19.1  b ending: this node's workers all finished: all nodes of round 2 finished
   19.1  c ending: this node's workers all finished: all nodes of round 2 finished
   19.1  b ending: removing the job's keys from the store once the other nodes have ended
   19.1  c ended: this node's workers all finished: all nodes of round 2 finished
   19.1  c exits 0
   19.1  b ended: this node's workers all finished: all nodes of round 2 finished
   19.1  b exits 0
