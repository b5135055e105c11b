"""One node's agent: passes events to the two machines and performs their effects. Nothing is decided here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..proto.frozen import replace
from ..rendezvous.agreements import MAX_LABEL_BYTES, Act
from ..rendezvous.coordinator import events as coordination
from ..rendezvous.coordinator import explain
from ..rendezvous.coordinator import machine as coordinator
from ..rendezvous.coordinator.state import Rendezvous
from ..rendezvous.driver.events import LoopAsked, overtaken
from ..rendezvous.records import Member, Round
from ..rendezvous.store import StoreError
from . import signals
from .errors import AgentError, HostFailed, InternalError, in_any_case, is_of_host, is_thread_refusal, refusal
from .lifecycle import events, machine, transitions
from .lifecycle.state import Node, Phase, Rules
from .link import Found, Link, Linking, MakeLink
from .loop import Loop
from .output.log_dirs import JobLogs
from .processes.workers import Workers
from .report import AgentEvent, Report, Status, describe, is_routine, status_of
from .rules import node_rules, rendezvous_rules
from .solo import Solo
from .spec import RendezvousSpec, WorkerSpec
from .steps.seen import WorkersSeen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .processes.stuck import StuckWatch
    from .steps.switches import Switches


class Beside(Protocol):
    """What answers for an agent while it runs, on its loop."""

    def begin(self, agent: Agent, loop: Loop) -> None: ...
    def seen(self, workers: WorkersSeen) -> None: ...
    def close(self) -> None: ...


class Known(NamedTuple):
    """All that an agent knows, as it is now."""

    identity: str
    """Of this node."""
    node: Node
    coordinator: Rendezvous
    rules: Rules
    rendezvous: RendezvousSpec
    announced_s: float
    """When the newest announcement was received, on this host's monotonic clock."""


