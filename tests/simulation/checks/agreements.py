"""What is asked of all ranks: that they act at one step, that all of it is done or refused in time, and once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle import events as agent_events
from elastic_agent.agent.lifecycle.state import Node, Phase
from elastic_agent.rendezvous.agreements import HOLDS, STOPS, Act, Agreement
from elastic_agent.rendezvous.coordinator.state import CLOSED, DEFAULT_SETTLE_S, RUNNING, Rendezvous
from elastic_agent.rendezvous.driver import events as store_events
from elastic_agent.rendezvous.failures import Ending, EndKind

from .invariants import ACTED_UPON, ALL_ACTED, ONE_STEP, REPEATS_NOTHING, SAVED_ONCE
from .liveness import SLACK_S
from .restarts import ROUNDING_S

if TYPE_CHECKING:
    from ..world.node import SimNode
    from ..world.ranks import Ranks
    from .checkers import Checkers

PLANNED = (EndKind.ARRIVAL, EndKind.DEPARTURE, EndKind.PLANNED)
"""How a round may end behind a checkpoint of all ranks."""
Asked = tuple[str, Act, str]
"""A node, an act and a label: a node asks for these once at a time."""


class Agreements:
    """What nodes have asked for, and what ranks have done."""

    def __init__(self, truth: Checkers) -> None:
        self._truth = truth
        self.waiting: dict[Asked, tuple[float, int]] = {}
        """What is neither done nor refused: since when it could be, and in which round."""
        self._asked_for: set[Act] = set()
        self._at: dict[tuple[int, int], int] = {}
        """By round and number of an agreement: its boundary, once a node has acted on it."""
        self._acted: set[tuple[int, int, str]] = set()
        """Round, number, node."""
        self._cannot: set[tuple[int, int]] = set()
        """Round and number of agreements to which a node answered that workers have no boundaries."""
        self._served: set[tuple[str, int]] = set()
        """Node and number of requests that an agreement served that is over."""
        self._saved: set[tuple[str, int]] = set()
        """Those by which all ranks have saved."""
        self._planned: dict[int, int] = {}
        """Rounds that ended behind a checkpoint of all ranks, and its boundary."""

    def was_asked_for(self, act: Act) -> bool:
        """By any node, ever."""
        return act in self._asked_for

    # -- a node --------------------------------------------------------------------------------------------------------

    def asks(self, node: SimNode, act: Act, label: str) -> None:
        self._truth.world.reached.note(f"{act.value} was asked for")
        self._asked_for.add(act)
        self.waiting.setdefault((node.ident, act, label), (self._truth.world.now, 0))

    def stepped(self, node: SimNode, before: Node, event: agent_events.Event) -> None:
        """A node that asks for something has taken an event."""
        after = node.state
        last = after.phase is Phase.ENDING
        if isinstance(event, store_events.RoundSeen) and event.round.phase is not CLOSED and not last:
            kept = [each for each in after.requests if (node.ident, each.number) in event.round.served]
            self._truth.need(not kept, ACTED_UPON, f"{node.ident} still asks for {kept}")
        if isinstance(event, agent_events.ActAsked):
            stands = any((request.act, request.label) == (event.act, event.label) for request in after.requests)
            refused = "not asked for" in after.because or after.phase is Phase.ENDING
            self._truth.need(stands or refused, ACTED_UPON, f"{node.ident} dropped {event.act.value} {event.label}")
            if not stands:
                self.waiting.pop((node.ident, event.act, event.label), None)
        for request in before.requests:
            if request not in after.requests:
                served = (node.ident, request.number) in self._served
                self._truth.need(served, ACTED_UPON, f"{node.ident} forgets {request}")
                self.waiting.pop((node.ident, request.act, request.label), None)
                # One after the other: the next one's time begins now.
                self.waiting = {asked: (self._truth.world.now, number) for asked, (_, number) in self.waiting.items()}

    def cannot(self, node: SimNode, agreement: Agreement) -> None:
        """Workers of this node have no boundaries (yet)."""
        self._cannot.add((agreement.round, agreement.number))

    def decided(self, node: SimNode, agreement: Agreement, ranks: Ranks) -> None:
        """A node lets its workers act."""
        page, need = ranks.pages.get(node.ident), self._truth.need
        if not agreement.at or page is None or page.shown != agreement.number or not page.nursery.live:
            return  # given up, of another round, or without a worker that could act
        at = self._at.setdefault((agreement.round, agreement.number), agreement.at)
        need(at == agreement.at, ONE_STEP, f"{node.ident} acts at {agreement.at}, another at {at}")
        for name, other in ranks.pages.items():
            if other.nursery.live and other.nursery.ranks is ranks:
                need(other.shown >= agreement.number, ONE_STEP, f"{name} was not asked about {agreement}")
                late = other.shown == agreement.number and other.bound > agreement.at
                need(not late, ONE_STEP, f"{name} answered {other.bound} to {agreement}")
        furthest = ranks.furthest()
        need(furthest <= agreement.at + ROUNDING_S, ONE_STEP, f"a rank is at {furthest:.3f}: {agreement}")

    def acted(self, node: SimNode, agreement: Agreement) -> None:
        """All workers of a node have done what was agreed on."""
        self._acted.add((agreement.round, agreement.number, node.ident))

    def stops(self, node: SimNode) -> None:
        """A node stops its workers."""
        self._repeats(node.nursery.round, node.nursery.ranks)

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def coordinated(self, before: Rendezvous, after: Rendezvous) -> None:
        agreement, known = after.agreement, before.agreement
        if agreement is None or not agreement.over or agreement is known:
            return
        if known is not None and known.over and known.number == agreement.number:
            return
        self._served.update(agreement.requests)
        too_long = self._too_long(after)
        if agreement.at and not too_long:
            self._all_acted(before, after, agreement)
        elif not too_long:
            told = (agreement.round, agreement.number) in self._cannot or not self._steps
            self._truth.need(told, ALL_ACTED, f"{agreement} was given up")
            self._truth.world.reached.note("a request was given up")

    def closed(self, after: Rendezvous) -> None:
        """The job ends by request; what its workers do before that is not cut short."""
        agreement = after.agreement
        if agreement is None or agreement.round != after.number or not agreement.at or self._too_long(after):
            return
        if agreement.act in STOPS and after.because == f"{agreement.because}; all workers exited 0":
            self._have_acted(after, after, agreement)

    def _have_acted(self, before: Rendezvous, after: Rendezvous, agreement: Agreement) -> None:
        """`before`: with the members of its round."""
        missing = [
            member.node
            for member in before.members
            if (agreement.round, agreement.number, member.node) not in self._acted
            and not after.nodes[member.node].finished
        ]
        self._truth.need(not missing or not self._steps, ALL_ACTED, f"{missing} have not: {agreement}")

    def _all_acted(self, before: Rendezvous, after: Rendezvous, agreement: Agreement) -> None:
        self._have_acted(before, after, agreement)
        refused = after.because.startswith("not restarted, as ")  # where too few nodes would remain for a round
        restarts = after.phase is not RUNNING or bool(after.newcomers()) or refused
        self._truth.need(agreement.act is not Act.RESTART or restarts, ACTED_UPON, f"the round goes on: {agreement}")
        if agreement.act is Act.SAVE:
            twice = self._saved & set(agreement.requests)
            self._truth.need(not twice, SAVED_ONCE, f"{sorted(twice)} are served by {agreement}")
            self._saved.update(agreement.requests)
            self._truth.world.reached.note("all ranks saved on request")

    @property
    def _steps(self) -> bool:
        """Whether workers come to boundaries one by one."""
        return any(node.nursery.habit.step_s for node in self._truth.world.nodes.values())

    def _too_long(self, after: Rendezvous) -> bool:
        leader = self._truth.world.leader
        limit_s = self._truth.world.job.settle_s or DEFAULT_SETTLE_S
        return leader is not None and leader.clock() - after.agreed_at >= limit_s - ROUNDING_S

    def ended(self, before: Rendezvous, after: Rendezvous, ending: Ending) -> None:
        """A round ends; behind a checkpoint of all ranks, if that was planned."""
        agreement, known = after.agreement, before.agreement
        if agreement is None or not agreement.over or not agreement.at or self._too_long(after):
            return
        if known is None or known.over or ending.kind not in PLANNED:
            return
        if agreement.round == ending.round and agreement.act in HOLDS:
            self._planned[ending.round] = agreement.at
            self._truth.world.reached.note(f"{agreement.act.value} ended a round: {ending.kind.value}")
            for node in self._truth.world.nodes.values():
                if node.nursery.live:
                    self._repeats(node.nursery.round, node.nursery.ranks)

    def _repeats(self, number: int, ranks: Ranks | None) -> None:
        at = self._planned.get(number)
        if at is not None and ranks is not None:
            furthest = ranks.furthest()
            self._truth.need(furthest <= at + ROUNDING_S, REPEATS_NOTHING, f"round {number}: {furthest:.3f} of {at}")

    def begun_again(self) -> None:
        """All that nodes of the earlier run have asked for is gone with them."""
        self._at.clear()
        self._planned.clear()

    # -- in time -------------------------------------------------------------------------------------------------------

    def look(self, after: Rendezvous) -> None:
        """After every event of the coordinator."""
        if self._truth.closed:
            self.waiting.clear()
            return
        now, habit = self._truth.world.now, next(iter(self._truth.world.nodes.values())).nursery.habit
        bound_s = (1 + len(self.waiting)) * (habit.saves_s + 3 * habit.step_s + SLACK_S)
        for asked, (since, number) in [*self.waiting.items()]:
            name, act, label = asked
            node = self._truth.world.nodes[name]
            if node.done or node.state.verdict is not None:
                del self.waiting[asked]
            elif number != after.number or not self._can(node, act, after):
                self.waiting[asked] = (now, after.number)
            else:
                waited_s = now - max(since, self._truth.last_fault)
                but = f"{name} has waited {waited_s:.1f} s for {act.value} {label}"
                self._truth.need(waited_s <= bound_s, ACTED_UPON, but)

    def _can(self, asker: SimNode, act: Act, after: Rendezvous) -> bool:
        """Whether it could be done now."""
        fit = self._truth.fit
        if not fit(asker) or asker.state.phase is Phase.CONNECTING or self._truth.world.leader is None:
            return False
        if not fit(self._truth.world.leader):
            return False
        if after.phase is not RUNNING:
            return act in STOPS
        for member in after.members:
            node = self._truth.world.nodes[member.node]
            ranks = node.nursery.ranks
            if not fit(node) or not node.nursery.live or node.state.phase is not Phase.WORKING:
                return False
            if ranks is None or (act is Act.SAVE and (node.nursery.habit.plain or not ranks.attached)):
                return False
        return True
