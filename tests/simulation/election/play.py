"""One seed: a job with faults at random times. `python -m tests.simulation.election.play FIRST COUNT` plays many."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable

from elastic_agent.proto.frozen import replace
from elastic_agent.rendezvous.election.state import Phase

from .cluster import Broken, Cluster
from .hosting import Host

LASTS_S = 40.0
CALM_S = 8.0
"""Without new faults at the end."""


class Fault:
    """One that begins now. `which` chooses among nodes, `variant` among kinds; both from 0 to 1."""

    def __init__(self, cluster: Cluster, which: float, lasts_s: float, variant: float) -> None:
        self.cluster, self.which, self.lasts_s, self.variant = cluster, which, lasts_s, variant
        self.living = [ident for ident, node in cluster.nodes.items() if node.alive]
        self.one = self.living[int(which * len(self.living))]
        self.hosts = hosts(cluster)

    def kill_host(self) -> None:
        for host in self.hosts:
            self.cluster.die(host)

    def kill_host_as_a_round_begins(self) -> None:
        for _ in range(int(self.variant * 8)):
            arrive(self.cluster)
        self.cluster.dies_beginning = True

    def kill_host_and_the_next(self) -> None:
        self.cluster.dies_elected += 1
        self.kill_host()

    def kill(self) -> None:
        self.cluster.die(self.one)

    def lose_the_hosts_power(self) -> None:
        for host in self.hosts:
            self.cluster.lose_power(host)

    def lose_power(self) -> None:
        self.cluster.lose_power(self.one)

    def freeze(self) -> None:
        self.cluster.freeze(self.one, self.lasts_s)

    def freeze_host(self) -> None:
        for host in self.hosts:
            self.cluster.freeze(host, self.lasts_s)

    def fail(self) -> None:
        for host in self.hosts:
            self.cluster.hosted(host).fail()

    def cut_one(self) -> None:
        self._cut({self.one})

    def cut(self) -> None:
        self._cut({one for one in self.living if random.Random(f"{one} {self.which}").random() < 0.5})

    def _cut(self, side: set[str]) -> None:
        pairs = {(a, b) for a in side for b in set(self.living) - side}
        back = {(b, a) for a, b in pairs}
        gone = pairs if self.variant < 0.2 else back if self.variant < 0.4 else pairs | back
        gone -= self.cluster.cut
        self.cluster.cut |= gone
        self.cluster.at(self.lasts_s, self.cluster.cut.difference_update, gone)


KINDS: tuple[Callable[[Fault], None], ...] = (
    Fault.kill_host,
    Fault.kill_host_as_a_round_begins,
    Fault.kill_host_as_a_round_begins,
    Fault.kill_host_and_the_next,
    Fault.kill,
    Fault.cut,
    Fault.cut,
    Fault.cut_one,
    Fault.freeze,
    Fault.freeze_host,
    Fault.fail,
)
WITHOUT_POWER: tuple[Callable[[Fault], None], ...] = (Fault.lose_the_hosts_power, Fault.lose_power)
DEADLY = (*WITHOUT_POWER, Fault.kill_host, Fault.kill_host_and_the_next, Fault.kill, Fault.fail)
"""No node that is silent lives."""


def job(seed: int, nodes: int, *, outvotes: bool = False) -> Cluster:
    """A job whose nodes begin together; the first hosts."""
    cluster = Cluster(seed, outvotes=outvotes)
    for number in range(nodes):
        cluster.join(f"n{number}", "n0")
    first = cluster.nodes["n0"]
    first.host = Host(cluster, first, 1, 0, None)
    first.voter = replace(first.voter, phase=Phase.SERVING)  # it was not elected
    first.host.turn()
    return cluster


def play(
    seed: int, *, leaves: bool = False, outvotes: bool = False, kinds: tuple[Callable[[Fault], None], ...] = KINDS
) -> Cluster:
    """Play it. `leaves`: some hosts leave. `outvotes`: a host that is silent is replaced. `kinds`: of faults.
    Raises Broken, naming the seed."""
    rng = random.Random(~seed)
    cluster = job(seed, rng.choice((2, 3, 3, 4, 5, 5, 7, 9)), outvotes=outvotes)
    cluster.hosted("n0").most = rng.choice((3, 5, 99))
    for _ in range(rng.randint(1, 10)):
        _plan(cluster, rng, rng.uniform(2.0, LASTS_S), kinds)
    for _ in range(rng.choice((0, 0, 1, 2, 6))):
        cluster.at(rng.uniform(2.0, LASTS_S), arrive, cluster)
    if rng.random() < 0.5:  # several at once, as when a switch or a rack is lost
        at = rng.uniform(3.0, LASTS_S)
        for _ in range(rng.randint(2, 4)):
            _plan(cluster, rng, at + rng.uniform(0.0, 2.0), kinds)
    for _ in range(rng.randint(1, 4) if leaves else 0):
        cluster.at(rng.uniform(2.0, LASTS_S), leave, cluster)
    try:
        cluster.run(LASTS_S + CALM_S)
    except Broken as why:
        raise Broken(f"seed {seed}: {why}") from why
    return cluster


def hosts(cluster: Cluster) -> list[str]:
    """Nodes that serve a store."""
    return [ident for ident, node in cluster.nodes.items() if node.alive and node.host is not None]


def arrive(cluster: Cluster) -> None:
    """A new node comes."""
    if serving := hosts(cluster):
        cluster.join(f"n{len(cluster.nodes)}", serving[0])


def leave(cluster: Cluster) -> None:
    """Who hosts now leaves."""
    for host in hosts(cluster):
        cluster.leave(host)


def _plan(cluster: Cluster, rng: random.Random, at: float, kinds: tuple[Callable[[Fault], None], ...]) -> None:
    kind, which, variant = rng.choice(kinds), rng.random(), rng.random()
    cluster.at(at, _begin, cluster, kind, which, rng.choice((0.3, 2.0, 4.0, 6.0, 15.0)), variant)


def _begin(cluster: Cluster, kind: Callable[[Fault], None], which: float, lasts_s: float, variant: float) -> None:
    if any(node.alive for node in cluster.nodes.values()):
        cluster.reached[kind.__name__.replace("_", " ")] += 1
        kind(Fault(cluster, which, lasts_s, variant))


def main() -> None:
    """Play so many, and print what happened in them."""
    first, many = int(sys.argv[1]), int(sys.argv[2])
    reached: Counter[str] = Counter()
    for seed in range(first, first + many):
        reached += play(seed).reached
    sys.stdout.write(f"{many} jobs without a broken promise\n")
    sys.stdout.writelines(f"{times:8d}  {what}\n" for what, times in sorted(reached.items()))


if __name__ == "__main__":
    main()
