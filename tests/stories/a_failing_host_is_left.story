# The nursery of b is killed three times in a row: b leaves its host, uncharged, and a goes on.
job 1:2
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

nursery b dies
wait 5
----
    0.1  b joining: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it
    0.1  b starts another nursery
    0.1  b joining: waiting for a place in a round
    0.1  coordinator: round 1 over [a:0 b:1]: worker failed: rank 1 (local rank 0) on b: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it
    0.1  a stopping: round 1 is over: worker failed: rank 1 (local rank 0) on b: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it
    0.1  a signal 15 to its workers
    0.1  a joining: workers of round 1 are gone
    0.1  a joining: waiting for a place in a round
    0.1  coordinator: round 2 running [a:0 b:1]: every place is taken
    0.1  a working: round 2 begins with 2 nodes, group rank 0: every place is taken
    0.1  a starts ranks 0 to 0
    0.1  b working: round 2 begins with 2 nodes, group rank 1: every place is taken; round 1 costs this node no restart: worker failed: rank 1 (local rank 0) on b: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it; the cause: died with its nursery
    0.1  b starts ranks 1 to 1

nursery b dies
wait 5
----
    5.2  b joining: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it
    5.2  b starts another nursery
    5.2  b joining: waiting for a place in a round
    5.2  coordinator: round 2 over [a:0 b:1]: worker failed: rank 1 (local rank 0) on b: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it
    5.2  a stopping: round 2 is over: worker failed: rank 1 (local rank 0) on b: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it
    5.2  a signal 15 to its workers
    5.2  a joining: workers of round 2 are gone
    5.2  a joining: waiting for a place in a round
    5.2  coordinator: round 3 running [a:0 b:1]: every place is taken
    5.2  a working: round 3 begins with 2 nodes, group rank 0: every place is taken
    5.2  a starts ranks 0 to 0
    5.2  b working: round 3 begins with 2 nodes, group rank 1: every place is taken; round 2 costs this node no restart: worker failed: rank 1 (local rank 0) on b: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it; the cause: died with its nursery
    5.2  b starts ranks 1 to 1

nursery b dies
wait 1
----
   10.3  b ending: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it; 3 times in a row, each within 600 s of the one before: check this host's memory, limits and kernel log before using it again
   10.3  coordinator: round 3 over [a:0 b:1]: b left: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it; 3 times in a row, each within 600 s of the one before: check this host's memory, limits and kernel log before using it again
   10.3  b ended: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it; 3 times in a row, each within 600 s of the one before: check this host's memory, limits and kernel log before using it again
   10.3  b exits 71
   10.3  a stopping: round 3 is over: b left: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it; 3 times in a row, each within 600 s of the one before: check this host's memory, limits and kernel log before using it again
   10.3  a signal 15 to its workers
   10.3  a joining: workers of round 3 are gone
   10.3  a joining: waiting for a place in a round
   10.3  coordinator: round 4 running [a:0]: 1 node joined, enough for min_nodes 1
   10.3  a working: round 4 begins with 1 node, group rank 0: 1 node joined, enough for min_nodes 1; b left: a failure of this host, not of the script: the process that owns the workers died (signal 9), and the workers with it; 3 times in a row, each within 600 s of the one before: check this host's memory, limits and kernel log before using it again
   10.3  a starts ranks 0 to 0

finish
----
   11.4  a exits 0
