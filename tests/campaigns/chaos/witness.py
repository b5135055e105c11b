"""The simulator's checkers, fed with the history of a real job instead of an imagined one.

A stand-in for the simulated world (`history.py`) holds what the history proves: what was done to whom, what workers
were told and saw, what agents wrote down. All of it happened on one machine, so all of it has one clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from elastic_agent.agent.lifecycle import events as agent_events
from elastic_agent.agent.lifecycle.state import Phase, RoundTally, Rules, Verdict
from elastic_agent.rendezvous.coordinator.state import Placement, Rendezvous, RoundEnd, Seen
from elastic_agent.rendezvous.records import (
    Member,
    NodeRecord,
    NodeState,
    Outcome,
    Round,
    RoundPhase,
)
from simulation.checks import outcomes
from simulation.checks.checkers import Checkers, Violation
from simulation.checks.invariants import AGREED, DENSE, EMPTY, FENCED, FINAL, LEFT_NO_WORKER
from simulation.world.world import World

from .history import History, SeenNode, ending_of, master_of, members_of
from .plan import LEASE_S, Plan

NOTICED_S = 4.0
"""After the last thing done to a job, until its coordinator must know: a lease, two heartbeats and a busy machine."""

UNHEARD_S = 1.0
"""What a node that has come may take to be heard of; one that was frozen may take a lease to be heard of again."""

FRESH = "every round has a fresh master port"

FAILED = ("WorkerExited", "StartFailed", "NurseryLost")
"""What an agent learns of its own workers' failures by."""

NODE_STATES = {
    Phase.FINISHED: NodeState.FINISHED,
    Phase.STOPPING: NodeState.STOPPING,
    Phase.ENDING: NodeState.ENDED,
    Phase.ENDED: NodeState.ENDED,
    Phase.WORKING: NodeState.WORKING,
}


