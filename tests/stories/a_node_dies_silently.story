# The lease of b runs out 5 s after its last heartbeat; a runs again within 1 s of that.
job 1:2
join a b
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

kill b
wait 6
----
    0.1  b is killed with signal 9
    5.0  coordinator: round 1 over [a:0 b:1]: b was lost: no heartbeat for 5.0 s (lease 5 s)
    5.0  a stopping: round 1 is over: b was lost: no heartbeat for 5.0 s (lease 5 s)
    5.0  a signal 15 to its workers
    5.0  a joining: workers of round 1 are gone
    5.0  a joining: waiting for a place in a round
    5.0  coordinator: round 2 running [a:0]: 1 node joined, enough for min_nodes 1
    5.0  a working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; b was lost: no heartbeat for 5.0 s (lease 5 s)
    5.0  a starts ranks 0 to 0

workers a finish
wait 1
----
    6.2  a stopping: all workers of this node exited 0
    6.2  a finished: all workers of this node exited 0
    6.2  coordinator: round 2 closed succeeded []: all nodes of round 2 finished
    6.2  a ending: this node's workers all finished: all nodes of round 2 finished
    6.2  a ended: this node's workers all finished: all nodes of round 2 finished
    6.2  a exits 0
