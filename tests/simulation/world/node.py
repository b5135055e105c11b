"""One simulated agent: the production machine, and what its effects lead to in the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastic_agent.agent.lifecycle import events as agent_events
from elastic_agent.agent.lifecycle import machine as agent
from elastic_agent.agent.lifecycle.state import Rules as AgentRules
from elastic_agent.agent.lifecycle.state import Verdict
from elastic_agent.rendezvous.agreements import Act

from ..stores.direct import DirectLink
from ..stores.driver_link import DriverLink
from .workers import Habit, Nursery

if TYPE_CHECKING:
    from .coordinator import SimCoordinator
    from .world import World


class SimNode:
    """One agent and its workers."""

    def __init__(
        self, world: World, ident: str, host: bool, nproc: int, habit: Habit, preferred_rank: int | None
    ) -> None:
        self.world = world
        self.ident = ident
        self.host = host
        self.nproc = nproc
        self.state, self._first = agent.begin()
        self.rules = _rules_of(world, ident, preferred_rank)
        self.killed = False
        self.done = False
        """It was killed, or its agent has ended."""
        self.gone_at = float("inf")
        """When its agent ended, or was killed."""
        self.frozen, self.thawed_at = False, 0.0
        self.suspended = False
        """Its whole host stands still, workers and nursery too, as a virtual machine that is moved."""
        self.suspended_at = 0.0
        self.stalled = False
        """Its loop stands still, while its threads live."""
        self.stalled_since = 0.0
        self.verdict: Verdict | None = None
        self.place_fails = False
        self.joined_at = world.now
        self.on_host = len(world.nodes) % world.conditions.hosts if world.conditions.hosts else ident
        """The host on which its agent runs."""
        self.skew_s = world.skew_s * (len(world.nodes) + 1)
        """By how much its clock differs from the world's; the job's course must not depend on it."""
        shared = world.shared_store
        self.link: DirectLink | DriverLink = DriverLink(world, self, shared) if shared else DirectLink(world, self)
        self.coordinator: SimCoordinator | None = None
        """Its coordinator machine, where it can have one."""
        self.nursery = Nursery(world, self, habit)
        self._backlog: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    @property
    def attends(self) -> bool:
        """Its loop turns, and all its threads receive what the store answers."""
        return not self.stalled and not self.link.silent

    def clock(self) -> float:
        """This node's own time."""
        return self.world.now + self.skew_s

    def begin(self) -> None:
        self._perform(self._first)

    # -- events ----------------------------------------------------------------------------------------------------

    def post_later(self, event: agent_events.Event) -> None:
        """Post an event, after the one that is handled now."""
        self.world.at(0.0, self.turn, self.post, event)

    def turn(self, act: Callable[..., None], *args: object) -> None:
        """Something for the loop of this process; one that stands still takes it when it goes on."""
        if self.frozen or self.stalled:
            self._backlog.append((self.turn, (act, *args)))
        else:
            act(*args)

    def deliver(self, act: Callable[..., None], *args: object) -> None:
        """Something reaches a thread of this process; a frozen one takes it when it is thawed."""
        if self.frozen:
            self._backlog.append((act, args))
        else:
            act(*args)

    def post(self, event: agent_events.Event) -> None:
        if self.done:
            return
        before = self.state
        made = agent.step(before, event, self.clock(), self.rules)
        self.state = made.node
        self.world.checkers.stepped(self, before, event, made.effects)
        if self.world.log is not None and (before.phase, before.because) != (made.node.phase, made.because):
            self.world.log(self.world.now, f"{self.ident} {made.node.phase.value}: {made.because}")
        self._perform(made.effects)

    def _perform(self, effects: tuple[agent_events.Effect, ...]) -> None:
        for effect in effects:
            _PERFORM[type(effect)](self, effect)

    def _open_store(self, effect: agent_events.OpenStore) -> None:
        self.world.at(self.world.delays.network(), self.link.open, self.world.now + self.world.job.connect_timeout_s)

    def _prepare_place(self, effect: agent_events.PreparePlace) -> None:
        answer: agent_events.Event = agent_events.PlacePrepared(self.nproc, self.world.fresh_port(self.ident))
        if self.place_fails:
            answer = agent_events.PlaceFailed("no device is left")
        self.world.at(self.world.delays.local(), self.post_later, answer)

    def _publish(self, effect: agent_events.Publish) -> None:
        self.link.publish(effect.record)

    def _start_workers(self, effect: agent_events.StartWorkers) -> None:
        member = effect.member
        self._say(f"starts ranks {member.rank_offset} to {member.rank_offset + member.nproc - 1}")
        self.world.checkers.starts(self, effect)
        self.nursery.start(effect.round, member)
        self.world.checkers.worlds.started(self)

    def _signal_workers(self, effect: agent_events.SignalWorkers) -> None:
        self._say(f"signal {effect.signum} to its workers")
        self.world.checkers.stops(self)
        self.nursery.signal(effect.signum)

    def _forward_signal(self, effect: agent_events.ForwardSignal) -> None:
        self._say(f"passes signal {effect.signum} on to its workers")

    def _ask_bound(self, effect: agent_events.AskBound) -> None:
        if self.nursery.ranks is not None:
            self.nursery.ranks.ask(self.nursery, effect.agreement)
            return
        bound = 0 if self.nursery.habit.plain or not self.nursery.live else 1
        self.post_later(agent_events.BoundFound(effect.agreement.number, bound))

    def _decide_workers(self, effect: agent_events.DecideWorkers) -> None:
        ranks = self.nursery.ranks
        if ranks is not None:
            self.world.checkers.agreements.decided(self, effect.agreement, ranks)
            ranks.decide(self.nursery, effect.agreement)
        if effect.agreement.at:
            self._say(f"acts at boundary {effect.agreement.at}: {effect.agreement.act.value}")
            self.nursery.saved.add(self.nursery.round)
        if effect.agreement.at and ranks is None:
            acted = agent_events.Acted(effect.agreement.number)
            self.world.at(self.nursery.habit.saves_s, self.turn, self.post, acted)

    def _release_workers(self, effect: agent_events.ReleaseWorkers) -> None:
        if self.nursery.ranks is not None:
            self.nursery.ranks.release(self.nursery, effect.agreement)

    def _kill_workers(self, effect: agent_events.KillWorkers) -> None:
        self._say("kills its workers")
        self.world.reached.note("workers were killed after their grace")
        self.world.checkers.stops(self)
        self.nursery.kill()

    def _name_leftovers(self, effect: agent_events.NameLeftovers) -> None:
        if self.nursery.leftovers:
            self.post_later(agent_events.LeftoversNamed(1, ("4711 (uploader)",)))

    def _keep_leftovers(self, effect: agent_events.KeepLeftovers) -> None:
        self._name_leftovers(agent_events.NameLeftovers())
        self.nursery.keep()

    def _restart_nursery(self, effect: agent_events.RestartNursery) -> None:
        self._say("starts another nursery")
        self.nursery.dead = False

    def _wake_at(self, effect: agent_events.WakeAt) -> None:
        self.world.at(max(0.0, effect.when - self.clock()), self.turn, self.post, agent_events.DeadlineReached())

    def _conclude(self, effect: agent_events.Conclude) -> None:
        self._say(f"exits {effect.verdict.exit_code}")
        self.link.settle_beats()
        self.verdict, self.done = effect.verdict, True
        self.gone_at = self.world.now
        self.world.ended += 1
        self.link.settle_beats()
        self.world.checkers.concluded(self, effect.verdict)
        self.link.resign()
        self.link.close()
        if self.host:
            self.world.store.end()

    def _say(self, what: str) -> None:
        if self.world.log is not None:
            self.world.log(self.world.now, f"{self.ident} {what}")

    # -- faults ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """kill -9 of the agent; its workers follow within a second."""
        if self.done:
            return
        self._say("is killed with signal 9")
        self.link.settle_beats()
        self.killed = self.done = True
        self.gone_at = self.world.now
        self.world.ended += 1
        self.link.settle_beats()
        self.link.die()
        if self.nursery.live and not self.state.finished:
            self.world.disturbed(self.nursery.round, self, "departure")
        self.world.at(self.world.delays.local(), self.nursery.vanish)
        if self.host:
            self.world.store.end()

    def freeze(self) -> None:
        """SIGSTOP of the agent; its workers go on."""
        if self.done or self.frozen:
            return
        self._say("is frozen")
        if self.host:
            self.world.store.freeze()
        self.link.settle_beats()
        self.frozen = True
        self.link.settle_beats()

    def thaw(self) -> None:
        if not self.frozen or self.suspended:
            return
        self._say("is thawed")
        self.link.settle_beats()
        self.frozen, self.thawed_at = False, self.world.now
        self.link.settle_beats()
        if self.host:
            self.world.store.thaw()
        self._replay()
        self.link.pump()

    def suspend(self) -> None:
        """Its host stands still, and time goes on."""
        if not self.done and not self.frozen:
            self.suspended, self.suspended_at = True, self.world.now
            self.freeze()

    def resume(self) -> None:
        if self.suspended:
            self._say("runs again")
            self.suspended = False
            self.nursery.fence.suspended(self.world.now - self.suspended_at)
            self.nursery.resume()
            self.thaw()

    def stall(self) -> None:
        """Its loop stands still, as in a call on a dead file server; its threads and its workers go on."""
        if not self.done and not self.stalled:
            self._say("stands still")
            self.stalled, self.stalled_since = True, self.world.now

    def go_on(self) -> None:
        if self.stalled:
            self._say("goes on")
            self.stalled = False
            self._replay()

    def _replay(self) -> None:
        backlog, self._backlog = self._backlog, []
        for act, args in backlog:
            self.deliver(act, *args)

    def signal(self, signum: int = 15) -> None:
        self._leaving()
        self.post_later(agent_events.SignalReceived(signum))

    def leave(self, reason: str) -> None:
        self._leaving()
        self.post_later(agent_events.LeaveAsked(reason))

    def asks(self, act: Act, label: str) -> None:
        """Somebody asks something of all ranks, by this node."""
        self._say(f"is asked to {act.value} {label}".rstrip())
        self.world.checkers.agreements.asks(self, act, label)
        self.post_later(agent_events.ActAsked(act, label, f"{act.value} {label} asked of {self.ident}"))

    def _leaving(self) -> None:
        self._say("is asked to stop")
        self.world.checkers.asked.setdefault(self.ident, self.world.now)


