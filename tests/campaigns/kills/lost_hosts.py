"""Lose the host of a c10d store without a word of its kernel: `make host-losses`.

Real agents in network namespaces, one worker each, lease 5 s. The node of the host gets no packet any more, as without
power, or its agent is frozen. The others must train again, with no worker of the host beside them, and the host must
join them once it is back. Measured: from the loss until the workers of all that are left run.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

from support.desk import worker_of
from support.harness import Cluster
from support.network import Switch, virtual_switch, why_unavailable

LEASE_S = 5.0
AGAIN_S = LEASE_S + 3.0
MOMENT_S = 0.2
"""In which the desk learns that a worker is gone."""


def lose(cluster: Cluster, switch: Switch, names: str, *, frozen: bool, after_s: float) -> float:
    """The host of a job of these nodes, the first, is lost and comes back. Returns the seconds until the others trained
    again. Raises AssertionError."""
    for name in names:
        switch.add(name)
    cluster.endpoint = f"{switch.addresses[names[0]]}:29400"
    for name in names:
        cluster.start(name, within=switch.within(name))
    world = cluster.desk.wait_world(len(names))
    threading.Event().wait(after_s)
    host = cluster.nodes[names[0]]
    began = time.monotonic()
    if frozen:
        host.terminate(signal.SIGSTOP)
    else:
        switch.cut(names[0])
    again = cluster.desk.wait_world(len(names) - 1, after=world[0].round)
    took_s = time.monotonic() - began
    cluster.desk.wait_gone([worker_of(world, names[0])], MOMENT_S)
    if frozen:
        host.terminate(signal.SIGCONT)
    else:
        switch.mend(names[0])
    cluster.desk.wait_world(len(names), after=again[0].round)
    cluster.finish()
    assert [node.wait() for node in cluster.nodes.values()] == [0] * len(names)
    return took_s


def campaign(jobs: int, seed: int) -> bool:
    """Whether all jobs went on, in time."""
    rng, good = random.Random(seed), True
    print("| nodes, host | went on | median | worst |\n|---|---|---|---|", flush=True)
    for names in ("abc", "abcde"):
        for frozen in (False, True):
            times = []
            for number in range(jobs):
                with ExitStack() as held:
                    switch = held.enter_context(virtual_switch())
                    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="lost-")))
                    nodes = f"{len(names) // 2 + 1}:{len(names)}"
                    conf = {"lease": LEASE_S, "beat": 1.0}
                    cluster = held.enter_context(closing(Cluster("c10d", folder, nnodes=nodes, conf=conf)))
                    try:
                        times.append(lose(cluster, switch, names, frozen=frozen, after_s=rng.uniform(1.5, 2.5)))
                    except AssertionError as error:
                        print(f"{len(names)} nodes, job {number} of seed {seed}: {error}", flush=True)
            times.sort()
            good = good and len(times) == jobs and times[-1] <= AGAIN_S
            figures = f"{times[len(times) // 2]:.2f} s | {times[-1]:.2f} s" if times else "|"
            what = "frozen" if frozen else "without power"
            print(f"| {len(names)}, {what} | {len(times)} of {jobs} | {figures} |", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10, help="of each kind and number of nodes")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if why := why_unavailable():
        print(why)
        return 1
    return 0 if campaign(given.jobs, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
