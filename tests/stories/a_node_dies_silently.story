# The lease of b runs out 5 s after its last heartbeat; a runs again within 1 s of that.
job 1:2
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

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

finish
----
    6.2  a exits 0
