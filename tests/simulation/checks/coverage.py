"""Which situations the runs have reached, and those that many seeds must reach, or they test less than they seem to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle import events
from elastic_agent.agent.lifecycle.state import Node, Phase
from elastic_agent.rendezvous.coordinator.state import Rendezvous
from elastic_agent.rendezvous.driver import events as store_events
from elastic_agent.rendezvous.failures import EndKind
from elastic_agent.rendezvous.records import RoundPhase

if TYPE_CHECKING:
    from ..world.world import World
    from .checkers import Checkers


@dataclass
class Reached:
    """How often the runs have reached each situation, and which changes of phase they have taken."""

    counts: dict[str, int] = field(default_factory=dict)
    agent_edges: set[tuple[Phase, Phase]] = field(default_factory=set)
    coordinator_edges: set[tuple[RoundPhase, RoundPhase]] = field(default_factory=set)

    def note(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def merge(self, other: Reached) -> None:
        for what, count in other.counts.items():
            self.counts[what] = self.counts.get(what, 0) + count
        self.agent_edges |= other.agent_edges
        self.coordinator_edges |= other.coordinator_edges


MANY = 64
"""Nodes, in the largest job."""

ENOUGH = 2000
"""Seeds that surely reach all of SITUATIONS."""

SITUATIONS = (
    "a charged node restarted",
    "a coordinator resigned",
    "a coordinator was deposed",
    "a cut both ways",
    "a departure was settled",
    "a deposed coordinator was refused",
    "a failure echoed",
    "a failure turned out to be the echo of a departure",
    "a failure was settled",
    "a failure while others had finished",
    "a fault while connecting",
    "a fault while ending",
    "a fault while finished",
    "a fault while joining",
    "a fault while stopping",
    "a fault while working",
    "a host returned with an empty store",
    "a job was started again",
    "a lease ran out",
    "a loop stood still",
    "a lost node returned",
    "a new node joined while the job was being closed",
    "a node read its place from a page",
    "a node returned to another rank",
    "a node died while it stopped its workers",
    "a node received the close while it stopped its workers",
    "a node missed a round that it had a place in",
    "a node missed an announcement",
    "a node that reported nothing was lost",
    "a node started a round that was already over",
    "a node was lost while its round was over",
    "a one-way cut",
    "a pause was over",
    "a failure turned out to be the echo of a preemption",
    "a reply was lost",
    "a request was lost",
    "a round began while others had finished",
    "a round of many nodes",
    "a round of one node",
    "a round of unequal nodes",
    "a second charge",
    "a second request to stop",
    "a spare entered",
    "a spare gave up",
    "a spare was not needed",
    "a reader received nothing",
    "a watcher received nothing",
    "a takeover while an ending was not settled",
    "a takeover while gathering",
    "a takeover while last call",
    "a takeover while over",
    "a takeover while running",
    "a worker's exit code forbade a restart",
    "a stranger wrote",
    "a stranger wrote where a counter was",
    "a write was refused",
    "an announcement was overtaken by the next",
    "an announcer received nothing",
    "another incarnation began",
    "an arrival ended a round",
    "an old charge was forgiven",
    "etcd elected another leader",
    "etcd was frozen",
    "last call was called off",
    "last call was over",
    "the coordinator's loop stood still",
    "the host was killed",
    "the job abandoned",
    "the job misconfigured",
    "the job preempted",
    "the job failed",
    "the job join timed out",
    "the job succeeded",
    "the job unfinished",
    "the nursery died without workers",
    "the store came back",
    "the store went away while finished",
    "the store went away while joining",
    "the store went away while stopping",
    "the store went away while working",
    "too few remained for a restart",
    "two nodes failed in one round",
    "workers saved before an arrival",
    "workers were killed after their grace",
    "SIGKILL did not end workers",
    "bytes of an abandoned connection arrived late",
    "a stranger lied about node",
    "a stranger lied about log",
    "no descriptor was left",
    "the server hung while its host went on",
    "kill was asked for",
    "save was asked for",
    "preempt was asked for",
    "restart was asked for",
    "all ranks saved on request",
    "a request was given up",
    "restart ended a round: planned",
    "settle ended a round: arrival",
    "settle ended a round: departure",
    "the job killed",
    "exit status 0",
    "exit status 1",
    "exit status 2",
    "exit status 71",
    "exit status 75",
    "exit status 76",
    "exit status 80",
    "exit status 82",
    "exit status 83",
    "exit status 93",
    "exit status 143",
)


def missing(reached: Reached) -> list[str]:
    """Situations that should have been reached and were not."""
    return [what for what in SITUATIONS if not reached.counts.get(what)]


def stepped(reached: Reached, before: Node, event: events.Event, after: Node) -> None:
    """A node took an event."""
    if isinstance(event, store_events.RoundSeen):
        if event.round.version > (before.latest_round.version if before.latest_round is not None else 0) + 1:
            reached.note("a node missed an announcement")
        if before.phase is Phase.STOPPING and event.round.phase is RoundPhase.CLOSED:
            reached.note("a node received the close while it stopped its workers")
        if before.phase is Phase.JOINING and after.phase is Phase.JOINING and after.round > before.round:
            reached.note("a node missed a round that it had a place in")
    elif isinstance(event, store_events.StoreWentAway):
        reached.note(f"the store went away while {before.phase.value}")
    elif isinstance(event, store_events.StoreCameBack):
        reached.note("the store came back")
    elif isinstance(event, events.SignalReceived) and before.verdict is not None:
        reached.note("a second request to stop")
    elif isinstance(event, events.NurseryLost) and before.phase in (Phase.JOINING, Phase.FINISHED):
        reached.note("the nursery died without workers")
    if before.is_spare and after.phase is Phase.WORKING:
        reached.note("a spare entered")


def starts(truth: Checkers, effect: events.StartWorkers) -> None:
    """A node starts its workers."""
    note = truth.world.reached.note
    if effect.restart_count:
        note("a charged node restarted")
    if effect.restart_count > 1:
        note("a second charge")
    if effect.round.number in truth.over:
        note("a node started a round that was already over")


def begun(world: World, after: Rendezvous) -> None:
    """A round began."""
    note = world.reached.note
    if after.finishing:
        note("a round began while others had finished")
    if len({member.nproc for member in after.members}) > 1:
        note("a round of unequal nodes")
    if len(after.members) == 1:
        note("a round of one node")
    if len(after.members) > MANY // 2:
        note("a round of many nodes")


def moved(truth: Checkers, before: Rendezvous, after: Rendezvous) -> None:
    """The coordinator changed its phase."""
    note = truth.world.reached.note
    if before.phase is RoundPhase.LAST_CALL:
        note("last call was called off" if after.phase is RoundPhase.GATHERING else "last call was over")
    failed = after.end.ending is not None and after.end.ending.kind is EndKind.FAILURE
    if before.phase is RoundPhase.RUNNING and before.finishing and failed:
        note("a failure while others had finished")
    if before.phase is RoundPhase.OVER:
        broken = [s for s in after.nodes.values() if s.record.failure is not None and s.record.round == after.number]
        if len(broken) > 1:
            note("two nodes failed in one round")
    if after.phase is RoundPhase.CLOSED and any(n.state.phase is Phase.CONNECTING for n in truth.world.nodes.values()):
        note("a new node joined while the job was being closed")
    if after.phase is RoundPhase.RUNNING:
        ranks = before.last_ranks()
        if any(ranks.get(member.node, member.group_rank) != member.group_rank for member in after.members):
            note("a node returned to another rank")
