"""A seed becomes a job, its nodes and their faults: data that can be printed, saved and repeated.

The timing of processes varies, so a seed repeats what is done and when, not the outcome.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any

LEASE_S = 2.0
HOST = "n0"
"""The node that hosts the store first. In half of the runs (`Plan.followed` is False) its agent gets no faults, only
its workers do: so these show what becomes of other nodes with a host that lives."""

COORDINATOR = "the coordinator"
HOSTING = "the host"
"""The node that hosts a c10d store at that time."""

LAUNCH, SERVED, GATHERING, FINISH = "launch", "served", "gathering", "finish"
"""Moments from which starts and faults are timed, beside `round 1` and so on: the host is started; its store answers
(c10d); all nodes that were started at the launch have joined (etcd); the first worker is ordered to finish."""

SHORT_FREEZES_S = (0.5, 1.0)
"""How long an agent that may host the store is frozen: less than a lease, which disturbs nobody."""
READ_S = 1.5
"""So much later the host is killed in half of the rounds: all have read by then that they have begun."""
TAKES_OVER_S = 0.8
"""Within this time behind a fault of the host the next one is killed, too."""
TAKEN_OVER_S = 8.0
"""store_grace where another node may host the store: by then it does, on a busy machine, too."""

GOES_ON_S = 9.0
"""How long workers work then in half of the jobs: these are over their faults, and must succeed."""


@dataclass(frozen=True)
class Start:
    """A node that is started `after_s` after `anchor`."""

    name: str
    anchor: str
    after_s: float
    nproc: int
    ignores_term: bool
    finishes_late_s: float
    """Its workers need this much longer than the job's work."""


@dataclass(frozen=True)
class Fault:
    """A fault of one node or of the servers, `after_s` after `anchor`."""

    ident: int
    anchor: str
    after_s: float
    kind: str
    """kill, freeze or term for the agent, crash for one of its workers; on etcd also those of `etcd/plan.py`."""
    node: str
    """Empty: the servers of the store. COORDINATOR, HOSTING: the node that coordinates, or hosts, at that time."""
    for_s: float = 0.0
    """How long it lasts; 0 if it is never undone."""
    how: str = ""
    """The order to a worker that crashes."""


@dataclass(frozen=True)
class Plan:
    """One run. Times in seconds."""

    seed: int
    min_nodes: int
    max_nodes: int
    max_restarts: int
    join_timeout_s: float
    last_call_s: float
    quiet_s: float
    store_grace_s: float
    barrier_s: float
    grace_s: float
    work_s: float
    """From the start of the first round's first worker until workers begin to finish."""
    echo: float
    """Probability that a worker fails because a peer exited."""
    starts: tuple[Start, ...]
    faults: tuple[Fault, ...]
    store: str = "c10d"
    """Or `etcd`: the run has an etcd cluster of its own."""
    lease_s: float = LEASE_S
    beat_s: float = 0.3
    listed: bool = False
    """On c10d: `--rdzv-endpoint` lists all nodes that are there first, and faults hit the host."""
    one_endpoint: bool = False
    """The same, but it names the first node alone."""

    @property
    def followed(self) -> bool:
        """Whether faults hit the node that hosts the store, so that another one has to follow it."""
        return self.listed or self.one_endpoint

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Plan:
        """The plan from what `as_dict` returned."""
        starts = tuple(Start(**each) for each in saved["starts"])
        return cls(**{**saved, "starts": starts, "faults": tuple(Fault(**each) for each in saved["faults"])})


def draw(seed: int) -> Plan:
    """The plan of this seed. Of half of the seeds faults hit the host, too; of half of these all nodes are listed."""
    rng = random.Random(f"{seed}: the host")
    plan = _draw(seed)
    if rng.random() < 0.5:
        return plan
    plan = _listed(rng, plan)
    return plan if rng.random() < 0.5 else replace(plan, listed=False, one_endpoint=True)


def _draw(seed: int) -> Plan:
    rng = random.Random(seed)
    max_nodes = rng.randint(2, 4)
    first = max(2, max_nodes - rng.choice((0, 0, 1)))
    starts = [_start(rng, f"n{index}", LAUNCH, index and rng.random() * 0.8) for index in range(first)]
    faults: list[Fault] = []
    for _ in range(rng.choice((0, 1, 2, 2, 3, 3))):
        anchor, after_s = _moment(rng)
        _add_fault(rng, starts, faults, anchor, after_s)
        if rng.random() < 0.3:  # two at once
            _add_fault(rng, starts, faults, anchor, after_s)
    return Plan(
        seed=seed,
        min_nodes=rng.choice((1, 1, 2, max_nodes)),
        max_nodes=max_nodes,
        max_restarts=rng.choice((0, 1, 1, 3)),
        join_timeout_s=rng.choice((4.0, 7.0)),
        last_call_s=rng.choice((0.6, 2.0)),
        quiet_s=rng.choice((0.2, 0.3, 0.6)),
        store_grace_s=rng.choice((1.5, 3.0)),
        barrier_s=rng.choice((1.5, 4.0, 10.0)),
        grace_s=rng.choice((0.4, 1.0)),
        work_s=rng.choice((0.8, 1.2, 2.0)),
        echo=rng.choice((0.0, 0.7, 1.0)),
        starts=tuple(starts),
        faults=tuple(faults),
    )


