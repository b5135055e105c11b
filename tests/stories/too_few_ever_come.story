# The missing node has never joined, so only their number is known.
job 3:3 join=60
join a b
----
    0.0  a joining: the store answers
    0.0  b joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  b joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 3 nodes joined (a); waiting up to 60 s for more
    0.0  a joining: round 1: 1 of at least 3 nodes joined (a); waiting up to 60 s for more
    0.0  b joining: round 1: 1 of at least 3 nodes joined (a); waiting up to 60 s for more

wait 60
----
    1.0  coordinator: round 1 gathering []: 2 of at least 3 nodes joined (a, b); waiting up to 59 s for more
    1.0  a joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 59 s for more
    1.0  b joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 59 s for more
    3.0  coordinator: round 1 gathering []: 2 of at least 3 nodes joined (a, b); waiting up to 57 s for more
    3.0  a joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 57 s for more
    3.0  b joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 57 s for more
    9.0  coordinator: round 1 gathering []: 2 of at least 3 nodes joined (a, b); waiting up to 51 s for more
    9.0  a joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 51 s for more
    9.0  b joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 51 s for more
   27.0  coordinator: round 1 gathering []: 2 of at least 3 nodes joined (a, b); waiting up to 33 s for more
   27.0  a joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 33 s for more
   27.0  b joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 33 s for more
   60.0  coordinator: round 1 closed join timed out []: 2 of at least 3 nodes joined within the join timeout of 60 s: a, b; missing: 1 node that never joined
   60.0  a ending: the job waited too long for nodes: 2 of at least 3 nodes joined within the join timeout of 60 s: a, b; missing: 1 node that never joined
   60.0  b ending: the job waited too long for nodes: 2 of at least 3 nodes joined within the join timeout of 60 s: a, b; missing: 1 node that never joined
   60.0  b ended: the job waited too long for nodes: 2 of at least 3 nodes joined within the join timeout of 60 s: a, b; missing: 1 node that never joined
   60.0  b exits 76
   60.0  a ended: the job waited too long for nodes: 2 of at least 3 nodes joined within the join timeout of 60 s: a, b; missing: 1 node that never joined
   60.0  a exits 76
