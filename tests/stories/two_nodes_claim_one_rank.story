# In a static rendezvous --node-rank must be followed: two nodes with one rank end the job, once both are known to live.
job 2:2 static=1
join a node_rank=0
join b node_rank=0
wait 7
----
    0.0  a joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.0  a joining: round 1: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.1  b joining: the store answers
    0.1  b joining: round 1: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    1.0  coordinator: round 1 gathering []: a and b both have --node-rank 0; give each node its own; waiting up to 5 s to see whether each such node is alive
    1.0  a joining: round 1: a and b both have --node-rank 0; give each node its own; waiting up to 5 s to see whether each such node is alive
    1.0  b joining: round 1: a and b both have --node-rank 0; give each node its own; waiting up to 5 s to see whether each such node is alive
    3.0  coordinator: round 1 gathering []: a and b both have --node-rank 0; give each node its own; waiting up to 3 s to see whether each such node is alive
    3.0  a joining: round 1: a and b both have --node-rank 0; give each node its own; waiting up to 3 s to see whether each such node is alive
    3.0  b joining: round 1: a and b both have --node-rank 0; give each node its own; waiting up to 3 s to see whether each such node is alive
    6.1  coordinator: round 1 closed misconfigured []: a and b both have --node-rank 0; give each node its own
    6.1  a ending: the job cannot begin: a and b both have --node-rank 0; give each node its own
    6.1  b ending: the job cannot begin: a and b both have --node-rank 0; give each node its own
    6.1  b ended: the job cannot begin: a and b both have --node-rank 0; give each node its own
    6.1  b exits 2
    6.1  a ended: the job cannot begin: a and b both have --node-rank 0; give each node its own
    6.1  a exits 2
