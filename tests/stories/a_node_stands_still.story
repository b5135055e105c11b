# A node's loop stands still, as in a call on a dead file server, while its threads and its workers go on. It sends no
# heartbeat after 5 s, and is lost when its lease is over.
job 1:3 store=etcd restarts=1
begin a b c
wait 10
----
    0.0  coordinator: round 1 running [a:0 b:1 c:2]: every place is taken

stall b
worker c/0 fails
wait 15
----
   10.1  b stands still
   10.2  c stopping: worker failed: rank 2 (local rank 0, pid 103) on c, exit code 1
   10.2  c signal 15 to its workers
   10.2  c joining: workers of round 1 are gone
   10.2  c joining: waiting for a place in a round
   10.2  coordinator: round 1 over [a:0 b:1 c:2]: worker failed: rank 2 (local rank 0, pid 103) on c, exit code 1
   10.2  a stopping: round 1 is over: worker failed: rank 2 (local rank 0, pid 103) on c, exit code 1
   10.2  a signal 15 to its workers
   10.2  a joining: workers of round 1 are gone
   10.2  a joining: waiting for a place in a round
   11.2  coordinator: round 1 over [a:0 b:1 c:2]: waiting for b to stop the workers of round 1 (1 s so far)
   11.2  a joining: round 1: waiting for b to stop the workers of round 1 (1 s so far)
   11.2  c joining: round 1: waiting for b to stop the workers of round 1 (1 s so far)
   13.2  coordinator: round 1 over [a:0 b:1 c:2]: waiting for b to stop the workers of round 1 (3 s so far)
   13.2  a joining: round 1: waiting for b to stop the workers of round 1 (3 s so far)
   13.2  c joining: round 1: waiting for b to stop the workers of round 1 (3 s so far)
   19.1  coordinator: round 2 running [a:0 c:1]: 2 nodes joined, enough for min_nodes 1
   19.1  a working: round 2 begins with 2 nodes, group rank 0: 2 nodes joined, enough for min_nodes 1; b was lost: its lease of 5 s ran out; then worker failed: rank 2 (local rank 0, pid 103) on c, exit code 1
   19.1  a starts ranks 0 to 0
   19.2  c working: round 2 begins with 2 nodes, group rank 1: 2 nodes joined, enough for min_nodes 1; round 1 costs this node no restart: b was lost: its lease of 5 s ran out; then worker failed: rank 2 (local rank 0, pid 103) on c, exit code 1
   19.2  c starts ranks 1 to 1

# It goes on, and finds a round without it.
resume b
wait 10
finish
wait 10
----
   25.3  b goes on
   25.3  b stopping: round 1 is over: worker failed: rank 2 (local rank 0, pid 103) on c, exit code 1
   25.3  b signal 15 to its workers
   25.3  b joining: workers of round 1 are gone
   25.3  b joining: waiting for a place in a round
   25.3  coordinator: round 2 over [a:0 c:1]: b arrived and there is room
   25.3  a stopping: round 2 is over: b arrived and there is room
   25.3  a signal 15 to its workers
   25.3  a joining: workers of round 2 are gone
   25.3  a joining: waiting for a place in a round
   26.3  c stopping: round 2 is over: b arrived and there is room
   26.3  c signal 15 to its workers
   26.3  c joining: workers of round 2 are gone
   26.3  c joining: waiting for a place in a round
   26.3  coordinator: round 3 running [a:0 c:1 b:2]: every place is taken
   26.3  b working: round 3 begins with 3 nodes, group rank 2: every place is taken
   26.3  b starts ranks 2 to 2
   26.3  c working: round 3 begins with 3 nodes, group rank 1: every place is taken
   26.3  c starts ranks 1 to 1
   26.3  a working: round 3 begins with 3 nodes, group rank 0: every place is taken
   26.3  a starts ranks 0 to 0
   35.4  c exits 0
   35.4  b exits 0
   36.4  a exits 0
