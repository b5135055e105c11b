# A frozen coordinator is replaced. When it is thawed it finds that another node coordinates, announces nothing more,
# and joins the next round as a node like any other.
job 2:3 store=etcd
join a b c
wait 5
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

freeze a
wait 8
----
    5.1  a is frozen
    8.8  coordinator: round 1 running [a:0 b:1 c:2]: every place is taken
    8.8  coordinator: round 1 over [a:0 b:1 c:2]: a was lost: its lease of 5 s ran out
    9.8  b stopping: round 1 is over: a was lost: its lease of 5 s ran out
    9.8  b signal 15 to its workers
    9.8  c stopping: round 1 is over: a was lost: its lease of 5 s ran out
    9.8  c signal 15 to its workers
    9.8  coordinator: round 1 over [a:0 b:1 c:2]: waiting for b, c to stop the workers of round 1 (1 s so far)
    9.8  b joining: workers of round 1 are gone
    9.8  c joining: workers of round 1 are gone
    9.8  b joining: round 1: waiting for b, c to stop the workers of round 1 (1 s so far)
    9.8  c joining: round 1: waiting for b, c to stop the workers of round 1 (1 s so far)
    9.8  b joining: waiting for a place in a round
    9.8  c joining: waiting for a place in a round
    9.8  coordinator: round 2 running [c:0 b:1]: 2 nodes joined, enough for min_nodes 2
    9.8  c working: round 2 begins with 2 nodes, group rank 0: 2 nodes joined, enough for min_nodes 2; a was lost: its lease of 5 s ran out
    9.8  c starts ranks 0 to 0
   10.8  b working: round 2 begins with 2 nodes, group rank 1: 2 nodes joined, enough for min_nodes 2; a was lost: its lease of 5 s ran out
   10.8  b starts ranks 1 to 1

thaw a
wait 10
----
   13.2  a is thawed
   13.2  a stopping: worker failed: rank 0 (local rank 0) on a: this node was cut off, or its agent was paused, for so long that a newer round may run elsewhere, so its workers were killed
   13.2  a signal 15 to its workers
   13.2  a joining: workers of round 1 are gone
   13.2  a joining: waiting for a place in a round
   13.2  a joining: round 2 runs without this node; waiting for the next round for up to 600 s
   13.2  coordinator: round 2 over [c:0 b:1]: a arrived and there is room
   13.2  b stopping: round 2 is over: a arrived and there is room
   13.2  b signal 15 to its workers
   13.2  c stopping: round 2 is over: a arrived and there is room
   13.2  c signal 15 to its workers
   13.2  b joining: workers of round 2 are gone
   13.2  c joining: workers of round 2 are gone
   13.2  b joining: waiting for a place in a round
   13.2  c joining: waiting for a place in a round
   13.2  coordinator: round 3 running [c:0 b:1 a:2]: every place is taken
   13.2  b working: round 3 begins with 3 nodes, group rank 1: every place is taken
   13.2  b starts ranks 1 to 1
   13.2  c working: round 3 begins with 3 nodes, group rank 0: every place is taken
   13.2  c starts ranks 0 to 0
   13.2  a working: round 3 begins with 3 nodes, group rank 2: every place is taken
   13.2  a starts ranks 2 to 2

workers a finish
workers b finish
workers c finish
wait 5
----
   23.3  a stopping: all workers of this node exited 0
   23.3  a finished: all workers of this node exited 0
   23.3  coordinator: round 3 running finishing [c:0 b:1 a:2]: every place is taken
   23.4  b stopping: all workers of this node exited 0
   23.4  b finished: all workers of this node exited 0
   23.5  c stopping: all workers of this node exited 0
   23.5  c finished: all workers of this node exited 0
   23.5  coordinator: round 3 closed succeeded []: all nodes of round 3 finished
   23.5  b ending: this node's workers all finished: all nodes of round 3 finished
   23.5  c ending: this node's workers all finished: all nodes of round 3 finished
   23.5  a ending: this node's workers all finished: all nodes of round 3 finished
   23.5  b ending: removing the job's keys from the store once the other nodes have ended
   23.5  c ended: this node's workers all finished: all nodes of round 3 finished
   23.5  c exits 0
   23.5  a ended: this node's workers all finished: all nodes of round 3 finished
   23.5  a exits 0
   23.5  b ended: this node's workers all finished: all nodes of round 3 finished
   23.5  b exits 0
