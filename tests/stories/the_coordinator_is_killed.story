# No node hosts the store, so the job survives the loss of its coordinator: when its lease has run out another node
# takes over, and the round ends as it does when any node is lost. The failure that follows is an echo and charges no node.
job 2:3 restarts=1 store=etcd
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

wait 5
----
nothing

kill a
wait 1
worker c/0 fails 3
wait 8
----
    5.1  a is killed with signal 9
    6.2  c stopping: worker failed: rank 2 (local rank 0, pid 103) on c, exit code 3
    6.2  c signal 15 to its workers
    6.2  c joining: workers of round 1 are gone
    6.2  c joining: waiting for a place in a round
    8.8  coordinator: round 1 over [a:0 b:1 c:2]: worker failed: rank 2 (local rank 0, pid 103) on c, exit code 3
    8.8  b stopping: round 1 is over: worker failed: rank 2 (local rank 0, pid 103) on c, exit code 3
    8.8  b signal 15 to its workers
    8.8  b joining: workers of round 1 are gone
    8.8  b joining: waiting for a place in a round
    8.8  coordinator: round 2 running [c:0 b:1]: 2 nodes joined, enough for min_nodes 2
    8.8  b working: round 2 begins with 2 nodes, group rank 1: 2 nodes joined, enough for min_nodes 2; a was lost: its lease of 5 s ran out; then worker failed: rank 2 (local rank 0, pid 103) on c, exit code 3
    8.8  b starts ranks 1 to 1
    8.8  c working: round 2 begins with 2 nodes, group rank 0: 2 nodes joined, enough for min_nodes 2; round 1 costs this node no restart: a was lost: its lease of 5 s ran out; then worker failed: rank 2 (local rank 0, pid 103) on c, exit code 3
    8.8  c starts ranks 0 to 0

workers b finish
workers c finish
wait 5
----
   14.3  b stopping: all workers of this node exited 0
   14.3  b finished: all workers of this node exited 0
   14.3  coordinator: round 2 running finishing [c:0 b:1]: 2 nodes joined, enough for min_nodes 2
   14.4  c stopping: all workers of this node exited 0
   14.4  c finished: all workers of this node exited 0
   14.4  coordinator: round 2 closed succeeded []: all nodes of round 2 finished
   14.4  b ending: this node's workers all finished: all nodes of round 2 finished
   14.4  b ended: this node's workers all finished: all nodes of round 2 finished
   14.4  b exits 0
   15.3  c ending: this node's workers all finished: all nodes of round 2 finished
   15.3  c ending: removing the job's keys from the store once the other nodes have ended
   15.3  c ended: this node's workers all finished: all nodes of round 2 finished
   15.3  c exits 0
