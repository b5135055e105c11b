# Fewer than min_nodes are left, so a gathers; c takes the place of b, and a keeps its rank.
job 2:2
join a b
----
    0.0  a joining: the store answers
    0.0  b joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  b joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.0  a working: round 1 begins with 2 nodes, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.0  b working: round 1 begins with 2 nodes, group rank 1: every place is taken
    0.0  b starts ranks 1 to 1

kill b
wait 7
----
    0.1  b is killed with signal 9
    5.0  coordinator: round 1 over [a:0 b:1]: b was lost: no heartbeat for 5.0 s (lease 5 s)
    5.0  a stopping: round 1 is over: b was lost: no heartbeat for 5.0 s (lease 5 s)
    5.0  a signal 15 to its workers
    5.0  a joining: workers of round 1 are gone
    5.0  a joining: waiting for a place in a round
    5.0  coordinator: round 2 gathering []: 1 of at least 2 nodes joined (a); waiting up to 600 s for more; missing: b (lost)
    5.0  a joining: round 2: 1 of at least 2 nodes joined (a); waiting up to 600 s for more; missing: b (lost)
    6.0  coordinator: round 2 gathering []: 1 of at least 2 nodes joined (a); waiting up to 599 s for more; missing: b (lost)
    6.0  a joining: round 2: 1 of at least 2 nodes joined (a); waiting up to 599 s for more; missing: b (lost)

join c
----
    7.2  c joining: the store answers
    7.2  c joining: round 2: 1 of at least 2 nodes joined (a); waiting up to 599 s for more; missing: b (lost)
    7.2  coordinator: round 2 running [a:0 c:1]: every place is taken
    7.2  a working: round 2 begins with 2 nodes, group rank 0: every place is taken; b was lost: no heartbeat for 5.0 s (lease 5 s)
    7.2  a starts ranks 0 to 0
    7.2  c working: round 2 begins with 2 nodes, group rank 1: every place is taken; b was lost: no heartbeat for 5.0 s (lease 5 s)
    7.2  c starts ranks 1 to 1

workers a finish
workers c finish
wait 1
----
    7.3  a stopping: all workers of this node exited 0
    7.3  a finished: all workers of this node exited 0
    7.3  coordinator: round 2 running finishing [a:0 c:1]: every place is taken
    7.4  c stopping: all workers of this node exited 0
    7.4  c finished: all workers of this node exited 0
    7.4  coordinator: round 2 closed succeeded []: all nodes of round 2 finished
    7.4  a ending: this node's workers all finished: all nodes of round 2 finished
    7.4  c ending: this node's workers all finished: all nodes of round 2 finished
    7.4  c ended: this node's workers all finished: all nodes of round 2 finished
    7.4  c exits 0
    7.4  a ended: this node's workers all finished: all nodes of round 2 finished
    7.4  a exits 0
