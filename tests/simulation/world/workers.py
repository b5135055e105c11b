"""The simulated nursery of one node: workers that run, fail, leave processes behind, and outlive SIGKILL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle import restart_policy
from elastic_agent.agent.lifecycle.events import (
    NurseryLost,
    StartFailed,
    WorkerExited,
    WorkersFenced,
    WorkersGone,
    WorkerStoreLost,
)
from elastic_agent.proto.endings import PREEMPTED
from elastic_agent.rendezvous.failures import Sign, WorkerFailure
from elastic_agent.rendezvous.records import Member, Round

from ..stores.driver_link import DriverLink
from .fence import SimFence

if TYPE_CHECKING:
    from .node import SimNode
    from .ranks import Ranks
    from .world import World


OWN_CODE = 7
"""Exit code of a worker that raised an exception of its own; others say nothing of their cause."""
CRASH_S = 2.0
"""Longest life of a worker that crashes by habit."""


@dataclass
class Habit:
    """How a node's workers behave. Times in seconds."""

    work_s: float | None = None
    """From start to exit 0; None: until a story ends it."""
    spread_s: float = 0.0
    """Each worker takes up to this much longer."""
    start_fails: float = 0.0
    """Probability that one cannot be started."""
    crashes: float = 0.0
    """Probability that one fails soon after its start, in each round."""
    ignores_term: float = 0.0
    unkillable: float = 0.0
    """Probability that SIGKILL does not end it, as when it is stuck in the kernel."""
    plain: bool = False
    """Workers do not use the library, and come to no step boundaries."""
    saves_s: float = 0.0
    """How long they take to save at a boundary."""
    step_s: float = 0.0
    """From boundary to boundary; 0: wherever they are asked, they are at their first."""
    attaches_s: float = 0.0
    """With `step_s`: from the start of the last until all have made a Run, at most."""
    lingers: float = 0.0
    """Probability that workers that exited 0 leave processes behind."""


