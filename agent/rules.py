"""The rules of both machines, from what the launcher specifies."""

from __future__ import annotations

import os

from ..rendezvous.coordinator.state import DEFAULT_SETTLE_S
from ..rendezvous.coordinator.state import Rules as RendezvousRules
from .lifecycle.state import Rules
from .spec import RendezvousSpec, WorkerSpec

GIVES_UP_S = 10.0
"""What a node gets to give up on its store and to end its workers, beyond the times for both."""


def node_rules(node: str, name: str, workers: WorkerSpec, spec: RendezvousSpec) -> Rules:
    """Of this node's lifecycle. `node`: its identity; `name`: the same for people."""
    return Rules(
        node=node,
        name=name,
        role=workers.role,
        preferred_rank=spec.node_rank,
        restarts=workers.restarts,
        jitter=tuple(byte / 255 for byte in os.urandom(16)),
        grace_s=workers.grace_s,
        join_timeout_s=spec.join_timeout_s,
        store_grace_s=spec.store_grace_s,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        endpoint=spec.endpoint,
        charge_local=workers.charge == "local",
        settle_s=spec.settle_s,
        term_settle_s=workers.term_settle_s,
        leftovers=workers.leftovers,
        leftover_s=workers.leftover_s,
        control=workers.control,
        fences=spec.fences,
        elects=spec.elects,
    )


def alone_s(grace_s: float, spec: RendezvousSpec) -> float:
    """How long workers run on without the store at most: until this node gives up on it, and has stopped them."""
    return spec.store_grace_s + grace_s + GIVES_UP_S


def rendezvous_rules(node: str, workers: WorkerSpec, spec: RendezvousSpec) -> RendezvousRules:
    """Of the coordinator, should this node be it."""
    return RendezvousRules(
        own=node,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        join_timeout_s=spec.join_timeout_s,
        last_call_timeout_s=spec.last_call_timeout_s,
        quiet_s=spec.quiet_s,
        beat_s=spec.beat_s,
        lease_s=spec.lease_s,
        exit_barrier_s=spec.exit_barrier_s,
        static=spec.static,
        settles=spec.settle_s > 0,
        settle_s=spec.settle_s or DEFAULT_SETTLE_S,
        fences=spec.fences,
        hosted=not spec.elects,
        succeeds=spec.succeeds,
        outvotes=spec.outvotes,
        alone_s=alone_s(workers.grace_s, spec),
    )
