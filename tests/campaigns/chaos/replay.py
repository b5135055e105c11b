"""Feeds the simulator's checkers with the history of a real job.

In place of the simulated world they get `seen_world.py`, which holds what the history proves: the faults, the orders to
workers and their reports, the agents' events. All of it happened on one host, so it is ordered by one clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from elastic_agent.agent.lifecycle import events as agent_events
from elastic_agent.agent.lifecycle.state import Phase, RoundTally, Rules, Verdict
from elastic_agent.rendezvous.coordinator.nodes import Nodes, Seen
from elastic_agent.rendezvous.coordinator.state import Placement, Rendezvous, RoundEnd, places_of
from elastic_agent.rendezvous.driver import events as store_events
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

from .plan import LEASE_S, Plan
from .seen_world import SeenNode, SeenWorld, ending_of, master_of, members_of

NOTICED_S = 4.0
"""From the last thing done to a job until its coordinator must have reacted: a lease, two heartbeats, a busy host."""

UNREAD_S = 1.0
"""How long after its start the coordinator may not yet have read a node's record; after a freeze, a lease."""

FRESH = "every round has a fresh master port"

FINISHED = "this node's workers all finished"
"""Begins what an agent says last whose workers have done their part, whatever ends it."""
FAILURE_EVENTS = ("WorkerExited", "StartFailed", "NurseryLost")
"""The events by which an agent sees a failure of its own workers."""

NODE_STATES = {
    Phase.FINISHED: NodeState.FINISHED,
    Phase.STOPPING: NodeState.STOPPING,
    Phase.ENDING: NodeState.ENDED,
    Phase.ENDED: NodeState.ENDED,
    Phase.WORKING: NodeState.WORKING,
}


