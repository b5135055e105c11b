"""The invariants, checked after every event against what the simulator knows to be true."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle import events as agent_events
from elastic_agent.agent.lifecycle.state import Node, Phase, Verdict
from elastic_agent.rendezvous.agreements import Act
from elastic_agent.rendezvous.coordinator import deadlines
from elastic_agent.rendezvous.coordinator import events as coordinator_events
from elastic_agent.rendezvous.coordinator.machine import EDGES
from elastic_agent.rendezvous.coordinator.state import CLOSED, GATHERING, OVER, RUNNING, Rendezvous
from elastic_agent.rendezvous.driver import events as store_events
from elastic_agent.rendezvous.failures import Ending, EndKind
from elastic_agent.rendezvous.records import Outcome

from . import coverage, exits, outcomes
from .agreements import Agreements
from .announcements import QUEUED_S, Announcements
from .costs import Costs
from .exits import gave_up
from .invariants import (
    AGREED,
    ALIVE,
    BLAMED,
    CHARGED,
    COUNTED,
    COUNTED_IN,
    EMPTY,
    EVICTED,
    FENCED,
    FINAL,
    FORWARD,
    LISTED,
    PLACED,
    SAVED_FIRST,
    STUCK,
    UNDISTURBED,
)
from .liveness import Liveness
from .restarts import ROUNDING_S, Restarts
from .rounds import Rounds
from .worlds import Worlds

if TYPE_CHECKING:
    from ..world.node import SimNode
    from ..world.world import World

READING_S = 1.5
"""From the arrival of a heartbeat to the decision of the coordinator that has read it, at most, and one heartbeat."""


class Violation(AssertionError):
    """An invariant does not hold."""


class Checkers:
    """The truth about one world, and the invariants over it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shapes: dict[int, object] = {}
        self.endings: dict[int, Ending] = {}
        self.causes: dict[int, tuple[str, str]] = {}
        """Per round: the node and the kind of the first disturbance."""
        self.asked: dict[str, float] = {}
        """Nodes that were asked to stop, and when first."""
        self.hurried: set[str] = set()
        """Nodes that received a signal when all that they still did was to serve the store."""
        self.gathering_since = 0.0
        self.decided_at = 0.0
        """When the coordinator took the decision that counts now."""
        self.cut_off: set[str] = set()
        """Nodes that gave up after more than store_grace without the store."""
        self.lost: set[str] = set()
        self.ever_lost: set[str] = set()
        self.over: set[int] = set()
        self.lost_at_retirement: frozenset[str] = frozenset()
        """Nodes that were lost when the coordinator began to clear up, which is final."""
        self._phase_at = 0.0
        """When the coordinator changed its phase last."""
        self.closed = False
        self.known_at_close: frozenset[str] = frozenset()
        self.first_finish: float | None = None
        self.last_fault = 0.0
        self.faults = 0
        self.failures = 0
        self.last_failure = 0.0
        self.earlier: frozenset[str] = frozenset()
        """Nodes of an earlier run of this job, whose agents had all ended when this one began."""
        self.cleared = False
        """A closed job has been removed from the store: a node that starts late finds nothing but the job's record."""
        self.announcements = Announcements(self)
        self.rounds = Rounds(self)
        self.liveness = Liveness(self)
        self.restarts = Restarts(self)
        self.costs = Costs(self)
        self.agreements = Agreements(self)
        self.worlds = Worlds(self)

    def need(self, holds: bool, invariant: str, but: str | Callable[[], str]) -> None:
        """Raises Violation unless it holds. `but`: what is the case instead; a function where that takes time."""
        if not holds:
            raise Violation(f"{invariant}; but {but if isinstance(but, str) else but()}")

    def disturbed(self, number: int, node: str, how: str) -> None:
        if number not in self.over:
            self.causes.setdefault(number, (node, how))
        if how == "failure":
            self.failures += 1
            self.last_failure = self.world.now

    def begun_again(self) -> None:
        """A node starts, and no other agent is left: the job was started again."""
        if self.closed:
            return
        self.earlier = frozenset(self.world.nodes)
        self.first_finish = None
        self.gathering_since = self.world.now
        self.agreements.begun_again()
        self.world.reached.note("a job was started again")

    # -- the coordinator -------------------------------------------------------------------------------------------

    def coordinated(self, before: Rendezvous, after: Rendezvous) -> None:
        if not (self.cleared or (after.version >= before.version and after.number >= before.number)):
            self.need(False, FORWARD, f"{before.version, before.number} became {after.version, after.number}")
        if not self.world.elects:
            self.watched(before, after)
        if self.lost and self.world.now - self.last_fault > outcomes.SETTLED_S:
            forgotten = [name for name in self.lost if self.fit(self.world.nodes[name])]
            self.need(not forgotten, COUNTED_IN, f"{forgotten} are lost")
        if after.agreement is not before.agreement:
            self.agreements.coordinated(before, after)
        ending, held = after.end.ending, before.end.ending
        if ending is not None and ending is not held and ending != held:
            self._ended(before, after, ending)
        if before.phase is after.phase and before.number == after.number:
            return
        if self.cleared:
            same = (after.phase, after.outcome) == (before.phase, before.outcome)
            self.need(same, FINAL, f"it became {after.phase.value}, {after.outcome}")
            return
        self._walked(before, after)
        self.need(before.phase is not CLOSED, FINAL, f"it became {after.phase.value}")
        coverage.moved(self, before, after)
        if after.number > before.number and after.end.ending is not None:
            self.gathering_since = self.decided_at
            self._settled(after.end.ending)
        if after.phase is RUNNING:
            self.rounds.begun(before, after)
        if after.phase is CLOSED:
            self.closed = True
            self.known_at_close = frozenset(after.nodes)
            self.liveness.closed(after)
            self._closed(after)

    def watched(self, before: Rendezvous, after: Rendezvous) -> None:
        """The coordinating node has taken an event: leases and time limits are checked."""
        if after.nodes is not before.nodes:
            self._leases(before, after)
        if (before.epoch, before.phase, before.number) != (after.epoch, after.phase, after.number):
            self._phase_at = self.world.now
        self.liveness.look(after)
        if self.agreements.waiting:
            self.agreements.look(after)

    def changed_hands(self, node: SimNode, event: coordinator_events.Event, after: Rendezvous) -> None:
        """The coordinator of this node took an event."""
        if isinstance(event, coordinator_events.Deposed):
            self.world.reached.note("a coordinator was deposed")
        elif not isinstance(event, coordinator_events.Elected) or event.newest is None:
            return
        elif self.world.leader is node:  # else its term had ended before it took the event
            self.lost &= {name for name, seen in after.nodes.items() if seen.lost}
            self.world.reached.note(f"a takeover while {event.newest.phase.value}")
            if event.newest.finishing and event.newest.outcome is None:
                self.world.reached.note("a takeover while others had finished")
            if event.newest.unsettled is not None:
                self.world.reached.note("a takeover while an ending was not settled")

    def _leases(self, before: Rendezvous, after: Rendezvous) -> None:
        for name, seen in after.nodes.items():
            if seen.lost and name not in self.lost:
                self.lost.add(name)
                self.ever_lost.add(name)
                silent_s = self.world.nodes[name].link.silent_s()
                # Nobody evicts a node that ended by itself, which gives up its lease, or that finished before the job
                # began again, which a takeover lists as lost until it reads its lease.
                node = self.world.nodes[name]
                ended = node.verdict is not None and node.gone_at <= self.world.now
                of_old = before.epoch != after.epoch and seen.finished and seen.record.round < after.number
                lease_s = self.world.job.held_s if self.world.elects else self.world.job.lease_s
                enough = ended or of_old or silent_s >= lease_s - READING_S
                if seen.overdue:
                    self.world.reached.note("a node that reported nothing was lost")
                    rules = self.world.nodes[name].rules
                    may_s = rules.grace_s + max(deadlines.REPORT_MARGIN_S, self.world.job.lease_s)
                    enough = self.world.now - self._phase_at >= may_s - ROUNDING_S
                self.need(enough, EVICTED, f"{name} was silent for {silent_s:.3f} s")
                if before.phase is OVER:
                    self.world.reached.note("a node was lost while its round was over")
                self.world.reached.note("a lease ran out")
            elif not seen.lost and name in self.lost:
                self.lost.discard(name)
                self.world.reached.note("a lost node returned")

    def _walked(self, before: Rendezvous, after: Rendezvous) -> None:
        """Several changes of phase may follow from one event: adds each of them to the edges that were taken."""
        walked = self.world.reached.coordinator_edges
        at = before.phase
        if at is RUNNING and after.end.ending != before.end.ending:
            walked.add((at, OVER))
            at = OVER
        if at is OVER and after.number > before.number:
            walked.add((at, GATHERING))
            at = GATHERING
        if at is not after.phase:
            self.need((at, after.phase) in EDGES, "every change of phase is listed", f"{at} became {after.phase}")
            walked.add((at, after.phase))

    def _ended(self, before: Rendezvous, after: Rendezvous, ending: Ending) -> None:
        self.over.add(ending.round)
        self.agreements.ended(before, after, ending)
        if ending.kind is EndKind.ARRIVAL:
            self.world.reached.note("an arrival ended a round")
            full = len(before.members) >= self.world.job.max_nodes or before.finishing
            self.need(not full, UNDISTURBED, f"round {ending.round} was ended because {ending.because}")
            self._saved_first(before, ending)
        was = before.end.ending
        echoed = was is not None and (was.round, was.kind) == (ending.round, EndKind.FAILURE)
        if echoed and ending.kind is not EndKind.FAILURE:
            self.world.reached.note(f"a failure turned out to be the echo of a {ending.kind.value}")

    def _saved_first(self, before: Rendezvous, ending: Ending) -> None:
        """Where each member could be asked."""
        members = [self.world.nodes[member.node] for member in before.members]
        if not self.world.job.settle_s or not all(self.fit(node) and node.nursery.live for node in members):
            return
        saved = all(ending.round in node.nursery.saved for node in members)
        if saved:
            self.world.reached.note("workers saved before an arrival")
        # Without a boundary they were asked, and have not all answered in time, or cannot.
        settles = before.agreement is not None and before.agreement.act is Act.SETTLE
        asked = before.agreement is not None and settles and not before.agreement.at
        leader, limit_s = self.world.leader, self.world.job.settle_s - ROUNDING_S
        too_long = settles and leader is not None and leader.clock() - before.agreed_at >= limit_s
        self.need(saved or asked or too_long, SAVED_FIRST, f"round {ending.round} was ended because {ending.because}")

    def _settled(self, ending: Ending) -> None:
        self.endings[ending.round] = ending
        self.world.reached.note(f"a {ending.kind.value} was settled")
        if ending.charged:
            self._charged(ending)
        if ending.kind is EndKind.DEPARTURE:
            placed = [self.world.nodes[name] for name in self.rounds.members]
            left = [
                n
                for n in placed
                if n.done or n.state.verdict is not None or n.ident in self.ever_lost or n.ident in self.asked
            ]
            self.need(bool(left), BLAMED, f"round {ending.round} ended because {ending.because}")

    def _charged(self, ending: Ending) -> None:
        number, node = ending.round, ending.charged
        self.need(ending.kind is EndKind.FAILURE, CHARGED, f"round {number} charged a {ending.kind.value}")
        self.need(number in self.world.nodes[node].nursery.failed, CHARGED, f"{node} was charged for round {number}")
        origin, how = self.causes.get(number, ("", "failure"))
        self.need(how != "departure", CHARGED, f"{node} was charged for round {number}, which {origin} left")
        # A loss of what owns the workers, or serves their store, is a failure too, seen first or not.
        own = how != "loss" or number in self.world.nodes[node].nursery.raised
        self.need(own, CHARGED, f"{node} was charged for round {number}, in which {origin} lost its workers")

    def _closed(self, after: Rendezvous) -> None:
        outcome = after.outcome or Outcome.FAILED
        self.world.reached.note(f"the job {outcome.value}")
        if outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
            members = {member.node for member in after.members}
            leader = self.world.leader
            # What the earlier run's coordinator wrote just before it was killed may arrive after the new run's start.
            in_flight = leader is not None and leader.ident in self.earlier
            inherited = bool(members) and members <= self.earlier and not in_flight
            self.need(not inherited, ALIVE, f"it {outcome.value} for {sorted(members)}")
        outcomes.JUDGES[outcome](self, after)

    def fit(self, node: SimNode) -> bool:
        return not node.done and not node.frozen and node.attends and node.link.opened and node.link.up

    # -- a node ----------------------------------------------------------------------------------------------------

    def stepped(self, node: SimNode, before: Node, event: agent_events.Event, effects: tuple[object, ...]) -> None:
        after = node.state
        if after.tally.round < before.tally.round:
            self.need(False, FORWARD, f"{node.ident} went from {before.round} on {event}")
        if after.verdict is not None and before.verdict is None:
            if before.phase is Phase.WORKING and not self.closed:
                self.disturbed(before.round, node.ident, "departure")
            spoiled = isinstance(event, store_events.StoreFailed) and self.world.store.spoiled
            if spoiled or self.store_was_away(node):
                self.cut_off.add(node.ident)
        if isinstance(event, agent_events.SignalReceived) and before.phase is Phase.ENDING:
            self.hurried.add(node.ident)
        if isinstance(event, store_events.RoundSeen):
            self.announcements.received(node, before, event.round)
        if after.verdict is not before.verdict and gave_up(after.verdict) and not gave_up(before.verdict):
            self.need(_stuck(node, before), STUCK, f"{node.ident} gives up: {after.because}")
        coverage.stepped(self.world.reached, before, event, after)
        if after.requests or before.requests or isinstance(event, agent_events.ActAsked):
            self.agreements.stepped(node, before, event)
        self.restarts.stepped(node, before, after)
        if after.phase is before.phase:
            return
        self.world.reached.agent_edges.add((before.phase, after.phase))
        if after.phase is Phase.FINISHED and self.first_finish is None:
            self.first_finish = self.world.now
        if after.finished and not before.finished and self.first_finish is None:
            self.first_finish = self.world.now

    def starts(self, node: SimNode, effect: agent_events.StartWorkers) -> None:
        running = effect.round
        placed = running.phase is RUNNING and running.member(node.ident) == effect.member
        self.need(placed and self.announcements.known(running), PLACED, lambda: f"{node.ident} starts {running}")
        shape = (self.announcements.whole(running).members, running.master_addr, running.master_port)
        held = self.shapes.setdefault(running.number, shape)
        self.need(held == shape, AGREED, lambda: f"{node.ident} starts {running.number} as {shape}, another as {held}")
        self.need(not node.nursery.busy, EMPTY, f"{node.ident} starts {running.number}")
        late = running.number < self.rounds.newest and node.ident not in self.ever_lost
        self.need(not late, FENCED, f"{node.ident} starts round {running.number}, {self.rounds.newest} has begun")
        charged = len(self.announcements.charges(node.ident, running.number))
        self.need(
            effect.restart_count == charged, COUNTED, f"{node.ident} used {effect.restart_count}, charged {charged}"
        )
        self.restarts.starts(node, running.number)
        coverage.starts(self, effect)

    def stops(self, node: SimNode) -> None:
        if not node.nursery.live:
            return
        number = node.nursery.round
        self.agreements.stops(node)
        nursery = node.nursery
        own = number in nursery.failed or number in nursery.storeless or number in nursery.fenced_rounds
        holds = own or node.ident in self.cut_off or number in self.over or self.closed or node.ident in self.asked
        self.need(holds, LISTED, f"{node.ident} stops round {number} because {node.state.because}")

    def store_was_away(self, node: SimNode) -> bool:
        since, back_at = node.link.away_since, node.link.back_at
        # The writer looks at the node's threads once a beat, and posts what it finds.
        untaken = back_at is None or self.world.now - back_at <= self.world.job.beat_s + QUEUED_S
        return since is not None and untaken and self.world.now - since >= self.world.job.store_grace_s - ROUNDING_S

    def concluded(self, node: SimNode, verdict: Verdict) -> None:
        self.liveness.concluded(node, verdict)
        self.announcements.concluded(node)
        exits.judge(self, node, verdict)


def _stuck(node: SimNode, before: Node) -> bool:
    """Whether workers that SIGKILL does not end were alive when the stop ladder ended, which may be a while ago."""
    until = before.ladder.until - node.skew_s if before.ladder is not None else float("inf")
    return node.nursery.stuck or node.nursery.stuck_until >= until - ROUNDING_S
