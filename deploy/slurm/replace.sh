#!/bin/bash
# Takes a bad node out of a running job: drains it, so that no other job gets it, and has its agent leave. A spare of
# the allocation takes its place; where there is none, join.sbatch brings a node. From the job's submit directory.
#   replace.sh JOB NODE [REASON]
set -euo pipefail
[ $# -ge 2 ] || {
    echo "usage: replace.sh JOB NODE [REASON]" >&2
    exit 2
}
job=$1 node=$2 run_dir=$PWD/.elastic-agent/$1
[ -e "$run_dir/$node.pid" ] || {
    echo "replace.sh: no agent of job $job on $node, by $run_dir; give the job's id, from its submit directory" >&2
    exit 2
}
scontrol update NodeName="$node" State=DRAIN Reason="${3:-elastic-agent: taken out of job $job}" ||
    echo "replace.sh: $node is not drained, which takes an operator; its agent leaves all the same" >&2
exec srun --jobid="$job" --overlap --nodes=1 --ntasks=1 --nodelist="$node" --mpi=none \
    bash -c 'kill -s TERM "$(cat "$1/$2.pid")"' - "$run_dir" "$node"
