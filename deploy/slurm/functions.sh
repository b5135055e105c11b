# shellcheck shell=bash
# What the batch scripts in this folder share: one agent a node, the signal ahead of the limit, what follows an ending.
# Sourced by bash. Needs scontrol, squeue and srun, and a submit directory that all nodes of the job see.
#
# From the environment:
#   ELASTIC_AGENT           the agent's command, such as "python -m elastic_agent"     [elastic-agent]
#   ELASTIC_AGENT_FLAGS     its flags, such as "--nproc-per-node gpu --max-restarts 3"  []
#   ELASTIC_AGENT_NNODES    nodes that train, N or MIN:MAX                              [all of the allocation]
#   ELASTIC_AGENT_PORT      where the first node listens                                [20000 + job id modulo 10000]
#   ELASTIC_AGENT_RETRIES   starts in a row after failures of hosts                     [3]
#   ELASTIC_AGENT_DRAIN     yes: drain nodes whose agent ended with 71; needs an operator's rights   [no]

here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=deploy/slurm/hostnames.sh
. "$here/hostnames.sh"
run_dir=$SLURM_SUBMIT_DIR/.elastic-agent/$SLURM_JOB_ID

tell() { echo "elastic-agent in SLURM job $SLURM_JOB_ID: $*" >&2; }

# Looked for now: a training that has ended would be neither queued again nor followed by the next.
[ -r "$here/../exit-statuses" ] || {
    tell "there is no $here/../exit-statuses; copy the whole directory deploy, and submit again"
    exit 2
}

# The address of the first node. Names of nodes need not resolve; NodeAddr is what SLURM itself uses. Where there is no
# scontrol, the name has to do.
first_address() {
    local first address=
    read -r first < <(hostnames "$SLURM_JOB_NODELIST")
    if command -v scontrol >/dev/null; then
        address=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
    fi
    echo "${address:-$first}"
}

# SLURM signals all processes of a step, or with cgroups only the first of each task, which then has to pass it on.
# A second SIGTERM would end the agent's grace.
must_forward() {
    local config
    command -v scontrol >/dev/null || return 1
    config=$(scontrol show config)
    grep -q '^ProctrackType *= proctrack/cgroup' <<<"$config" && ! grep -qi '^SignalChildrenProcesses *= *yes' <<<"$config"
}