class Worker:
    """One simulated process."""

    def __init__(self, rank: int, local_rank: int, pid: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.pid = pid
        self.alive = True
        self.ignores_term = False
        self.unkillable = False


class Nursery:
    """Starts, signals and ends the workers of one node; posts what happens to its agent."""

    def __init__(self, world: World, node: SimNode, habit: Habit) -> None:
        self.world = world
        self.node = node
        self.habit = habit
        self.round = 0
        self.live: dict[int, Worker] = {}
        self.leftovers = False
        self.leftovers_stubborn = False
        self.open = False
        """Workers were started, and WorkersGone has not been posted for them."""
        self.clean: dict[int, int] = {}
        """Per round: how many workers exited 0, with which exit statuses are compared."""
        self.failed: set[int] = set()
        """Rounds in which a worker of this node failed before the workers were stopped."""
        self.raised: set[int] = set()
        """Those in which one did by an error of its own, and showed it."""
        self.codes: dict[int, list[int]] = {}
        """Per round: exit codes other than 0."""
        self.saved: set[int] = set()
        """Rounds in which workers were told at which boundary to save."""
        self.stuck_until = 0.0
        """When the last worker that SIGKILL did not end has ended by itself."""
        self.losses: list[float] = []
        """When its process died, or the one that serves the workers' store."""
        self.serves = 0
        """The round whose workers' store is served here; 0: none."""
        self.storeless: set[int] = set()
        """Rounds that lost the workers' store that was served here."""
        self.stopped = False
        self.dead = False
        """Its process died, and the agent has not started another."""
        self.fence = SimFence(self)
        self.fenced_rounds: set[int] = set()
        """Rounds whose workers the fence ended, or did not let start."""
        self._due: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        """What is to happen as soon as the host runs again."""
        self.ranks: Ranks | None = None
        """All ranks of the round, where they come to boundaries."""

    @property
    def busy(self) -> bool:
        return bool(self.live) or self.leftovers

    @property
    def stuck(self) -> bool:
        """A worker lives that SIGKILL does not end."""
        return any(worker.unkillable for worker in self.live.values())

    def start(self, running: Round, member: Member) -> None:
        self.round = running.number
        self.serves = running.number if member.group_rank == 0 and not self.dead else 0
        self.open, self.stopped, self.leftovers = not self.dead, False, False
        self.clean[self.round] = 0
        self.ranks = None
        if self.dead:
            return
        link = self.node.link
        fencing = link.fencing if isinstance(link, DriverLink) else None
        if fencing is not None and not self.fence.begin(fencing.read_in(running.version)):
            self.fenced()
            return
        rng = self.world.rng
        for local_rank in range(member.nproc):
            rank = member.rank_offset + local_rank
            if rng.random() < self.habit.start_fails:
                failure = self._failure(Worker(rank, local_rank, 0), 127, "cannot be started")
                self.failed.add(self.round)
                self.later(self.world.delays.local(), self._start_failed, self.round, failure)
                continue
            self.world.pids += 1
            worker = Worker(rank, local_rank, self.world.pids)
            worker.ignores_term = rng.random() < self.habit.ignores_term
            worker.unkillable = worker.ignores_term and rng.random() < self.habit.unkillable
            self.live[local_rank] = worker
            if self.habit.crashes and rng.random() < self.habit.crashes:
                self.later(rng.random() * CRASH_S, self._crash, worker)
            if self.habit.work_s is not None:
                lasts_s = self.habit.work_s + rng.random() * self.habit.spread_s
                self.later(lasts_s, self._finish, worker)
        if self.habit.step_s:
            self.ranks = self.world.ranks_of(running, self.habit)
            self.ranks.started(self)

    def _finish(self, worker: Worker) -> None:
        if self.ranks is None:
            self.exit(worker, 0)
        elif worker.alive:
            self.ranks.exits(self, worker)

    def _start_failed(self, number: int, failure: WorkerFailure) -> None:
        if self.open and self.round == number:
            self.world.disturbed(number, self.node, "failure")
            self.node.post_later(StartFailed(failure))
            self._settle()

    def _crash(self, worker: Worker) -> None:
        if worker.alive and not self.stopped:
            self.world.checkers.last_fault = self.world.now
            self.exit(worker, 1)

    def exit(self, worker: Worker, code: int, *, of_a_peer: bool = False) -> None:
        """The worker has ended; its peers on other nodes may fail of it. `of_a_peer`: so did this one."""
        if not worker.alive:
            return
        worker.alive = False
        self.live.pop(worker.local_rank, None)
        if worker.unkillable:
            self.stuck_until = self.world.now
        if code == 0:
            self.clean[self.round] += 1
        elif not self.stopped:
            self.failed.add(self.round)
            if code == OWN_CODE and not of_a_peer:
                self.raised.add(self.round)
            self.world.disturbed(self.round, self.node, "failure")
        failure = self._failure(worker, code, of_a_peer=of_a_peer) if code else None
        if code:
            self.codes.setdefault(self.round, []).append(code)
            if code == PREEMPTED:
                self.world.checkers.liveness.held_s = self.world.job.grace_s
        self.node.post_later(WorkerExited(worker.local_rank, failure))
        if code:
            self.world.echo(self.node, self.round)
        elif not self.live and not self.stopped and self.world.rng.random() < self.habit.lingers:
            self._linger()
        self._settle()
        if self.ranks is not None:
            self.ranks.lost_one()

    def _linger(self) -> None:
        self.leftovers = True
        self.leftovers_stubborn = self.world.rng.random() < 0.3
        if self.world.rng.random() < 0.5:
            self.later(self.world.rng.random() * 4, self._leftovers_end, self.round)

    def _leftovers_end(self, number: int) -> None:
        if self.leftovers and self.round == number:
            self.leftovers = False
            self._settle()

    def signal(self, signum: int) -> None:
        self.stopped = True
        rng = self.world.rng
        for worker in list(self.live.values()):
            if not worker.ignores_term:
                code = -signum if rng.random() < 0.9 else rng.choice((0, 1))
                self.later(self.world.delays.dying(), self.exit, worker, code)
        if self.leftovers and not self.leftovers_stubborn:
            self.later(self.world.delays.dying(), self._leftovers_end, self.round)
        self._settle()

    def kill(self) -> None:
        self.stopped = True
        for worker in list(self.live.values()):
            if not worker.unkillable:
                self.later(self.world.delays.local(), self.exit, worker, -9)
        if self.leftovers:
            self.later(self.world.delays.local(), self._leftovers_end, self.round)
        self._settle()

    def resume(self) -> None:
        """Its host runs again: what was due meanwhile happens now."""
        due, self._due = self._due, []
        for act, args in due:
            act(*args)
        self.world.checkers.worlds.started(self.node)

    def later(self, delay: float, act: Callable[..., None], *args: object) -> None:
        """Call `act`, or, while the host is suspended, as soon as it runs again."""
        self.world.at(delay, self._happens, act, args)

    def _happens(self, act: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.node.suspended:
            self._due.append((act, args))
        else:
            act(*args)

    def keep(self) -> None:
        """What workers left behind runs on without the agent."""
        self.leftovers = False
        self._settle()

    def lose(self) -> None:
        """The process that owns the workers dies, and the workers with it."""
        if self.open and self.live and not self.stopped:
            self.world.disturbed(self.round, self.node, "loss")
        self.vanish()
        self.dead, self.serves = True, 0
        self.losses.append(self.world.now)
        self.node.post_later(NurseryLost("signal 9"))

    def fenced(self) -> None:
        """The fence is passed: the workers are killed, at once."""
        self.fenced_rounds.add(self.round)
        if self.node.done:
            self.vanish()
            return
        self.world.checkers.worlds.fenced(self.node)
        if self.open and not self.stopped:
            self.world.disturbed(self.round, self.node, "loss")
            self.losses.append(self.world.now)
        self.stopped = True
        self.node.post_later(WorkersFenced())
        self.leftovers = False
        for worker in list(self.live.values()):
            if not worker.unkillable:
                self.exit(worker, -9)
        self._settle()

    def lose_store(self) -> None:
        """The process dies that serves the workers' store of this node's round."""
        if not self.serves:
            return
        if self.open and self.live and not self.stopped:
            self.world.disturbed(self.round, self.node, "loss")
            self.losses.append(self.world.now)
            self.world.reached.note("a round lost its workers' store")
        self.storeless.add(self.serves)
        self.serves = 0
        self.node.post_later(WorkerStoreLost("it was killed by signal 9"))

    def vanish(self) -> None:
        """All processes are dead at once, without an event for the agent."""
        had = bool(self.live)
        for worker in self.live.values():
            worker.alive = False
        self.live.clear()
        self.leftovers = self.open = False
        if had:
            self.world.echo(self.node, self.round)
            if self.ranks is not None:
                self.ranks.lost_one()

    def _settle(self) -> None:
        ended = self.stopped or self.clean[self.round] or PREEMPTED in self.codes.get(self.round, ())
        if self.open and not self.busy and ended:
            self.open = False
            self.node.post_later(WorkersGone())

    def _failure(self, worker: Worker, code: int, message: str = "", *, of_a_peer: bool = False) -> WorkerFailure:
        final = restart_policy.forbids_restart(self.world.job.restarts, code)
        failure = WorkerFailure(
            self.node.ident, "host", worker.rank, worker.local_rank, worker.pid, code, message, final=final
        )
        if self.stopped:
            return replace(failure, stopped_by=15, sign=Sign.STOPPED)
        if of_a_peer:
            return replace(failure, sign=Sign.PEER, sign_because="lost its connection to rank 0")
        own = code == OWN_CODE
        return replace(failure, sign=Sign.OWN, sign_because=f"raised ValueError: step {worker.pid}") if own else failure
