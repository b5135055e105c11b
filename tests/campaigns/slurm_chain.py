"""The chain under a real SLURM, again and again: signal, save, 75, requeue, resume. `make slurm-chain RUNS=20`.

Each run is a training with the worker library on two nodes, which gets SIGUSR1 after a random number of steps, and one
whose processes all get it while workers still import, as SLURM sends it without `B:`. The first must be queued again
and do each step once over both starts; the second must not die of it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from support.desk import WORKER
from support.network import free_port
from support.outside.slurm_cluster import SlurmCluster, slurm

TRAINING = str(Path(WORKER).with_name("enduring.py"))
STEPS, STEP_S = 200, 0.02
BOUND_S = 240.0
AGENT = f"""\
#!/bin/bash
export TEST_NODE=$SLURMD_NODENAME
first=$([ "$TEST_NODE" = n1 ] && echo 1 || echo 0)
exec {sys.executable} -m elastic_agent --rdzv-conf "last_call_quiet=0.5,read_timeout=60,is_host=$first" "$@"
"""


def workers(folder: Path) -> list[str]:
    """Process ids of the workers of this training; its agents and the batch script have the script among their
    arguments too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            argv = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile
        if argv[1:3] == [b"-u", TRAINING.encode()] and str(folder / "notes").encode() in argv:
            found.append(path.parent.name)
    return found


def chain(cluster: SlurmCluster, folder: Path, at: int) -> str:
    """One training, signalled after so many steps, or during its imports where that is 0. Returns what went wrong."""
    folder.mkdir()
    program, notes = folder / "agent", folder / "notes.1.0"
    program.write_text(AGENT)
    program.chmod(0o755)
    settings = {"ELASTIC_AGENT": str(program), "ELASTIC_AGENT_PORT": str(free_port())}
    arguments = (str(folder / "checkpoints"), str(folder / "notes"), str(STEPS), str(STEP_S))
    job = cluster.submit("requeue.sbatch", TRAINING, *arguments, options=("--nodes=2",), **settings)

    def done() -> list[int]:
        lines = notes.read_text().splitlines() if notes.exists() else []
        return [int(line.split()[0]) for line in lines if not line.startswith("complete")]

    def restarts() -> int:
        return int(cluster.run("scontrol", "show", "job", job).partition("Restarts=")[2].split()[0])

    if at:
        cluster.wait(lambda: len(done()) >= at, f"{at} steps", BOUND_S)
        cluster.run("scancel", "--batch", "--signal=USR1", job)
        cluster.wait(lambda: restarts() == 1, "the requeue", BOUND_S)
    else:
        agents = (cluster.home / ".elastic-agent" / job).glob
        cluster.wait(lambda: len(list(agents("*.pid"))) == 2, "two agents", BOUND_S)
        cluster.wait(lambda: len(workers(folder)) == 2, "two workers that have begun", BOUND_S)
        assert not list(folder.glob("notes.*")), "the workers had imported before they got the signal"
        cluster.run("scancel", "--signal=USR1", f"{job}.0")
    cluster.wait_end(job, bound_s=BOUND_S)
    steps, state = done(), cluster.state(job)
    if steps != list(range(1, STEPS + 1)):
        return f"{len(steps)} steps noted, {len(set(steps))} different ones, the last {steps[-1:]}; {state}"
    return "" if state == "COMPLETED" else f"the job is {state}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    asked = parser.parse_args()
    chance, failures = random.Random(asked.seed), 0
    with tempfile.TemporaryDirectory() as folder, slurm(Path(folder, "slurm"), 2) as cluster:
        for number in range(asked.runs):
            for what, at in (("signal while training", chance.randrange(5, STEPS - 60)), ("signal while importing", 0)):
                began = time.monotonic()
                try:
                    trouble = chain(cluster, Path(folder, f"{number}-{at}"), at)
                except AssertionError as error:
                    trouble = str(error)[:2000]
                failures += bool(trouble)
                took_s = time.monotonic() - began
                print(f"run {number}: {what}: {trouble or 'done'}, {took_s:.0f} s", flush=True)
    print(f"seed {asked.seed}: {failures} of {2 * asked.runs} went wrong")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