# run_agents SCRIPT [ARGUMENT...]: one agent a node until all have ended. Sets `status` and `verdict`.
run_agents() {
    rm -rf "$run_dir"
    mkdir -p "$run_dir"
    local restart=${SLURM_RESTART_COUNT:-0} forward=
    must_forward && forward=yes
    printf '%s\0' \
        --nnodes "${ELASTIC_AGENT_NNODES:-$SLURM_NNODES}" \
        --rdzv-backend c10d \
        --rdzv-endpoint "$(first_address):${ELASTIC_AGENT_PORT:-$((20000 + SLURM_JOB_ID % 10000))}" \
        --rdzv-id "slurm-$SLURM_JOB_ID-$restart" \
        --forward-signals USR1 >"$run_dir/flags"
    printf '%s\0' "$@" >"$run_dir/command"
    # SLURM 22.05 and later do not hand the CPUs of a task on to srun.
    [ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
    trap pass_signal USR1
    # --no-kill here and on sbatch: a lost node ends neither the step nor the job, and the agents go on without it.
    srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --mpi=none --no-kill \
        --kill-on-bad-exit=0 "$here/agent.sh" "$run_dir" "$forward" &
    local srun=$!
    wait "$srun"
    while kill -0 "$srun" 2>/dev/null; do wait "$srun"; done # a trap ends `wait`
    trap '' USR1
    read -r status verdict <<<"$(speaking $(statuses))"
    tell "nodes ended with $(statuses | sort -n | uniq -c | awk '{printf "%s%s (%s)", sep, $2, $1; sep=", "}');" \
        "the job ends with $status: $verdict"
    bad_nodes
    forget "$run_dir"
}

# forget PATH: remove it, and the directory that it is in unless others keep something there.
forget() {
    rm -rf "$1"
    rmdir "$(dirname "$1")" 2>/dev/null
    return 0
}

# SIGUSR1 reaches this shell alone (--signal=B:USR1@S). It is passed to the agents, and by them to workers that take it;
# SLURM would send it to all processes of the step, data loaders and shells too, and to workers once more.
pass_signal() {
    tell "the limit is near; sending SIGUSR1 to the agents"
    # In the background: a node that is gone must not hold up this shell.
    srun --overlap --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --mpi=none --no-kill \
        --kill-on-bad-exit=0 bash -c 'kill -s USR1 "$(cat "$1/$SLURMD_NODENAME.pid")"' - "$run_dir" &
}

# The status of each node, a line each.
statuses() {
    local node
    for node in $(hostnames "$SLURM_JOB_NODELIST"); do
        cat "$run_dir/$node.status" 2>/dev/null || echo 137
    done
}

# speaking STATUS...: the one that speaks for the job, and its verdict.
speaking() {
    local status verdict each
    while read -r status verdict _; do
        for each in "$@"; do
            if [ "$each" = "$status" ]; then
                echo "$status $verdict"
                return
            fi
        done
    done < <(grep '^[0-9]' "$here/../exit-statuses")
    echo "$1 stop"
}

# Hosts that their agents gave up (71): drained, so that SLURM gives the next start others.
bad_nodes() {
    local node
    for node in $(hostnames "$SLURM_JOB_NODELIST"); do
        [ "$(cat "$run_dir/$node.status" 2>/dev/null)" = 71 ] || continue
        if [ "${ELASTIC_AGENT_DRAIN:-no}" != yes ]; then
            tell "the host of $node failed; drain it, or give --exclude=$node"
        elif scontrol update NodeName="$node" State=DRAIN Reason="elastic-agent: host failed in job $SLURM_JOB_ID"; then
            tell "the host of $node failed; it is drained"
        fi
    done
}

# The end of an element of a job array, or of a chain: what waits behind it goes on, or is cancelled.
leave_to_next() {
    [ "$verdict" = stop ] || return 0
    local waiting=() job
    if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then
        waiting+=("$SLURM_ARRAY_JOB_ID")
    fi
    local found=("$SLURM_JOB_ID") more
    while [ ${#found[@]} -gt 0 ]; do
        more=()
        for job in $(dependants "${found[0]}"); do more+=("$job"); done
        waiting+=("${more[@]}")
        found=("${found[@]:1}" "${more[@]}")
    done
    [ ${#waiting[@]} -eq 0 ] || scancel --state=PENDING "${waiting[@]}"
}

# dependants JOB: those of this name, links of the same chain, that wait for its end.
dependants() {
    squeue --noheader --me --states=PENDING --name="$SLURM_JOB_NAME" --format='%A %E' |
        awk -v job="$1" '{ split($2, each, /[^0-9]+/); for (i in each) if (each[i] == job) { print $1; next } }'
}

# The end of a job that queues itself again. Does not return then: SLURM kills this shell.
requeue() {
    local counted=$run_dir.retries number
    case $verdict in
    again) forget "$counted" ;;
    retry)
        number=$(($(cat "$counted" 2>/dev/null || echo 0) + 1))
        if [ "$number" -gt "${ELASTIC_AGENT_RETRIES:-3}" ]; then
            tell "a host or the network failed $number times in a row; the job is not queued again"
            forget "$counted"
            return 0
        fi
        mkdir -p "$(dirname "$counted")"
        if ! echo "$number" >"$counted"; then
            tell "cannot count the failure in $counted; the job is not queued again"
            return 0
        fi
        ;;
    *)
        forget "$counted"
        return 0
        ;;
    esac
    tell "asking SLURM to queue the job again"
    scontrol requeue "$SLURM_JOB_ID" && exit "$status"
    tell "the job is not queued again, as SLURM refuses; submit it without --no-requeue, or by array.sbatch"
    forget "$counted"
}
