"""The coordinator machine of a node, and what its effects lead to in the world.

Where one node hosts the store, only that node has one, and its decisions count at once. Where the store elects, every
node has one, and a decision counts once the store has accepted its announcement: then the checkers see it.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from elastic_agent.rendezvous.coordinator import events, machine
from elastic_agent.rendezvous.coordinator.state import DEFAULT_SETTLE_S, Rendezvous, Rules
from elastic_agent.rendezvous.records import Round

if TYPE_CHECKING:
    from .job import Job
    from .node import SimNode
    from .world import World


def rules_of(job: Job, own: str, *, fences: bool = False, hosted: bool = False) -> Rules:
    """The rules of a coordinator on the node `own`."""
    return Rules(
        own=own,
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes,
        join_timeout_s=job.join_timeout_s,
        last_call_timeout_s=job.last_call_timeout_s,
        quiet_s=job.quiet_s,
        beat_s=job.beat_s,
        lease_s=job.lease_s,
        exit_barrier_s=job.exit_barrier_s,
        static=job.static,
        settles=job.settle_s > 0,
        settle_s=job.settle_s or DEFAULT_SETTLE_S,
        fences=fences,
        hosted=hosted,
        alone_s=job.alone_s,
    )


class SimCoordinator:
    """Takes the events of the coordinator on one node."""

    def __init__(self, world: World, node: SimNode, state: Rendezvous) -> None:
        self._world = world
        self._node = node
        self._rules = rules_of(world.job, node.ident, fences=world.fences, hosted=not world.elects)
        self.state = state
        self._wakes: set[float] = set()
        """When it is to be woken, on the clock of its node."""
        self._unaccepted: dict[tuple[int, int], tuple[Rendezvous, float]] = {}
        """By epoch and version of announcements that the store has not accepted yet: the state then, and the time."""

    def take(self, event: events.Event) -> None:
        if self._node.done:
            return
        before = self.state
        world = self._world
        truth = world.checkers
        made = self._step(event)
        self.state = made.state
        if not world.elects:
            world.rendezvous = made.state
            truth.decided_at = world.now
            truth.coordinated(before, made.state)
        elif world.leader is self._node and made.state.epoch == world.term:
            # Else it leads again, and has not received that: what it holds is of an earlier term, and decides nothing.
            truth.watched(before, made.state)
        truth.changed_hands(self._node, event, made.state)
        for effect in made.effects:
            if isinstance(effect, events.Announce):
                self._announce(effect)
            elif isinstance(effect, events.WakeAt):
                self._wake_at(effect.when)
            elif isinstance(effect, events.Tell):
                self._world.reached.note("a wait after the close was named")
                if self._world.log is not None:
                    self._world.log(self._world.now, f"{self._node.ident} {effect.because}")
            elif not isinstance(effect, events.MoveFence):  # nobody replaces a silent host here: see ../election
                if isinstance(effect, events.Retire):
                    truth = self._world.checkers
                    truth.lost_at_retirement = truth.lost_at_retirement or frozenset(truth.lost)
                self._node.link.carry_out(effect)

    def _step(self, event: events.Event) -> machine.Step:
        """Measured without collections of garbage: what a simulated world of a thousand nodes holds is no cost of one
        coordinator."""
        clock, collects = self._world.clock, gc.isenabled()
        gc.disable()
        try:
            began = clock()
            made = machine.step(self.state, event, self._node.clock(), self._rules)
            took_s = clock() - began
        finally:
            if collects:
                gc.enable()
        self._world.checkers.costs.decided(took_s, len(made.state.nodes))
        return made

    def accepted(self, announcement: Round) -> None:
        """The store, which elects, has accepted this announcement of the node."""
        after, self._world.checkers.decided_at = self._unaccepted.pop((announcement.epoch, announcement.version))
        before = self._world.rendezvous or Rendezvous()
        self._world.rendezvous = after
        self._world.announced(announcement)
        self._world.checkers.coordinated(before, after)

    def _announce(self, effect: events.Announce) -> None:
        announcement = effect.round
        if self._world.elects:
            self._unaccepted[announcement.epoch, announcement.version] = (self.state, self._world.now)
        else:
            self._world.announced(announcement)
        self._node.link.carry_out(effect)
        self._world.follows(announcement.version)

    def _wake_at(self, when: float) -> None:
        """As `agent.loop.Loop.wake_at`: one wake-up for each time, however often it is requested."""
        if when not in self._wakes:
            self._wakes.add(when)
            self._world.at(max(0.0, when - self._node.clock()), self._node.turn, self._wakes_up, when)

    def _wakes_up(self, when: float) -> None:
        self._wakes.remove(when)
        self.take(events.DeadlineReached())
