# b still works when the finalisation barrier ends: it is stopped and exits 82. a, which had finished, exits 0.
job 2:2 barrier=300
join a b
workers a finish
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
    0.1  a stopping: all workers of this node exited 0
    0.1  a finished: all workers of this node exited 0
    0.1  coordinator: round 1 running finishing [a:0 b:1]: every place is taken

wait 301
----
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
  207.1  coordinator: round 1 running finishing [a:0 b:1]: waiting for b to finish; the finalisation barrier ends in 93 s
  207.1  a finished: round 1: waiting for b to finish; the finalisation barrier ends in 93 s
  207.1  b working: round 1: waiting for b to finish; the finalisation barrier ends in 93 s
  267.1  coordinator: round 1 running finishing [a:0 b:1]: waiting for b to finish; the finalisation barrier ends in 33 s
  267.1  a finished: round 1: waiting for b to finish; the finalisation barrier ends in 33 s
  267.1  b working: round 1: waiting for b to finish; the finalisation barrier ends in 33 s
  300.1  coordinator: round 1 closed unfinished []: the finalisation barrier of 300 s ended before b finished
  300.1  a ending: this node's workers all finished, but the job ended unfinished: the finalisation barrier of 300 s ended before b finished
  300.1  b stopping: the job ended unfinished: the finalisation barrier of 300 s ended before b finished
  300.1  b signal 15 to its workers
  300.1  b ending: the job ended unfinished: the finalisation barrier of 300 s ended before b finished
  300.1  b ended: the job ended unfinished: the finalisation barrier of 300 s ended before b finished
  300.1  b exits 82
  300.1  a ended: this node's workers all finished, but the job ended unfinished: the finalisation barrier of 300 s ended before b finished
  300.1  a exits 0
