"""A seed becomes a job of four nodes on three etcd servers, and the faults of either.

The first seeds are the grid: each kind of fault in each phase, for as long as a real one may last. The others draw one
to three faults, mostly shorter ones, at any time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..plan import COORDINATOR, FINISH, GATHERING, LAUNCH, Fault, Plan, Start

NODES = 4
LEASE_S = 5.0
STORE_GRACE_S = 45.0
"""Longer than any fault of the store, so that none disturbs a worker."""

SERVERS = {
    "leader killed": 3.0,
    "leader stopped": 20.0,
    "quorum lost": 30.0,
    "all restarted": 1.0,
    "member replaced": 0.0,
    "compaction": 10.0,
    "no space": 10.0,
    "auth revoked": 10.0,
}
"""Faults of servers, and for how many seconds they last in the grid."""
OF_NODES = {"freeze": 10.0, "cut": 10.0, "coordinator freeze": 10.0, "coordinator kill": 0.0, "kill": 0.0}
"""Faults of nodes, likewise; a freeze and a cut outlast the lease."""
KINDS = SERVERS | OF_NODES

PHASES = ("joining", "running", "finalising")
ANCHORS = {"joining": GATHERING, "running": "round 1", "finalising": FINISH}
GRID = tuple((kind, phase) for phase in PHASES for kind in KINDS)
AFTERWARDS_S = 10.0
"""From the end of the last fault until workers begin to finish: long enough for a lost node to be back, and for a node
that died while the servers had no leader to be lost: its lease starts again with the next leader."""
LATE_S = 1.5
"""A fault of a phase begins within this time after the phase."""


def draw(seed: int) -> Plan:
    """The plan of this seed: one of the grid, or a random one."""
    rng = random.Random(seed)
    if 0 <= seed < len(GRID):
        kind, phase = GRID[seed]
        return _plan(rng, seed, [_fault(rng, 0, kind, phase, KINDS[kind])])
    faults: list[Fault] = []
    phases = sorted(rng.choices(PHASES, k=rng.choice((1, 1, 2, 3))), key=PHASES.index)
    for phase in phases:
        kind = rng.choice([kind for kind in KINDS if all(_fits(kind, fault.kind) for fault in faults)])
        faults.append(_fault(rng, len(faults), kind, phase, round(rng.uniform(0.3, 0.8) * KINDS[kind], 2)))
    return _plan(rng, seed, faults)


def _fits(kind: str, before: str) -> bool:
    """Whether a job may have both: servers that are down cannot be replaced; at least two nodes have no fault."""
    kind = kind.removeprefix("coordinator ")
    return (kind in SERVERS) != (before in SERVERS) or (kind in SERVERS and "compaction" in (kind, before))


def _fault(rng: random.Random, ident: int, kind: str, phase: str, for_s: float) -> Fault:
    what = kind.removeprefix("coordinator ")
    node = "" if kind in SERVERS else COORDINATOR if what != kind else f"n{rng.randrange(1, NODES - 1)}"
    anchor = ANCHORS[phase]
    if phase == "joining" and kind in SERVERS and kind != "auth revoked":
        anchor = rng.choice((LAUNCH, GATHERING))  # a node that has no permission when it joins is refused, and exits
    return Fault(ident, anchor, round(rng.uniform(0.0, LATE_S), 3), what, node, for_s)


def _plan(rng: random.Random, seed: int, faults: Sequence[Fault]) -> Plan:
    disturbed = any(fault.node for fault in faults)
    late_s = max([0.0, *(fault.after_s + fault.for_s for fault in faults if fault.anchor == FINISH)])
    work_s = max([0.0, *(fault.after_s + fault.for_s for fault in faults if fault.anchor != FINISH)])
    revoked_s = max([0.0, *(each.after_s + each.for_s + LATE_S for each in faults if each.kind == "auth revoked")])
    # No node joins while the permission is revoked.
    revoked_later = any(each.kind == "auth revoked" and each.anchor != GATHERING for each in faults)
    starts = [
        Start(
            name=f"n{index}",
            anchor=LAUNCH if index < NODES - 1 or revoked_later else GATHERING,
            after_s=round(rng.random() * LATE_S + (revoked_s if index == NODES - 1 and not revoked_later else 0.0), 3),
            nproc=rng.choice((1, 1, 2)),
            ignores_term=False,
            finishes_late_s=round(0.0 if index == 0 else late_s + AFTERWARDS_S * bool(late_s) + rng.random(), 3),
        )
        for index in range(NODES)
    ]
    return Plan(
        seed=seed,
        min_nodes=2 if disturbed else NODES,
        max_nodes=NODES,
        max_restarts=0,
        join_timeout_s=90.0,
        last_call_s=8.0,
        quiet_s=3.0,
        store_grace_s=STORE_GRACE_S,
        barrier_s=120.0,
        grace_s=1.0,
        work_s=round(work_s + (AFTERWARDS_S if work_s else 0.5), 3),
        echo=0.0,
        starts=tuple(starts),
        faults=tuple(faults),
        store="etcd",
        lease_s=LEASE_S,
        beat_s=1.0,
    )
