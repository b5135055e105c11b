"""The nodes that the coordinator knows: one value for each, and which of them have a trait. Frozen values.

A job may have ten thousand nodes, and each read of the store brings the records of a few of them. So what a decision
asks of all nodes (whether one is lost, how many wait) is kept here, changes with the nodes that change, and costs no
look at the others.
"""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView

from ...proto.frozen import dataclass
from ..records import NodeRecord, NodeState

WAITING, WORKING, BROKEN, STOPPING, FINISHED, LEAVING, ENDED = NodeState
# As names of this module: Python up to 3.11 takes ten times as long to find a member in its Enum, and the traits of a
# node are found anew at each of its records.

WORKERS_MAY_LIVE = (WORKING, BROKEN, STOPPING, LEAVING)
"""States of a node that may still have workers of an earlier round."""

GOING = (LEAVING, ENDED)
"""States of a node that will not be in another round."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One node, as the coordinator sees it."""

    record: NodeRecord
    """Its newest record."""
    arrival: int
    """Order in which nodes were first seen."""
    waiting_since: float
    """When it last began to wait for a round."""
    heard_at: float
    """When its heartbeat counter last changed, on the coordinator's clock; later by the time that counts against no
    node."""
    alive_at: float = float("-inf")
    """When it was last seen to be alive: its counter changed, its lease was held, or it published a record."""
    count: int = -1
    """Its heartbeat counter; -1 before the first reading."""
    lost: bool = False
    """Its lease ran out. A newer record or heartbeat brings it back."""
    placed: int = 0
    """The last round that it was given a place in. Until it publishes a record of that round, it may be starting
    its workers."""
    since: float = 0.0
    """When its record last came to be of another state or round, or the node was lost no more: what all others wait for
    it to report is due some time after that."""
    overdue: bool = False
    """It is lost although it sends heartbeats, as it did not report in time (`deadlines.report_due`). Only a newer
    record brings it back."""
    lost_at: float = 0.0
    """When it was found to be lost, where it is."""
    arrived_at: float = float("-inf")
    """Its newest heartbeat arrived no earlier than then: a reading that was asked for then did not have it."""
    reached_at: float = float("-inf")
    """The same of the one before, which has been acknowledged, as another followed."""
    fenced_at: float = 0.0
    """When a record was first read with its `fenced_round`."""

    @property
    def unaware(self) -> bool:
        """It may not have received the round that it has a place in."""
        return self.record.state is WAITING and self.record.round < self.placed

    @property
    def waiting(self) -> bool:
        """It is ready for a place in the next round."""
        return not self.lost and self.record.state is WAITING and not self.unaware

    @property
    def may_have_workers(self) -> bool:
        """Workers of an earlier round may run there: no new round starts before its record says they are gone."""
        return not self.lost and (self.record.state in WORKERS_MAY_LIVE or self.unaware)

    @property
    def pauses(self) -> bool:
        """It waits after a failure, for a time that it has set itself, before it asks for another round."""
        return self.record.state is BROKEN and self.record.all_exits_reported

    @property
    def gone(self) -> bool:
        """It will not be in another round, unless it comes back."""
        return self.lost or self.record.state in GOING

    @property
    def dead(self) -> bool:
        """Its agent has ended or is lost."""
        return self.lost or self.record.state is ENDED

    @property
    def finished(self) -> bool:
        """All its workers exited 0."""
        return self.record.finished


TRAITS = tuple(1 << bit for bit in range(11))
READY, MAY_HAVE_WORKERS, UNAWARE, HAS_FINISHED, LOST, ALIVE, ABLE, MAY_END, ANSWERS, CHARGES, SAW_ENDED = TRAITS
"""Of a node, as `Seen` has it: `waiting`; `may_have_workers`; `unaware`, and not lost; `finished`; `lost`; not `dead`;
neither `gone` nor `finished`. Its record may end the round that it is in: a worker failed there, or it is lost, leaves
or has given up its place. It may have answered the end of its round. It counts its restarts itself. It has found that
agents on its host have ended."""


