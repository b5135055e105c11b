#!/bin/bash
# The agent of one node, as srun starts it: agent.sh RUN_DIR FORWARD. Its status is left in RUN_DIR/NODE.status.
# FORWARD: `yes` where SLURM signals only the first process of a task, which is this one.
run_dir=$1 forward=$2
mapfile -d '' -t flags <"$run_dir/flags"
mapfile -d '' -t command <"$run_dir/command"

# SLURM may signal all processes of a step, also an agent before its first line: ignored until it takes the signal.
trap '' USR1
# Words of the two variables are arguments of their own.
# shellcheck disable=SC2086
${ELASTIC_AGENT:-elastic-agent} "${flags[@]}" ${ELASTIC_AGENT_FLAGS:-} "${command[@]}" &
agent=$!
echo "$agent" >"$run_dir/$SLURMD_NODENAME.pid"
# This shell must outlive the agent: SLURM kills what is left when the first process of a task has ended.
trap 'interrupted=yes; [ "$forward" != yes ] || kill -s TERM "$agent"' TERM
trap 'interrupted=yes' USR1 USR2 HUP INT
interrupted=
wait "$agent"
status=$?
while [ -n "$interrupted" ]; do
    interrupted=
    wait "$agent"
    again=$?
    [ "$again" -eq 127 ] || status=$again
done
echo "$status" >"$run_dir/$SLURMD_NODENAME.status"
exit "$status"
