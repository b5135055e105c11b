"""A job, its nodes and its faults, as data: played twice, a scenario leads to the same events in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..world.job import Job
from ..world.workers import Habit
from .faults import Fault


@dataclass(frozen=True)
class Pace:
    """How slow things are at most, in seconds."""

    local_s: float
    network_s: float
    dying_s: float


@dataclass(frozen=True)
class Founder:
    """A node that is part of the job from its beginning; its agent starts at second `at_s`."""

    name: str
    at_s: float
    nproc: int
    preferred_rank: int | None = None


@dataclass(frozen=True)
class Scenario:
    """All that a seed stands for; one with fewer nodes or faults is a scenario, too."""

    seed: int
    job: Job
    habit: Habit
    pace: Pace
    echo_chance: float = 0.0
    """How likely the death of a worker makes its peers on another node fail."""
    unequal: bool = False
    """Nodes have different numbers of workers."""
    store: str = ""
    """Behind the production drivers: "c10d" or "etcd"; empty: no drivers, messages go straight between the machines."""
    skew_s: float = 0.0
    """By how much the clock of each node differs from that of the node before."""
    founders: tuple[Founder, ...] = ()
    faults: tuple[Fault, ...] = ()
    again: bool = False
    """Once the job has ended, the same happens again on the same store, which must outlive it: etcd."""
    late_bytes: bool = False
    """What was sent on connections that were given up may arrive at any later time."""
    reads_first: bool = False
    """Behind the drivers of etcd: the production election, too."""
    hosts: int = 0
    """As `Conditions.hosts`."""
    nodes: int = 0
    """So many were asked for; 0: the seed alone says how many."""

    def lines(self) -> Iterator[str]:
        """What is in it, for a person."""
        yield f"seed {self.seed}, {self.job}"
        yield f"{self.habit}, {self.pace}, echoes {self.echo_chance}"
        late = "; bytes of abandoned connections arrive late" if self.late_bytes else ""
        late += "; the production election" if self.reads_first else ""
        late += f"; {self.hosts} hosts" if self.hosts else ""
        yield f"store: {self.store or 'none, messages go straight'}; clocks {self.skew_s:g} s apart{late}"
        yield from (
            f"{each.name} joins at {each.at_s:.3f} s with {each.nproc} workers"
            + (f", prefers rank {each.preferred_rank}" if each.preferred_rank is not None else "")
            for each in self.founders
        )
        yield from (str(fault) for fault in self.faults)
        if self.again:
            yield "and the same again, once the job has ended"