class Agent:
    """Runs one node's part of a job. `run` may be called once, from any thread; the other methods from any thread.

    Signals are handled only when `run` is called from the main thread; elsewhere use `leave` and `stop`.
    """

    def __init__(
        self,
        workers: WorkerSpec,
        rendezvous: RendezvousSpec,
        *,
        make_link: MakeLink | None = None,
        on_event: Callable[[AgentEvent], None] | None = None,
        on_announce: Callable[[Round], None] | None = None,
        tell: Callable[[str, bool], None] | None = None,
        name: str = "",
    ) -> None:
        """`make_link`: None for a job on one host. `on_event` is called with each event, and `on_announce` with each
        announcement of this node as the coordinator, on the agent's thread: they must be quick. `tell` is called with
        sentences for people, and whether each is routine. `name`: the node's name; host and process id if empty. Raises
        UsageError if the log directory cannot be used, KillSwitch if its file is there."""
        host = os.uname().nodename
        self.name = name or f"{host}:{os.getpid()}"
        if workers.guards.kill_switch:
            from .steps.switches import look_first

            look_first(workers.guards.kill_switch, self.name, tell)
        node = os.urandom(8).hex()
        self._spec = workers
        self._rules = node_rules(node, self.name, workers, rendezvous)
        self._rendezvous_rules = rendezvous_rules(node, workers, rendezvous)
        self._on_event, self._on_announce = on_event, on_announce
        self._tell = self.show = tell or (lambda text, routine: None)
        """`show`: as `tell`, for output that is lost, which who wants no decisions is to know, too."""
        logs = JobLogs(workers.logs, workers.run_id, on_trouble=self._trouble)
        self.workers = Workers(workers, self.name, host, logs, self._tell, self._post)
        self._loop = Loop()  # last of all that may raise: it holds a descriptor
        self._rendezvous, self._announced_s = rendezvous, 0.0
        self._linking, self._connected = Linking(make_link, self._loop.post, rendezvous.local_addr), False
        self.link = self._linked()
        self._node, self._coordinator = Node(), Rendezvous()
        self._conclusion: events.Conclude | None = None

    # -- for the caller -----------------------------------------------------------------------------------------

    def run(self, *, last: bool = False, beside: Beside | None = None) -> Report:
        """Run to the end. Workers and everything they started are gone when it returns or raises.

        `last`: the process ends with the job, so later signals must not end it before it has reported how. `beside` is
        begun and closed. Raises AgentError only where the agent itself fails; how the job ended is in the report's
        verdict."""
        guards = self._spec.guards
        named = (*self._spec.forward_signals, *filter(None, (guards.kill_signal, guards.save_signal)))
        signums = (*self._spec.signals, *named)
        named = signums if self._spec.signals_named else named
        give_back = signals.catch(signums, self._signalled, self._loop.waker, named=named)
        watch: StuckWatch | None = None
        switches: Switches | None = None
        try:
            self._open_nursery()
            if beside is not None:
                beside.begin(self, self._loop)
                self.workers.on_seen = beside.seen
            watch = self._watch_stuck()
            switches = self._watch_switches()
            self._node, first = machine.begin()
            self._perform(first)
            while self._conclusion is None:
                self._handle(self._loop.take())
        except (machine.IllegalEvent, coordinator.IllegalEvent) as error:
            raise InternalError(f"{error}; this is a mistake in elastic-agent; please report it") from error
        except RuntimeError as error:
            if not is_thread_refusal(error):
                raise
            raise HostFailed(
                "this host refuses the agent another thread; raise its limit of processes (ulimit -u, or the cgroup's "
                "pids.max)"
            ) from error
        except OSError as error:
            if error.errno is None:  # the TimeoutError of a program's own signal handler: no call was refused
                raise
            raise HostFailed(
                f"this host refuses what the agent needs: {error}; raise its limits (ulimit -a)"
            ) from error
        finally:
            watches = [each.close for each in (beside, watch, switches) if each is not None]
            in_any_case(*watches, self.workers.close, self.link.close, lambda: give_back(last), self._loop.close)
        return self._report(self._conclusion)

    def leave(self, reason: str) -> None:
        """Leave the job in order: publish it, stop the workers within their grace; `run` ends with status 75."""
        self._loop.post(events.LeaveAsked(reason))

    def stop(self, because: str = "") -> None:
        """As if the agent had received SIGTERM; a second call shortens the workers' grace. `because`: who asks."""
        self._loop.post(events.SignalReceived(transitions.SIGTERM, because))

    def ask(self, act: Act, because: str, label: str = "") -> None:
        """Have all ranks of the job do this at the next step boundary. `because`: who asks, in one sentence; `label`:
        of the checkpoint, which is then kept; cut to `MAX_LABEL_BYTES` of UTF-8."""
        cut = label.encode("utf-8", "replace")[:MAX_LABEL_BYTES].decode("utf-8", "ignore")
        self._loop.post(events.ActAsked(act, cut, because))

    def status(self) -> Status:
        """Where this node stands."""
        return status_of(self._node, self._rules, self.workers, self._spec.run_id)

    def members(self) -> tuple[Member, ...]:
        """All nodes of the running round, or of the one just over; while the store does not answer, those that this
        node knows. From any thread but the agent's own, as those of a large round are read from the store, once."""
        seen = self._node.latest_round
        if seen is None or not seen.begun:
            return ()
        try:
            return self.link.members(seen) if self._node.outage.until is None else seen.members
        except StoreError:
            return seen.members

    def known(self) -> Known:
        """All that it knows. From any thread; what belongs together may be of two moments."""
        return Known(self._rules.node, self._node, self._coordinator, self._rules, self._rendezvous, self._announced_s)

    def hang(self, round_number: int, local_rank: int, because: str, said: str = "") -> None:
        """End this round as by a failure of a worker that stands still, if both go on. `because`: its message."""
        self._loop.post(events.HangFound(round_number, local_rank, because, said))

    def close(self) -> None:
        """Release what an agent holds that is never run. `run` does it too."""
        self._loop.close()

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _linked(self) -> Link | Solo:
        link = self._linking.make(self._rules.node, self.name)
        self.workers.fencing, self.workers.held = link.fencing, link.held
        return link

    def _handle(self, event: object) -> None:
        if isinstance(event, Found):
            if self._linking.is_old(event):
                return
            event = event.event
        if isinstance(event, LoopAsked):
            event.answer()
            return
        now = self._loop.now()
        if isinstance(event, coordination.Event):
            step = coordinator.step(self._coordinator, event, now, self._rendezvous_rules)
            self._coordinator = step.state
            if isinstance(event, coordination.Elected | coordination.Deposed) and not self._node.hosting:
                self._tell(explain.leadership(step.state), step.state.version <= 1)
            for order in step.effects:
                self._carry_out(order)
            return
        if overtaken(event, self.link.newest):
            return
        before = self._node
        after = machine.step(before, event, now, self._rules)  # type: ignore[arg-type]
        self._node = after.node
        if after.node.latest_round is not before.latest_round:
            self._announced_s = now
        self._mention(before, event, now)
        self._perform(after.effects)

    def _mention(self, before: Node, event: object, now: float) -> None:
        node = self._node
        if (seen := describe(self.name, before, node, event, now)) is None:
            return
        if node.phase is Phase.STOPPING and before.phase is not Phase.STOPPING and node.verdict is not None:
            self._tell(f"stopping this node's workers; SIGKILL after {self._rules.grace_s:g} s", False)
        # The caller of `run` reports how it ended.
        if node.because != before.because and node.phase is not Phase.ENDED:
            self._tell(node.because, is_routine(event, before, node))
        if self._on_event is not None:
            self._on_event(seen)

    def _perform(self, effects: tuple[events.Effect, ...]) -> None:
        for effect in effects:
            _PERFORM[type(effect)](self, effect)

    def _carry_out(self, order: coordination.Effect) -> None:
        if isinstance(order, coordination.WakeAt):
            self._loop.wake_at(order.when, coordination.DeadlineReached())
        elif isinstance(order, coordination.Tell):
            self._tell(order.because, False)
        elif isinstance(order, coordination.MoveFence):
            if self.link.fencing is not None:
                self.link.fencing.hold(order.until - self._loop.now())
        else:
            if isinstance(order, coordination.Announce) and self._on_announce is not None:
                self._on_announce(order.round)
            self.link.carry_out(order)

    def _signalled(self, signum: int) -> None:
        guards = self._spec.guards
        if signum in self._spec.signals:
            self._loop.post(events.SignalReceived(signum))
        elif signum == guards.kill_signal:
            self.ask(Act.KILL, f"the kill signal {signum} to {self.name}")
        elif signum == guards.save_signal:
            self.ask(Act.SAVE, f"the save signal {signum} to {self.name}", "save-signal")
        else:
            self._loop.post(events.ForwardAsked(signum))

    def _post(self, event: object) -> None:
        self._loop.post(event)

    def _open_nursery(self) -> None:
        self.workers.open()
        self._loop.watch(self.workers.fileno, self._observe)

    def _observe(self) -> list[events.Event]:
        found = self.workers.observe()
        if not self.workers.supervisor.is_open:
            self._loop.forget(self.workers.fileno)  # closed by now
        return found

    def _watch_stuck(self) -> StuckWatch | None:
        if not self._spec.stuck_s:
            return None
        from .processes.stuck import StuckWatch

        return StuckWatch(self._spec.stuck_s, lambda: self.workers.alive, self.leave)

    def _watch_switches(self) -> Switches | None:
        guards = self._spec.guards
        if not guards.kill_switch and not guards.save_switch:
            return None
        from .steps.switches import Switches

        return Switches(guards, self._rules.node, self.ask, self._trouble)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _open_store(self, effect: events.OpenStore) -> None:
        if self._connected:  # the job goes on elsewhere, and no worker runs here
            node = os.urandom(8).hex()  # to others, the one before may have died
            self._rules = replace(self._rules, node=node)
            self._rendezvous_rules = replace(self._rendezvous_rules, own=node)
            old, self.link = self.link, self._linked()
            old.close()
            self._loop.forget(self.workers.fileno)
            self.workers.supervisor.close()
            self._coordinator = Rendezvous()
            self._open_nursery()
        self._connected = True
        self.link.open()

    def _prepare_place(self, effect: events.PreparePlace) -> None:
        try:
            nproc, port = self.workers.prepare()
        except (AgentError, OSError) as error:
            self._loop.post(events.PlaceFailed(refusal(error), is_of_host(error)))
            return
        self._loop.post(events.PlacePrepared(nproc, port))

    def _publish(self, effect: events.Publish) -> None:
        self.link.publish(effect.record)

    def _start_workers(self, effect: events.StartWorkers) -> None:
        for event in self.workers.start(effect.round, effect.member, effect.restart_count):
            self._loop.post(event)
        if self.workers.steps.fileno >= 0:
            self._loop.watch(self.workers.steps.fileno, self.workers.observe_steps)

    def _signal_workers(self, effect: events.SignalWorkers) -> None:
        self.workers.signal(effect.signum)

    def _forward_signal(self, effect: events.ForwardSignal) -> None:
        self.workers.supervisor.forward(effect.signum)

    def _ask_bound(self, effect: events.AskBound) -> None:
        for event in self.workers.ask_bound(effect.agreement):
            self._loop.post(event)

    def _decide_workers(self, effect: events.DecideWorkers) -> None:
        self.workers.steps.decide(effect.agreement)

    def _release_workers(self, effect: events.ReleaseWorkers) -> None:
        self.workers.steps.release(effect.agreement)

    def _kill_workers(self, effect: events.KillWorkers) -> None:
        self.workers.kill()

    def _name_leftovers(self, effect: events.NameLeftovers) -> None:
        self.workers.supervisor.name_leftovers()

    def _keep_leftovers(self, effect: events.KeepLeftovers) -> None:
        self.workers.keep_leftovers()

    def _restart_nursery(self, effect: events.RestartNursery) -> None:
        try:
            self._open_nursery()
        except OSError as error:
            self._loop.post(events.NurseryLost(f"another cannot be started: {refusal(error)}"))

    def _wake_at(self, effect: events.WakeAt) -> None:
        self._loop.wake_at(effect.when, events.DeadlineReached())

    def _conclude(self, effect: events.Conclude) -> None:
        self.link.resign()
        self._conclusion = effect

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _trouble(self, text: str) -> None:
        self.show(text, False)

    def _report(self, conclusion: events.Conclude) -> Report:
        node = self._node
        return Report(
            verdict=conclusion.verdict,
            failures=node.tally.failures,
            reports=dict(self.workers.reports),
            log_dir=self.workers.logs.path,
            temporary_dir=self.workers.logs.temporary,
            round=node.round,
            member=self.workers.member,
            nodes=self.workers.nodes,
            pids=self.workers.pids,
            ranks=self.workers.ranks if node.finished else (),
        )


_PERFORM: dict[type[events.Effect], Callable[[Agent, Any], None]] = {
    events.OpenStore: Agent._open_store,
    events.PreparePlace: Agent._prepare_place,
    events.Publish: Agent._publish,
    events.StartWorkers: Agent._start_workers,
    events.SignalWorkers: Agent._signal_workers,
    events.ForwardSignal: Agent._forward_signal,
    events.AskBound: Agent._ask_bound,
    events.DecideWorkers: Agent._decide_workers,
    events.ReleaseWorkers: Agent._release_workers,
    events.KillWorkers: Agent._kill_workers,
    events.NameLeftovers: Agent._name_leftovers,
    events.KeepLeftovers: Agent._keep_leftovers,
    events.RestartNursery: Agent._restart_nursery,
    events.WakeAt: Agent._wake_at,
    events.Conclude: Agent._conclude,
}
