# Away for less than the lease: nothing happens.
job 1:2
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

cut b
wait 4
heal b
wait 10
----
nothing

# Away for longer than the lease and less than store_grace: the workers of b run on, but a begins a round without it.
# When the store answers b again, b stops its workers and joins as a new node. No node is charged.
cut b
wait 12
----
   19.3  b working: the store at host:29400 does not answer (no answer within 5 s); workers go on for up to 30 s
   19.6  coordinator: round 1 over [a:0 b:1]: b was lost: no heartbeat for 5.0 s (lease 5 s)
   19.6  a stopping: round 1 is over: b was lost: no heartbeat for 5.0 s (lease 5 s)
   19.6  a signal 15 to its workers
   19.6  a joining: workers of round 1 are gone
   19.6  a joining: waiting for a place in a round
   19.6  coordinator: round 2 running [a:0]: 1 node joined, enough for min_nodes 1
   19.6  a working: round 2 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; b was lost: no heartbeat for 5.0 s (lease 5 s)
   19.6  a starts ranks 0 to 0

heal b
wait 5
----
   26.4  b working: the store answers again
   26.4  b stopping: round 1 is over: round 2 began without this node
   26.4  b signal 15 to its workers
   26.4  b joining: workers of round 1 are gone
   26.4  b joining: round 2 runs without this node; waiting for the next round for up to 600 s
   26.4  coordinator: round 2 over [a:0]: b arrived and there is room
   26.4  a stopping: round 2 is over: b arrived and there is room
   26.4  a signal 15 to its workers
   26.4  a joining: workers of round 2 are gone
   26.4  a joining: waiting for a place in a round
   26.4  coordinator: round 3 running [a:0 b:1]: every place is taken
   26.4  a working: round 3 begins with 2 nodes, group rank 0: every place is taken
   26.4  a starts ranks 0 to 0
   26.4  b working: round 3 begins with 2 nodes, group rank 1: every place is taken
   26.4  b starts ranks 1 to 1

finish
----
   31.5  b exits 0
   31.5  a exits 0
