# A worker exits 75: it has saved, and the job is to go on later. No restart, nobody charged; the others first get their
# grace to end by themselves, and every agent of the job ends with 75.
job 2:2 restarts=3
begin a b
----
    0.0  coordinator: round 1 running [a:0 b:1]: every place is taken

worker b/0 fails 75
wait 1
----
    0.1  b stopping: rank 1 (local rank 0) asked for the end of the job by exit code 75
    0.1  b signal 15 to its workers
    0.1  b joining: workers of round 1 are gone
    0.1  b joining: waiting for a place in a round
    0.1  coordinator: round 1 over [a:0 b:1]: rank 1 on b asked for the end by exit code 75; start the job again to go on
    0.1  a stopping: round 1 is over: rank 1 on b asked for the end by exit code 75; start the job again to go on
    1.1  coordinator: round 1 over [a:0 b:1]: waiting for a to stop the workers of round 1 (1 s so far)
    1.1  b joining: round 1: waiting for a to stop the workers of round 1 (1 s so far)

worker a/0 fails 75
wait 1
----
    1.2  a joining: workers of round 1 are gone
    1.2  a joining: waiting for a place in a round
    1.2  coordinator: round 1 closed preempted []: rank 1 on b asked for the end by exit code 75; start the job again to go on
    1.2  a ending: the job was preempted: rank 1 on b asked for the end by exit code 75; start the job again to go on
    1.2  b ending: the job was preempted: rank 1 on b asked for the end by exit code 75; start the job again to go on
    1.2  b ended: the job was preempted: rank 1 on b asked for the end by exit code 75; start the job again to go on
    1.2  b exits 75
    1.2  a ended: the job was preempted: rank 1 on b asked for the end by exit code 75; start the job again to go on
    1.2  a exits 75