class Replay:
    """Passes a history, in its order, to the checkers. Its methods raise Violation."""

    def __init__(self, plan: Plan) -> None:
        self.world = SeenWorld(plan)
        self.checkers = Checkers(cast("World", self.world))
        self._masters: dict[str, int] = {}
        """The round in which each master was used first."""
        self._barrier: float | None = None
        """The end of the finalisation barrier when the coordinator ended the round."""

    def node(self, name: str) -> SeenNode:
        return next(each for each in self.world.nodes.values() if each.name == name)

    def started(self, name: str, ident: str, nproc: int) -> None:
        rules = Rules(node=ident, name=name, preferred_rank=len(self.world.nodes))  # no two nodes prefer one rank
        self.world.nodes[ident] = SeenNode(name, nproc, rules, ident)
        self.disturbed()

    def disturbed(self) -> None:
        """Something was done to the job: the checkers allow it the time to react."""
        self.checkers.faults += 1
        self.checkers.last_fault = self.world.now - outcomes.SETTLED_S + NOTICED_S

    # -- the coordinator -------------------------------------------------------------------------------------------

    def announced(self, line: dict[str, Any]) -> None:
        before = self.world.rendezvous or Rendezvous()
        after = self._rendezvous(line, before)
        before = replace(before, nodes=Nodes())  # which nodes wait, as the coordinator sees it, is not in the history
        if before.phase is RoundPhase.OVER:  # the end was decided then; it is announced with the next round
            before = replace(before, barrier_until=self._barrier)
        elif after.phase is RoundPhase.OVER:
            self._barrier = before.barrier_until
        if after.phase in (RoundPhase.OVER, RoundPhase.CLOSED):
            self.checkers.over.add(before.number)
        self.world.rendezvous = after
        if before.phase is RoundPhase.CLOSED:
            same = (after.phase, after.outcome) == (before.phase, before.outcome)
            self.checkers.need(same, FINAL, f"it became {after.phase.value}, {after.outcome}")
        self.checkers.decided_at = self.world.now
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
            placement=Placement(members, *master_of(line.get("master")), places=places_of(members)),
            end=RoundEnd(before.end.ending if ended == before.end.ending else ended),
            restarts=line["restarts"],
            outcome=Outcome(line["outcome"]) if line["outcome"] else None,
            version=line["version"],
        )

    def _records(self, members: tuple[Member, ...], master: str | None) -> Nodes:
        """The nodes whose records the coordinator must have read."""
        address, port = master_of(master)
        placed, now = {member.node for member in members}, self.world.now
        return Nodes(
            Seen(
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
            for each in self.world.nodes.values()
            if each.ident in placed or (each.came_at and now - each.came_at >= UNREAD_S)
        )

    # -- a node ----------------------------------------------------------------------------------------------------

    def event(self, node: SeenNode, line: dict[str, Any]) -> None:
        """A node wrote an event to its event file."""
        before, phase = node.state, Phase(line["phase"])
        leaves = line["happened"] == "SignalReceived" and before.phase not in (Phase.ENDING, Phase.ENDED)
        verdict, failed_at = before.verdict, before.tally.failed_at if line["round"] == before.round else None
        if failed_at is None and "failure" in line and line["happened"] in FAILURE_EVENTS:
            failed_at = self.world.now
        if verdict is None and (leaves or phase in (Phase.ENDING, Phase.ENDED)):
            verdict = Verdict(143 if leaves else -1, line["because"])
        node.state = replace(
            before,
            phase=phase,
            because=line["because"],
            tally=RoundTally(line["round"], failed_at=failed_at),
            # One that finishes while it leaves ends at once.
            finished=before.finished or phase is Phase.FINISHED or line["because"].startswith(FINISHED),
            verdict=verdict,
        )
        node.link.opened = node.link.opened or line["happened"] == "StoreOpened"
        if phase is Phase.JOINING and before.phase is not Phase.JOINING:
            node.joined_at = self.world.now
            node.came_at = node.came_at or node.joined_at
        if node.host and phase is Phase.ENDED:
            for other in self.world.nodes.values():
                other.link.away_since = self.world.now
        signalled = line["happened"] == "SignalReceived"
        step = agent_events.SignalReceived(15) if signalled else store_events.OthersEnded()
        self.checkers.stepped(cast("Any", node), before, step, ())
        if phase is Phase.WORKING:
            node.places[line["round"]] = members_of(line)
        if phase is Phase.STOPPING and before.phase is Phase.WORKING and line["happened"] != "WorkerExited":
            node.nursery.round, node.nursery.live = line["round"], {0: None}
            self.checkers.stops(cast("Any", node))
            node.nursery.live = {}

    def worker(self, node: SeenNode, fact: dict[str, Any]) -> None:
        """A worker began, and reported which workers of earlier rounds were still alive."""
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
        # A frozen node cannot receive that its port was used, and may offer it again.
        excused = self.world.nodes[members[0].node].was_frozen
        fresh = self._masters.setdefault(fact["master"], number) == number or excused
        self.checkers.need(fresh, FRESH, f"{fact['master']} was that of round {self._masters[fact['master']]} already")
        address, _, port = fact["master"].rpartition(":")
        running = Round(number, 1, number, RoundPhase.RUNNING, "", members, address, int(port))
        self.checkers.announcements.by_version[number] = running
        self.checkers.starts(cast("Any", node), agent_events.StartWorkers(running, place, fact["restarts"]))
        for worker in fact["alive"]:
            owner = self.node(worker.split(".")[0])
            self.checkers.need(owner is not node, EMPTY, f"{worker} lives when {node.name} starts {number}")
            self.checkers.need(owner.killed, FENCED, f"{worker} lives when {node.name} starts {number}")

    def ordered(self, node: SeenNode, fact: dict[str, Any]) -> None:
        """A worker was ordered to exit in some way."""
        number = fact["round"]
        if fact["how"] == "exit 0":
            node.nursery.clean[number] = node.nursery.clean.get(number, 0) + 1
            return
        node.nursery.failed.add(number)
        way, _, code = fact["how"].partition(" ")
        if way == "exit":
            node.nursery.codes.setdefault(number, []).append(int(code))
        self.disturbed()
        self.checkers.disturbed(number, node.ident, "failure")

    def fault(self, node: SeenNode, kind: str) -> None:
        self.disturbed()
        node.link.stopped = node.link.stopped or kind in ("kill", "freeze")
        if kind == "term":
            self.checkers.asked.setdefault(node.ident, self.world.now)
        elif kind == "freeze":
            node.frozen = node.was_frozen = True
            self.checkers.ever_lost.add(node.ident)
        elif kind == "kill":
            node.killed, node.gone_at = True, self.world.now
            if node.state.phase is Phase.WORKING and not self.checkers.closed:
                self.checkers.disturbed(node.state.round, node.ident, "departure")

    def thawed(self, node: SeenNode) -> None:
        node.frozen = False
        node.thawed_at = self.world.now
        self.disturbed()

    def concluded(self, node: SeenNode, line: dict[str, Any]) -> None:
        """The agent wrote its verdict to its event file."""
        verdict = Verdict(line["exit_code"], line["because"], Outcome(line["outcome"]) if line["outcome"] else None)
        if node.state.phase is not Phase.ENDED:
            raise Violation(f"every agent ends by its state machine; but {node.name} ended {node.state.phase.value}")
        if node.joined_at and not node.state.finished:
            node.state = replace(node.state, spare_until=node.joined_at + self.world.job.join_timeout_s)
        if node.host:
            # The coordinator may not yet have read the record of a node that was just thawed.
            now, nodes = self.world.now, self.world.nodes.values()
            fresh = {n.ident for n in nodes if now - n.thawed_at < LEASE_S}
            gone = {n.ident for n in nodes if n.frozen or n.state.phase is Phase.ENDED}
            late = {n.ident for n in nodes if now - (n.joined_at or 1e99) < UNREAD_S}
            self.checkers.known_at_close -= fresh | gone | late
        node.verdict, node.now = verdict, self.world.now
        node.gone_at = self.world.now
        self.checkers.concluded(cast("Any", node), verdict)

    def ended(self, node: SeenNode, fact: dict[str, Any]) -> None:
        """The agent's process exited."""
        self.checkers.need(node.killed or not fact["alive"], LEFT_NO_WORKER, f"{fact['alive']} outlived {node.name}")
