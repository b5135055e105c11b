# Fewer than min_nodes are left, so a gathers; c takes the place of b, and a keeps its rank.
job 2:2
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

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

finish
----
    7.3  c exits 0
    7.3  a exits 0
