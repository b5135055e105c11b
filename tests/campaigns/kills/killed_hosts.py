"""Kill the agent that hosts a c10d store, of jobs whose `--rdzv-endpoint` lists all nodes, or names one
(`--one-endpoint`): `make host-kills`.

Real agents, one worker each, lease 5 s. The host gets SIGKILL while a round runs, as the next one gathers, while
another node stops its workers, while others work on behind its own end, or while it is followed by a second one that is
killed, too; or it gets SIGTERM, and ends while the others work on; or its node is started again. Each job must go on
with the nodes that are left, within one job, and end well. Measured: from the (last) signal until the workers of all
that are left run, or, where they run on, until their agents have the store again.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from support.desk import Worker, worker_of
from support.harness import Cluster
from support.network import free_port

AGAIN_S = 3.0
"""What 95 of 100 must not exceed."""
ENDS_S = 10.0
"""Within this time behind the next round a host ends that was asked to leave."""
RETURNS_S = 4.0
"""Within this time behind the end of the host its node is started again, or at once."""
TAKES_OVER_S = 0.6
"""Within this time behind the first SIGKILL the second one comes."""


class Job:
    """One job of so many nodes, which all run."""

    def __init__(self, cluster: Cluster, nodes: int, rng: random.Random, *, one_endpoint: bool) -> None:
        self.cluster, self.rng, self.nodes = cluster, rng, nodes
        if not one_endpoint:
            cluster.endpoint = ",".join(f"127.0.0.1:{free_port()}" for _ in range(nodes))
        self.names = "abcde"[:nodes]
        cluster.start("a", nnodes=f"1:{nodes}")
        cluster.desk.wait_world(1)
        for name in self.names[1:]:
            cluster.start(name, nnodes=f"1:{nodes}")
        self.world: list[Worker] = cluster.desk.wait_world(nodes)

    def kill(self, name: str = "a") -> float:
        """Returns when."""
        self.cluster.nodes[name].vanish()
        self.names = self.names.replace(name, "")
        return time.monotonic()

    def again(self, since: float) -> float:
        """Wait for the workers of those that are left. Returns how long it took."""
        self.cluster.desk.wait_world(len(self.names), after=self.world[0].round)
        return time.monotonic() - since

    def fails(self) -> None:
        """A worker of b ends the round, which all are told."""
        worker_of(self.world, "b").order("exit 3")

    def end(self) -> None:
        """Raises AssertionError where a node does not end well."""
        for worker in self.cluster.desk.workers:
            if not worker.gone.is_set():
                worker.order("exit 0")
        ended = {name: self.cluster.nodes[name].wait() for name in self.names}
        assert not any(ended.values()), f"ended with {ended}"


def running(job: Job) -> float:
    return job.again(job.kill())


def gathering(job: Job) -> float:
    job.fails()
    job.cluster.nodes[job.names[-1]].wait_text("is over")
    return job.again(job.kill())


def stopping(job: Job) -> float:
    slow = worker_of(job.world, "c")
    job.cluster.desk.ask(slow, "ignore 15")
    job.fails()
    job.cluster.nodes["c"].wait_text("is over")
    killed = job.kill()
    job.cluster.nodes["b"].wait_text("the store answers again")
    slow.order("exit 0")
    return job.again(killed)


def finalising(job: Job) -> float:
    worker_of(job.world, "a").order("exit 0")
    for name in job.names:
        job.cluster.nodes[name].wait_text("the finalisation barrier ends in")
    killed = job.kill()
    for name in job.names:
        job.cluster.nodes[name].wait_text("the store answers again")
    took_s = time.monotonic() - killed
    assert max(worker.round for worker in job.cluster.desk.workers) == job.world[0].round, "a round began anew"
    return took_s


def taking_over(job: Job) -> float:
    job.kill()
    time.sleep(job.rng.uniform(0.0, TAKES_OVER_S))  # in any state of the take-over
    return job.again(job.kill("b"))


def leaving(job: Job) -> float:
    """It is asked to leave instead, and ends while the others work on."""
    host = job.cluster.nodes["a"]
    host.terminate()
    job.names = job.names.replace("a", "")
    asked = time.monotonic()
    took_s = job.again(asked)
    assert host.wait(ENDS_S) == 143, "the host did not end as it was asked to"
    job.world = job.cluster.desk.world()
    for name in job.names:
        job.cluster.nodes[name].wait_text("the store answers again")
    assert max(worker.round for worker in job.cluster.desk.workers) == job.world[0].round, "a second round began anew"
    assert not any(worker.restarts for worker in job.world), "somebody was charged"
    return took_s


def returning(job: Job) -> float:
    """Its node is started again, at once or later, and joins the job."""
    killed = job.kill()
    time.sleep(job.rng.choice((0.0, job.rng.uniform(0.0, RETURNS_S))))
    # It waits for others as long as by default, in which they tell it of their job.
    job.cluster.start("z", nnodes=f"1:{job.nodes}", hosts=True, conf={"last_call_quiet": 3})
    job.names += "z"  # it may be there before the others begin again without it
    return job.again(killed)


PHASES: dict[str, Callable[[Job], float]] = {
    phase.__name__.replace("_", " "): phase
    for phase in (running, gathering, stopping, finalising, taking_over, leaving, returning)
}


def trial(phase: str, nodes: int, seed: str, *, one_endpoint: bool) -> tuple[float | None, str]:
    """One job: how long it took to go on, and what went wrong."""
    took_s = None
    with (
        tempfile.TemporaryDirectory(prefix="killed-hosts-") as folder,
        closing(Cluster("c10d", Path(folder), conf={"last_call_quiet": 0.5})) as cluster,
    ):
        try:
            job = Job(cluster, nodes, random.Random(seed), one_endpoint=one_endpoint)
            took_s = PHASES[phase](job)
            job.end()
        except AssertionError as error:
            texts = "\n".join(f"-- {name}:\n{node.text()}" for name, node in cluster.nodes.items())
            return took_s, f"{error}\n{texts}"
    return took_s, ""


def campaign(phases: Sequence[str], sizes: Sequence[int], count: int, seed: int, *, one_endpoint: bool) -> bool:
    """Print a line for each phase and number of nodes. Whether all jobs went on, in time."""
    good = True
    print("| nodes, when | went on to a good end | median | p95 | most |\n|---|---|---|---|---|", flush=True)
    for nodes in sizes:
        for phase in phases:
            times, wrong = [], 0
            for number in range(count):
                took_s, trouble = trial(phase, nodes, f"{seed}.{nodes}.{phase}.{number}", one_endpoint=one_endpoint)
                if trouble:
                    wrong += 1
                    print(
                        f"{phase}, {nodes} nodes, job {number} of seed {seed}: {trouble}", file=sys.stderr, flush=True
                    )
                elif took_s is not None:
                    times.append(took_s)
            times = sorted(times) or [0.0]
            p95 = times[min(len(times) - 1, round(0.95 * len(times)))]
            good = good and not wrong and p95 <= AGAIN_S
            figures = f"{times[len(times) // 2]:.2f} s | {p95:.2f} s | {times[-1]:.2f} s"
            print(f"| {nodes}, {phase} | {count - wrong} of {count} | {figures} |", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=50, help="of each phase and number of nodes")
    parser.add_argument("--nodes", type=int, choices=(3, 4, 5), action="append", help="default: 3 and 5")
    parser.add_argument("--only", choices=tuple(PHASES), action="append", help="phases (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one-endpoint", action="store_true", help="--rdzv-endpoint names the first node alone")
    given = parser.parse_args()
    good = campaign(
        given.only or tuple(PHASES), given.nodes or (3, 5), given.jobs, given.seed, one_endpoint=given.one_endpoint
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
