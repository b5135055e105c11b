# In a dynamic rendezvous --node-rank is a preference: a gets rank 0, though b joined first and hosts the store.
job 2:2
join b node_rank=1
join a node_rank=0
----
    0.0  b joining: the store answers
    0.0  b joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 2 nodes joined (b); waiting up to 600 s for more
    0.0  b joining: round 1: 1 of at least 2 nodes joined (b); waiting up to 600 s for more
    0.1  a joining: the store answers
    0.1  a joining: round 1: 1 of at least 2 nodes joined (b); waiting up to 600 s for more
    0.1  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.1  b working: round 1 begins with 2 nodes, group rank 1: every place is taken
    0.1  b starts ranks 1 to 1
    0.1  a working: round 1 begins with 2 nodes, group rank 0: every place is taken
    0.1  a starts ranks 0 to 0

finish
----
    0.2  a exits 0
    0.2  b exits 0
