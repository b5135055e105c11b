# Node b is killed while nodes join, and started again with the same --node-rank before its lease is over.
job 3:3 static=1
join a node_rank=0
join b node_rank=1
wait 2
kill b
join b2 node_rank=1
wait 2
----
    0.0  a joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 3 nodes joined (a); waiting up to 600 s for more
    0.0  a joining: round 1: 1 of at least 3 nodes joined (a); waiting up to 600 s for more
    0.1  b joining: the store answers
    0.1  b joining: round 1: 1 of at least 3 nodes joined (a); waiting up to 600 s for more
    1.0  coordinator: round 1 gathering []: 2 of at least 3 nodes joined (a, b); waiting up to 599 s for more
    1.0  a joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 599 s for more
    1.0  b joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 599 s for more
    2.2  b is killed with signal 9
    2.3  b2 joining: the store answers
    2.3  b2 joining: round 1: 2 of at least 3 nodes joined (a, b); waiting up to 599 s for more
    3.0  coordinator: round 1 gathering []: b and b2 both have --node-rank 1; give each node its own; waiting up to 5 s to see whether each such node is alive
    3.0  a joining: round 1: b and b2 both have --node-rank 1; give each node its own; waiting up to 5 s to see whether each such node is alive
    3.0  b2 joining: round 1: b and b2 both have --node-rank 1; give each node its own; waiting up to 5 s to see whether each such node is alive

# The old claim ends with its lease; the job begins when the last node is there.
join c node_rank=2
wait 5
----
    4.4  c joining: the store answers
    4.4  c joining: round 1: b and b2 both have --node-rank 1; give each node its own; waiting up to 5 s to see whether each such node is alive
    7.1  coordinator: round 1 running [a:0 b2:1 c:2]: every place is taken
    7.1  a working: round 1 begins with 3 nodes, group rank 0: every place is taken
    7.1  a starts ranks 0 to 0
    7.1  b2 working: round 1 begins with 3 nodes, group rank 1: every place is taken
    7.1  b2 starts ranks 1 to 1
    7.1  c working: round 1 begins with 3 nodes, group rank 2: every place is taken
    7.1  c starts ranks 2 to 2

finish
----
    9.5  b2 exits 0
    9.5  c exits 0
    9.5  a exits 0