def traits(seen: Seen) -> int:
    """Those of this node. They follow from its record, `lost` and `placed` alone."""
    record = seen.record
    state, lost, unaware = record.state, seen.lost, seen.unaware
    back = state is WAITING and not unaware
    found = SAW_ENDED if record.ended_here else 0
    if seen.waiting:
        found |= READY
    if seen.may_have_workers:
        found |= MAY_HAVE_WORKERS
    if lost:
        found |= LOST
    elif unaware:
        found |= UNAWARE
    if not seen.dead:
        found |= ALIVE
    if seen.finished:
        found |= HAS_FINISHED
    elif not seen.gone:
        found |= ABLE
    if back or lost or state in GOING:
        found |= MAY_END | ANSWERS
    else:
        if state is STOPPING or record.failure is not None:
            found |= MAY_END
        if record.all_exits_reported or seen.finished:
            found |= ANSWERS
    if record.charge_local and record.failure is not None:
        found |= CHARGES
    return found


class Nodes(Mapping[str, Seen]):
    """By identity, in the order in which they were first seen. Whoever has copied it may `put` nodes into the copy
    before anybody else sees it; from then on it does not change."""

    __slots__ = ("_having", "_seen", "_shared", "_traits")

    def __init__(self, seen: Iterable[Seen] = ()) -> None:
        self._seen: dict[str, Seen] = {}
        self._traits: dict[str, int] = {}
        self._having: dict[int, set[str]] = {trait: set() for trait in TRAITS}
        self._shared = 0
        """The traits whose sets belong to the value that this was copied from, too."""
        for each in seen:
            self.put(each)

    def copy(self) -> Nodes:
        made = Nodes.__new__(Nodes)
        made._seen, made._traits = self._seen.copy(), self._traits.copy()
        made._having, made._shared = self._having.copy(), sum(TRAITS)
        return made

    def put(self, seen: Seen) -> None:
        """Add this node, or put it in the place of what was known of it."""
        node, record = seen.record.node, seen.record
        old = self._seen.get(node)
        self._seen[node] = seen
        if old is not None and old.record is record and old.lost is seen.lost and old.placed == seen.placed:
            return
        now = traits(seen)
        changed = now ^ self._traits.get(node, 0)
        self._traits[node] = now
        while changed:
            trait = changed & -changed
            changed ^= trait
            if self._shared & trait:
                self._having[trait] = self._having[trait].copy()
                self._shared ^= trait
            (self._having[trait].add if now & trait else self._having[trait].remove)(node)

    def with_all(self, changed: Iterable[Seen]) -> Nodes:
        """These nodes instead of what was known of them."""
        made = self.copy()
        for each in changed:
            made.put(each)
        return made

    # -- which have a trait -------------------------------------------------------------------------------------------

    def those(self, trait: int) -> Collection[str]:
        """Identities of the nodes with this trait, in no order."""
        return self._having[trait]

    def any_order(self, trait: int) -> Iterator[Seen]:
        """The nodes with this trait, in no order: for what depends on none."""
        return map(self._seen.__getitem__, self._having[trait])

    def having(self, trait: int) -> list[Seen]:
        """The nodes with this trait, in the order in which they were first seen."""
        return sorted(self.any_order(trait), key=lambda seen: seen.arrival)

    # -- as a mapping -------------------------------------------------------------------------------------------------

    def __getitem__(self, node: str) -> Seen:
        return self._seen[node]

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, node: object) -> bool:
        return node in self._seen

    def __repr__(self) -> str:
        return f"Nodes({list(self._seen.values())!r})"

    def keys(self) -> KeysView[str]:
        return self._seen.keys()

    def values(self) -> ValuesView[Seen]:
        return self._seen.values()

    def items(self) -> ItemsView[str, Seen]:
        return self._seen.items()