def _listed(rng: random.Random, plan: Plan) -> Plan:
    """The same job, with all of its first nodes in `--rdzv-endpoint`. They start once the first one serves, as another
    could take its port on this one machine. No freeze takes a lease: a host that does not answer for longer, because it
    is frozen, cut off or without power, is replaced by nobody yet, and any node may be the host."""
    starts = [
        replace(each, anchor=SERVED) if each.anchor == LAUNCH and each.name != HOST else each for each in plan.starts
    ]
    faults: list[Fault] = []
    for fault in plan.faults or (Fault(0, "round 1", 0.5, "kill", HOSTING),):
        hit = fault.kind != "crash" and rng.random() < 0.6
        anchor = SERVED if fault.anchor == LAUNCH and fault.kind != "crash" else fault.anchor
        for_s = rng.choice(SHORT_FREEZES_S) if fault.kind == "freeze" else 0.0
        late_s = rng.choice((0.0, READ_S)) if hit and anchor.startswith("round") else 0.0
        fault = replace(fault, after_s=fault.after_s + late_s)
        node = HOSTING if hit else fault.node
        faults.append(replace(fault, ident=len(faults), anchor=anchor, node=node, for_s=for_s))
        if not hit or fault.kind == "freeze":
            continue
        if rng.random() < 0.3:  # the next one, during its take-over
            after_s = round(fault.after_s + rng.uniform(0.0, TAKES_OVER_S), 3)
            faults.append(Fault(len(faults), anchor, after_s, "kill", HOSTING))
        if rng.random() < 0.5:  # its node is started again, and has its endpoint, which is free by then
            _newcomer(rng, starts, anchor, fault.after_s + rng.choice((0.2, 1.0, 3.0)))
    return replace(
        plan,
        starts=tuple(starts),
        faults=tuple(faults),
        store_grace_s=TAKEN_OVER_S,
        work_s=rng.choice((plan.work_s, GOES_ON_S)),
        listed=True,
    )


def _start(rng: random.Random, name: str, anchor: str, after_s: float) -> Start:
    return Start(
        name=name,
        anchor=anchor,
        after_s=round(after_s, 3),
        nproc=rng.choice((1, 1, 1, 2)),
        ignores_term=rng.random() < 0.15,
        finishes_late_s=rng.choice((0.0, 0.1, 0.5, 2.0)),
    )


def _moment(rng: random.Random) -> tuple[str, float]:
    """While nodes gather, while a round runs, or while the job finishes."""
    anchor = rng.choice((LAUNCH, SERVED, SERVED, "round 1", "round 1", "round 2", FINISH))
    return anchor, round(rng.random() * (2.0 if anchor == LAUNCH else 1.0), 3)


def _add_fault(rng: random.Random, starts: list[Start], faults: list[Fault], anchor: str, after_s: float) -> None:
    kind = rng.choice((_kill, _kill, _freeze, _term, _crash, _crash, _crash, _join))
    kind(rng, starts, faults, anchor, after_s)


def _node_without_store(rng: random.Random, starts: list[Start]) -> str:
    return rng.choice([start.name for start in starts if start.name != HOST])


def _newcomer(rng: random.Random, starts: list[Start], anchor: str, after_s: float) -> None:
    starts.append(_start(rng, f"n{len(starts)}", anchor, after_s))


def _kill(rng: random.Random, starts: list[Start], faults: list[Fault], anchor: str, after_s: float) -> None:
    faults.append(Fault(len(faults), anchor, after_s, "kill", _node_without_store(rng, starts)))
    if rng.random() < 0.4:
        _newcomer(rng, starts, anchor, after_s + rng.random() * 3.0)


def _term(rng: random.Random, starts: list[Start], faults: list[Fault], anchor: str, after_s: float) -> None:
    faults.append(Fault(len(faults), anchor, after_s, "term", _node_without_store(rng, starts)))
    if rng.random() < 0.4:
        _newcomer(rng, starts, anchor, after_s + rng.random() * 3.0)


def _freeze(rng: random.Random, starts: list[Start], faults: list[Fault], anchor: str, after_s: float) -> None:
    for_s = rng.choice((1.0, 1.0, 1.0, 1.8, 1.8, 3.0, 3.0, 3.0, 3.0, 5.0, 5.0, 20.0))
    faults.append(Fault(len(faults), anchor, after_s, "freeze", _node_without_store(rng, starts), for_s=for_s))


def _crash(rng: random.Random, starts: list[Start], faults: list[Fault], anchor: str, after_s: float) -> None:
    how = rng.choice(("exit 3", "kill 9", "raise planned"))
    faults.append(Fault(len(faults), anchor, after_s, "crash", rng.choice(starts).name, how=how))


def _join(rng: random.Random, starts: list[Start], faults: list[Fault], anchor: str, after_s: float) -> None:
    _newcomer(rng, starts, anchor, after_s)
