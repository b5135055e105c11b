# A node arrives where workers save first: they act at one boundary and wait there, then the round ends.
job 1:2 settle=60 quiet=0.5
begin a
wait 2
----
    0.5  coordinator: round 1 running [a:0]: last call ended with 1 node
    0.5  a working: round 1 begins with 1 node, group rank 0: last call ended with 1 node
    0.5  a starts ranks 0 to 0

join b
wait 8
----
    2.1  b joining: the store answers
    2.1  b joining: round 1 runs without this node; waiting for the next round for up to 600 s
    2.1  b joining: waiting for a place in a round
    2.1  coordinator: round 1 running [a:0]: b arrived and there is room; its workers first save what they have done
    2.1  coordinator: round 1 running [a:0]: b arrived and there is room; its workers first save what they have done
    2.1  a working: all ranks save and wait at boundary 1: b arrived and there is room
    2.1  a acts at boundary 1: settle
    2.1  coordinator: round 1 over [a:0]: b arrived and there is room
    2.1  a stopping: round 1 is over: b arrived and there is room
    2.1  a signal 15 to its workers
    2.1  a joining: workers of round 1 are gone
    2.1  a joining: waiting for a place in a round
    2.1  coordinator: round 2 running [a:0 b:1]: every place is taken
    2.1  a working: round 2 begins with 2 nodes, group rank 0: every place is taken
    2.1  a starts ranks 0 to 0
    2.1  b working: round 2 begins with 2 nodes, group rank 1: every place is taken
    2.1  b starts ranks 1 to 1

finish
----
   10.2  b exits 0
   10.2  a exits 0