_PERFORM: dict[type, Callable[[SimNode, Any], None]] = {
    agent_events.OpenStore: SimNode._open_store,
    agent_events.PreparePlace: SimNode._prepare_place,
    agent_events.Publish: SimNode._publish,
    agent_events.StartWorkers: SimNode._start_workers,
    agent_events.SignalWorkers: SimNode._signal_workers,
    agent_events.ForwardSignal: SimNode._forward_signal,
    agent_events.AskBound: SimNode._ask_bound,
    agent_events.DecideWorkers: SimNode._decide_workers,
    agent_events.ReleaseWorkers: SimNode._release_workers,
    agent_events.KillWorkers: SimNode._kill_workers,
    agent_events.NameLeftovers: SimNode._name_leftovers,
    agent_events.KeepLeftovers: SimNode._keep_leftovers,
    agent_events.RestartNursery: SimNode._restart_nursery,
    agent_events.WakeAt: SimNode._wake_at,
    agent_events.Conclude: SimNode._conclude,
}


def _rules_of(world: World, ident: str, preferred_rank: int | None) -> AgentRules:
    """The rules of the agent that joins next."""
    job = world.job
    return AgentRules(
        node=ident,
        name=ident,
        preferred_rank=preferred_rank,
        restarts=job.restarts,
        jitter=(0.37 * len(world.nodes) % 1,),
        grace_s=job.grace_s,
        leftover_s=job.leftover_s,
        join_timeout_s=job.join_timeout_s,
        store_grace_s=job.store_grace_s,
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes,
        endpoint="host:29400",
        settle_s=job.settle_s,
        fences=world.fences,
        elects=world.elects,
    )
