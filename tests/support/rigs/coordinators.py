"""A coordinator that takes over, and the store it reads: fed by hand, one event at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_agent.rendezvous.coordinator import machine
from elastic_agent.rendezvous.coordinator.events import (
    Announce,
    BeatsSeen,
    Effect,
    Elected,
    Event,
    NodeSeen,
)
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.records import NodeRecord, NodeState, Round, RoundPhase
from support.builders import record

LEASE_S = 5.0


@dataclass
class Store:
    """The store's content: each node's newest record, and the newest announcement."""

    records: dict[str, NodeRecord] = field(default_factory=dict)
    announced: Round | None = None


class Coordinator:
    """The coordinator's machine on node `own`, elected with this epoch on this store."""

    def __init__(self, store: Store, own: str, epoch: int, now: float = 0.0, **rules: float) -> None:
        self.store = store
        self.rules = Rules(own=own, **{"min_nodes": 2, "max_nodes": 3, **rules})  # type: ignore[arg-type]
        self.state = Rendezvous()
        self.effects: tuple[Effect, ...] = ()
        self.now = now
        self.step(Elected(epoch, store.announced, tuple(store.records.values())))

    def step(self, *events: Event) -> Coordinator:
        for event in events:
            made = machine.step(self.state, event, self.now, self.rules)
            self.state, self.effects = made.state, made.effects
            for effect in made.effects:
                if isinstance(effect, Announce):
                    self.store.announced = effect.round
        return self

    def publish(self, *records: NodeRecord) -> Coordinator:
        """Nodes publish these records, and the coordinator reads them."""
        for each in records:
            self.store.records[each.node] = each
            self.step(NodeSeen(each))
        return self

    def read(self, *alive: str, steady_s: float = LEASE_S) -> Coordinator:
        """The coordinator reads the leases, of which these are alive."""
        return self.step(BeatsSeen({node: 0 if node in alive else -1 for node in self.state.nodes}, steady_s))

    def successor(self, own: str, **rules: float) -> Coordinator:
        """This coordinator ends, and that node takes over, at 1000 s on its own clock."""
        return Coordinator(self.store, own, self.state.epoch + 1, 1000.0, **rules)


def running(*names: str, **rules: float) -> Coordinator:
    """A coordinator on node a, and round 1 with all of these nodes working."""
    made = Coordinator(Store(), "a", 1, max_nodes=len(names), **rules)
    made.publish(*(record(name) for name in names))
    assert made.state.phase is RoundPhase.RUNNING
    return made.publish(*(record(name, 2, NodeState.WORKING, 1) for name in names))
