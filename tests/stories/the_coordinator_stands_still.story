# The loop of the node that coordinates stands still: it resigns, and another node takes over.
job 1:3 store=etcd restarts=1
begin a b c
wait 10
stall a
wait 6
----
    0.0  coordinator: round 1 running [a:0 b:1 c:2]: every place is taken
   10.1  a stands still
   16.0  coordinator: round 1 running [a:0 b:1 c:2]: every place is taken

# A node that is lost then is found lost.
kill c
wait 15
----
   16.2  c is killed with signal 9
   19.0  coordinator: round 1 over [a:0 b:1 c:2]: a was lost: its lease of 5 s ran out
   19.0  b stopping: round 1 is over: a was lost: its lease of 5 s ran out
   19.0  b signal 15 to its workers
   19.0  b joining: workers of round 1 are gone
   19.0  b joining: waiting for a place in a round
   20.0  coordinator: round 1 over [a:0 b:1 c:2]: waiting up to 3 s until a, c, which are dead or cut off, have surely ended their workers of round 1 (1 s so far)
   22.0  coordinator: round 1 over [a:0 b:1 c:2]: waiting up to 1 s until a, c, which are dead or cut off, have surely ended their workers of round 1 (3 s so far)
   22.0  b joining: round 1: waiting up to 1 s until a, c, which are dead or cut off, have surely ended their workers of round 1 (3 s so far)
   22.8  coordinator: round 2 running [b:0]: 1 node joined, enough for min_nodes 1
   23.1  b working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; a was lost: its lease of 5 s ran out
   23.1  b starts ranks 0 to 0

resume a
wait 10
finish
wait 10
----
   31.3  a goes on
   31.3  a stopping: worker failed: rank 0 (local rank 0) on a: this node was cut off, or its agent was paused, for so long that a newer round may run elsewhere, so its workers were killed
   31.3  a signal 15 to its workers
   31.3  a joining: workers of round 1 are gone
   31.3  a joining: waiting for a place in a round
   32.0  a joining: round 2 runs without this node; waiting for the next round for up to 600 s
   34.3  coordinator: round 2 over [b:0]: a arrived and there is room
   34.3  b stopping: round 2 is over: a arrived and there is room
   34.3  b signal 15 to its workers
   34.3  b joining: workers of round 2 are gone
   34.3  b joining: waiting for a place in a round
   34.3  coordinator: round 3 running [b:0 a:1]: 2 nodes joined, enough for min_nodes 1
   34.3  a working: round 3 begins with 2 nodes, group rank 1: 2 nodes joined, enough for min_nodes 1
   34.3  a starts ranks 1 to 1
   34.3  b working: round 3 begins with 2 nodes, group rank 0: 2 nodes joined, enough for min_nodes 1
   34.3  b starts ranks 0 to 0
   41.4  a exits 0
   41.4  b exits 0
