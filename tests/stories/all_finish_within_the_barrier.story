# The first node to finish starts the finalisation barrier; the other finishes within it, and both exit 0.
job 2:2
join a b
----
    0.0  a joining: the store answers
    0.0  b joining: the store answers
    0.0  a joining: waiting for a place in a round
    0.0  b joining: waiting for a place in a round
    0.0  coordinator: round 1 gathering []: 1 of at least 2 nodes joined (a); waiting up to 600 s for more
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken
    0.0  a working: round 1 begins with 2 nodes, group rank 0: every place is taken
    0.0  a starts ranks 0 to 0
    0.0  b working: round 1 begins with 2 nodes, group rank 1: every place is taken
    0.0  b starts ranks 1 to 1

workers a finish
wait 200
----
    0.1  a stopping: all workers of this node exited 0
    0.1  a finished: all workers of this node exited 0
    0.1  coordinator: round 1 running finishing [a:0 b:1]: every place is taken
    1.1  coordinator: round 1 running finishing [a:0 b:1]: waiting for b to finish; the finalisation barrier ends in 299 s
    1.1  a finished: round 1: waiting for b to finish; the finalisation barrier ends in 299 s
    1.1  b working: round 1: waiting for b to finish; the finalisation barrier ends in 299 s
    3.1  coordinator: round 1 running finishing [a:0 b:1]: waiting for b to finish; the finalisation barrier ends in 297 s
    3.1  a finished: round 1: waiting for b to finish; the finalisation barrier ends in 297 s
    3.1  b working: round 1: waiting for b to finish; the finalisation barrier ends in 297 s
    9.1  coordinator: round 1 running finishing [a:0 b:1]: waiting for b to finish; the finalisation barrier ends in 291 s
    9.1  a finished: round 1: waiting for b to finish; the finalisation barrier ends in 291 s
    9.1  b working: round 1: waiting for b to finish; the finalisation barrier ends in 291 s
   27.1  coordinator: round 1 running finishing [a:0 b:1]: waiting for b to finish; the finalisation barrier ends in 273 s
   27.1  a finished: round 1: waiting for b to finish; the finalisation barrier ends in 273 s
   27.1  b working: round 1: waiting for b to finish; the finalisation barrier ends in 273 s
   87.1  coordinator: round 1 running finishing [a:0 b:1]: waiting for b to finish; the finalisation barrier ends in 213 s
   87.1  a finished: round 1: waiting for b to finish; the finalisation barrier ends in 213 s
   87.1  b working: round 1: waiting for b to finish; the finalisation barrier ends in 213 s
  147.1  coordinator: round 1 running finishing [a:0 b:1]: waiting for b to finish; the finalisation barrier ends in 153 s
  147.1  a finished: round 1: waiting for b to finish; the finalisation barrier ends in 153 s
  147.1  b working: round 1: waiting for b to finish; the finalisation barrier ends in 153 s

workers b finish
wait 1
----
  200.2  b stopping: all workers of this node exited 0
  200.2  b finished: all workers of this node exited 0
  200.2  coordinator: round 1 closed succeeded []: all nodes of round 1 finished
  200.2  a ending: this node's workers all finished: all nodes of round 1 finished
  200.2  b ending: this node's workers all finished: all nodes of round 1 finished
  200.2  b ended: this node's workers all finished: all nodes of round 1 finished
  200.2  b exits 0
  200.2  a ended: this node's workers all finished: all nodes of round 1 finished
  200.2  a exits 0
