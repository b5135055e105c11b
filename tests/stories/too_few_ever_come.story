# Nobody knows who is missing but how many.
job 3:3 join=60
join a b
----
    0.0  a joining: the store answers
    0.0  b joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  b joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 3 nodes are here: a
    0.0  a joining: round 1 is gathering: 1 of at least 3 nodes are here: a
    0.0  b joining: round 1 is gathering: 1 of at least 3 nodes are here: a

wait 60
----
   60.0  coordinator: round 1 closed join timed out []: 2 of at least 3 nodes were here after the join timeout of 60 s: a, b; missing: 1 that never came
   60.0  a ending: the job waited too long for nodes: 2 of at least 3 nodes were here after the join timeout of 60 s: a, b; missing: 1 that never came
   60.0  b ending: the job waited too long for nodes: 2 of at least 3 nodes were here after the join timeout of 60 s: a, b; missing: 1 that never came
   60.0  b ended: the job waited too long for nodes: 2 of at least 3 nodes were here after the join timeout of 60 s: a, b; missing: 1 that never came
   60.0  b exits 76
   60.0  a ended: the job waited too long for nodes: 2 of at least 3 nodes were here after the join timeout of 60 s: a, b; missing: 1 that never came
   60.0  a exits 76