class Witness:
    """Hears a history in its order, and tells the checkers. Raises Violation."""

    def __init__(self, plan: Plan) -> None:
        self.history = History(plan)
        self.checkers = Checkers(cast("World", self.history))
        self._masters: dict[str, int] = {}
        """The round that each master was of."""
        self._barrier: float | None = None
        """What the coordinator knew of a barrier when it ended the round."""

    def node(self, name: str) -> SeenNode:
        return next(each for each in self.history.nodes.values() if each.name == name)

    def came(self, name: str, ident: str, nproc: int) -> None:
        rules = Rules(node=ident, name=name, preferred_rank=len(self.history.nodes))  # no wish of a plan clashes
        self.history.nodes[ident] = SeenNode(name, nproc, rules, ident)
        self.befell()

    def befell(self) -> None:
        """Something was done to the job."""
        self.checkers.faults += 1
        self.checkers.last_fault = self.history.now - outcomes.SETTLED_S + NOTICED_S

    # -- the coordinator -------------------------------------------------------------------------------------------

    def announced(self, line: dict[str, Any]) -> None:
        before = self.history.rendezvous or Rendezvous()
        after = self._rendezvous(line, before)
        before = replace(before, nodes={})  # the coordinator's own view of who waits is not in the history
        if before.phase is RoundPhase.OVER:  # why it is over was decided then; it is told when settled, with the next
            before = replace(before, barrier_until=self._barrier)
        elif after.phase is RoundPhase.OVER:
            self._barrier = before.barrier_until
        if after.phase in (RoundPhase.OVER, RoundPhase.CLOSED):
            self.checkers.over.add(before.number)
        self.history.rendezvous = after
        if before.phase is RoundPhase.CLOSED:
            same = (after.phase, after.outcome) == (before.phase, before.outcome)
            self.checkers.need(same, FINAL, f"it became {after.phase.value}, {after.outcome}")
        self.checkers.decided_at = self.history.now
        self.checkers.coordinated(before, after)
        if after.phase is RoundPhase.CLOSED and after.outcome is Outcome.FAILED and after.end.ending is not None:
            self.checkers._settled(after.end.ending)

    def _rendezvous(self, line: dict[str, Any], before: Rendezvous) -> Rendezvous:
        phase = RoundPhase(line["phase"])
        members = members_of(line) if phase in (RoundPhase.RUNNING, RoundPhase.OVER) else before.members
        ended = ending_of(line["ended"])
        return Rendezvous(
            phase=phase,
            number=line["number"],
            because=line["because"],
            nodes=self._records(members, line.get("master")),
            barrier_until=0.0 if line["finishing"] else None,
            placement=Placement(members, *master_of(line.get("master"))),
            end=RoundEnd(before.end.ending if ended == before.end.ending else ended),
            restarts=line["restarts"],
            outcome=Outcome(line["outcome"]) if line["outcome"] else None,
            version=line["version"],
        )

    def _records(self, members: tuple[Member, ...], master: str | None) -> dict[str, Seen]:
        """The nodes that the coordinator knows of for certain."""
        address, port = master_of(master)
        placed, now = {member.node for member in members}, self.history.now
        return {
            each.ident: Seen(
                NodeRecord(
                    each.ident,
                    each.name,
                    NODE_STATES.get(each.state.phase, NodeState.WAITING),
                    seq=0,
                    finished=each.state.finished,
                    addr=address,
                    port=port,
                ),
                arrival=0,
                waiting_since=0.0,
                heard_at=0.0,
                lost=each.killed or each.frozen or now - each.thawed_at < LEASE_S,
            )
            for each in self.history.nodes.values()
            if each.ident in placed or (each.came_at and now - each.came_at >= UNHEARD_S)
        }

    # -- a node ----------------------------------------------------------------------------------------------------

    def said(self, node: SeenNode, line: dict[str, Any]) -> None:
        """A node wrote an event down."""
        before, phase = node.state, Phase(line["phase"])
        leaves = line["happened"] == "SignalReceived" and before.phase not in (Phase.ENDING, Phase.ENDED)
        verdict, failed_at = before.verdict, before.tally.failed_at if line["round"] == before.round else None
        if failed_at is None and "failure" in line and line["happened"] in FAILED:
            failed_at = self.history.now
        if verdict is None and (leaves or phase in (Phase.ENDING, Phase.ENDED)):
            verdict = Verdict(143 if leaves else -1, line["because"])
        node.state = replace(
            before,
            phase=phase,
            because=line["because"],
            tally=RoundTally(line["round"], failed_at=failed_at),
            finished=before.finished or phase is Phase.FINISHED,
            verdict=verdict,
        )
        node.link.opened = node.link.opened or line["happened"] == "StoreOpened"
        if phase is Phase.JOINING and before.phase is not Phase.JOINING:
            node.joined_at = self.history.now
            node.came_at = node.came_at or node.joined_at
        if node.host and phase is Phase.ENDED:
            for other in self.history.nodes.values():
                other.link.away_since = self.history.now
        signalled = line["happened"] == "SignalReceived"
        event = agent_events.SignalReceived(15) if signalled else agent_events.OthersEnded()
        self.checkers.stepped(cast("Any", node), before, event, ())
        if phase is Phase.WORKING:
            node.places[line["round"]] = members_of(line)
        if phase is Phase.STOPPING and before.phase is Phase.WORKING and line["happened"] != "WorkerExited":
            node.nursery.round, node.nursery.live = line["round"], {0: None}
            self.checkers.stops(cast("Any", node))
            node.nursery.live = {}

    def worker(self, node: SeenNode, fact: dict[str, Any]) -> None:
        """A worker began, and looked for workers of earlier rounds."""
        number = fact["round"]
        members = node.places.get(number, ())
        place = next((each for each in members if each.node == fact["ident"]), None)
        self.checkers.need(
            place is not None, AGREED, f"{node.name} starts round {number} and has no place in it: {members}"
        )
        place = cast("Member", place)
        rank, size = place.rank_offset + fact["local_rank"], sum(each.nproc for each in members)
        right = (fact["rank"], fact["world_size"]) == (rank, size)
        self.checkers.need(
            right, DENSE, f"{node.name} gives rank {fact['rank']} of {fact['world_size']}, not {rank} of {size}"
        )
        unheard = self.history.nodes[members[0].node].was_frozen  # nobody could tell it that its port was used
        fresh = self._masters.setdefault(fact["master"], number) == number or unheard
        self.checkers.need(fresh, FRESH, f"{fact['master']} was that of round {self._masters[fact['master']]} already")
        address, _, port = fact["master"].rpartition(":")
        running = Round(number, 1, number, RoundPhase.RUNNING, "", members, address, int(port))
        self.checkers.announcements.by_version[number] = running
        self.checkers.starts(cast("Any", node), agent_events.StartWorkers(running, place, fact["restarts"]))
        for held in fact["alive"]:
            owner = self.node(held.split(".")[0])
            self.checkers.need(owner is not node, EMPTY, f"{held} lives when {node.name} starts {number}")
            excused = owner.killed or owner.was_frozen
            self.checkers.need(excused, FENCED, f"{held} lives when {node.name} starts {number}")

    def told(self, node: SeenNode, fact: dict[str, Any]) -> None:
        """A worker was told how to end."""
        number = fact["round"]
        if fact["how"] == "exit 0":
            node.nursery.clean[number] = node.nursery.clean.get(number, 0) + 1
            return
        node.nursery.failed.add(number)
        word, _, code = fact["how"].partition(" ")
        if word == "exit":
            node.nursery.codes.setdefault(number, []).append(int(code))
        self.befell()
        self.checkers.disturbed(number, node.ident, "failure")

    def fault(self, node: SeenNode, kind: str) -> None:
        self.befell()
        node.link.deaf = node.link.deaf or kind in ("kill", "freeze")
        if kind == "term":
            self.checkers.asked.setdefault(node.ident, self.history.now)
        elif kind == "freeze":
            node.frozen = node.was_frozen = True
            self.checkers.ever_lost.add(node.ident)
        elif kind == "kill":
            node.killed = True
            if node.state.phase is Phase.WORKING and not self.checkers.closed:
                self.checkers.disturbed(node.state.round, node.ident, "departure")

    def thawed(self, node: SeenNode) -> None:
        node.frozen = False
        node.thawed_at = self.history.now
        self.befell()

    def ends(self, node: SeenNode, line: dict[str, Any]) -> None:
        """The agent wrote its verdict down."""
        verdict = Verdict(line["exit_code"], line["because"], Outcome(line["outcome"]) if line["outcome"] else None)
        if node.state.phase is not Phase.ENDED:
            raise Violation(f"every agent ends by its machine; but {node.name} ended {node.state.phase.value}")
        if node.joined_at and not node.state.finished:
            node.state = replace(node.state, spare_until=node.joined_at + self.history.job.join_timeout_s)
        if node.host:
            # A node that was frozen until just now may be back, and the coordinator not know it yet.
            now, nodes = self.history.now, self.history.nodes.values()
            fresh = {n.ident for n in nodes if now - n.thawed_at < LEASE_S}
            gone = {n.ident for n in nodes if n.frozen or n.state.phase is Phase.ENDED}
            late = {n.ident for n in nodes if now - (n.joined_at or 1e99) < UNHEARD_S}
            self.checkers.known_at_close -= fresh | gone | late
        node.verdict, node.now = verdict, self.history.now
        self.checkers.concluded(cast("Any", node), verdict)

    def ended(self, node: SeenNode, fact: dict[str, Any]) -> None:
        """The process is gone."""
        self.checkers.need(node.killed or not fact["alive"], LEFT_NO_WORKER, f"{fact['alive']} outlived {node.name}")
