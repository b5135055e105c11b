# With fewer than min_nodes the survivor gathers until the join timeout, then exits 76 and names the missing node.
job 2:2 join=60
join a b
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

kill b
wait 7
----
    0.1  b is killed with signal 9
    5.0  coordinator: round 1 over [a:0 b:1]: b was lost: no heartbeat for 5.0 s (lease 5 s)
    5.0  a stopping: round 1 is over: b was lost: no heartbeat for 5.0 s (lease 5 s)
    5.0  a signal 15 to its workers
    5.0  a joining: workers of round 1 are gone
    5.0  a joining: waiting for a place in a round
    5.0  coordinator: round 2 gathering []: 1 of at least 2 nodes joined (a); waiting up to 60 s for more; missing: b (lost)
    5.0  a joining: round 2: 1 of at least 2 nodes joined (a); waiting up to 60 s for more; missing: b (lost)
    6.0  coordinator: round 2 gathering []: 1 of at least 2 nodes joined (a); waiting up to 59 s for more; missing: b (lost)
    6.0  a joining: round 2: 1 of at least 2 nodes joined (a); waiting up to 59 s for more; missing: b (lost)

wait 60
----
    8.0  coordinator: round 2 gathering []: 1 of at least 2 nodes joined (a); waiting up to 57 s for more; missing: b (lost)
    8.0  a joining: round 2: 1 of at least 2 nodes joined (a); waiting up to 57 s for more; missing: b (lost)
   14.0  coordinator: round 2 gathering []: 1 of at least 2 nodes joined (a); waiting up to 51 s for more; missing: b (lost)
   14.0  a joining: round 2: 1 of at least 2 nodes joined (a); waiting up to 51 s for more; missing: b (lost)
   32.0  coordinator: round 2 gathering []: 1 of at least 2 nodes joined (a); waiting up to 33 s for more; missing: b (lost)
   32.0  a joining: round 2: 1 of at least 2 nodes joined (a); waiting up to 33 s for more; missing: b (lost)
   65.0  coordinator: round 2 closed join timed out []: 1 of at least 2 nodes joined within the join timeout of 60 s: a; missing: b (lost)
   65.0  a ending: the job waited too long for nodes: 1 of at least 2 nodes joined within the join timeout of 60 s: a; missing: b (lost)
   65.0  a ended: the job waited too long for nodes: 1 of at least 2 nodes joined within the join timeout of 60 s: a; missing: b (lost)
   65.0  a exits 76
