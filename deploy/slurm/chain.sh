#!/bin/bash
# A training longer than the limit, as jobs of which each waits for the one before it. The first that is done, or would
# not get further, cancels those behind it. Prints the ids of the jobs.
#   chain.sh 10 --nodes=8 --time=20:00:00 -- train.py --lr 0.1
set -euo pipefail
usage() {
    echo "usage: chain.sh NUMBER [OPTION OF SBATCH...] -- SCRIPT [ARGUMENT...]" >&2
    exit 2
}
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || usage
number=$1
shift
options=()
while [ "${1:-}" != -- ]; do
    [ $# -gt 0 ] || usage
    options+=("$1")
    shift
done
shift
[ $# -gt 0 ] || usage
before=()
for ((i = 0; i < number; i++)); do
    # afterany: whatever the status is, the link itself decides what becomes of those behind it.
    job=$(sbatch --parsable "${before[@]}" "${options[@]}" "$(dirname "$(realpath "$0")")/link.sbatch" "$@")
    job=${job%%;*} # the name of the cluster
    echo "$job"
    before=(--dependency="afterany:$job")
done
