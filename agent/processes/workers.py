"""This node's workers, round after round: their files, their port and store, their start and their exits.

Turns effects of the lifecycle into orders to the supervisor, and the supervisor's facts into events.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping

from ...proto.frozen import replace
from ...rendezvous.agreements import Agreement
from ...rendezvous.failures import Sign, WorkerFailure
from ...rendezvous.records import Member, Round
from ..errors import AgentError, HostFailed, UsageError, in_any_case, is_of_host, refusal
from ..failures.classify import died_importing
from ..failures.error_files import ErrorReport, failure_of
from ..failures.kernel import OomWatch, core_note, is_kill, is_suspended, oom_note
from ..lifecycle import restart_policy
from ..lifecycle.events import (
    Event,
    NurseryLost,
    StartFailed,
    WorkerExited,
    WorkersFenced,
    WorkersGone,
    WorkerStoreLost,
)
from ..output.last_lines import DRAIN_S, LastLines
from ..output.log_dirs import JobLogs
from ..spec import WorkerSpec
from ..steps.page import StepPage
from ..steps.seen import BY_AGENT, WorkersSeen
from .debugger import followed
from .environment import ready_file, worker_argv, worker_environment
from .master_port import MasterPort
from .protocol import (
    CPUS,
    Exited,
    Fact,
    Launch,
    Preloaded,
    PreloadFailed,
    PreloadWarning,
    SpawnFailed,
    Started,
    StoreEnded,
)
from .supervisor import Supervisor

TIMER_SWITCH = "TORCHELASTIC_ENABLE_FILE_TIMER"
CANNOT_START = 127
"""Exit code of a worker that could not be started at all: a shell's for a command that it cannot run."""

KILLED_BY = 9
"""SIGKILL, as the last signal sent to a worker."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...rendezvous.driver.fencing import Fencing
    from ..output.round_logs import RoundLogs
    from .file_timer import FileTimer
    from .preload import Preloading


class Workers:
    """Owns the supervisor, the logs and the port of one agent."""

    held = -1
    """What the nursery holds as long as a worker may run; -1: nothing."""
    fencing: Fencing | None = None
    """Until when workers may run; set before `open`."""

    def __init__(
        self,
        spec: WorkerSpec,
        name: str,
        host: str,
        logs: JobLogs,
        log: Callable[[str, bool], None],
        post: Callable[[object], None],
    ) -> None:
        """`log` gets each message about preloading, and whether it is routine; `post` gets events that `observe` could
        not return yet, from another thread."""
        self._spec, self._log = spec, log
        self._preloading = _preloading(spec, log)
        self._name, self._host, self.logs = name, host, logs
        self.supervisor = Supervisor(spec.orphan_grace_s, spec.own_directories)
        self.reports: dict[WorkerFailure, ErrorReport] = {}
        """The error report of each worker of the last round that exited or could not be started; for the summary."""
        self.round_logs: RoundLogs | None = None
        self._last_lines = LastLines(post)
        self.fileno = -1
        """Readable when `observe` has events to return."""
        self.member: Member | None = None
        """This node's place in the round whose workers were started last."""
        self.nodes = 0
        """Nodes of that round."""
        self._port, self.steps = MasterPort(spec, self.supervisor), StepPage()
        self._starting = 0
        """The local rank that is being started."""
        self._pids: dict[int, int] = {}
        self._started_s: dict[int, float] = {}
        """By local rank: when it was started, on this host's monotonic clock."""
        self._exited: dict[int, tuple[float, int]] = {}
        """By local rank: when it was gone, and its exit code."""
        self._failed: list[tuple[int, Sign]] = []
        self.on_seen: Callable[[WorkersSeen], None] | None = None
        """Called when workers begin, have begun, exit, or have written of their steps."""
        self._oom, self._round = OomWatch(), 0
        self._timer: FileTimer | None = None
        self._round_began_s = self._first_exit_s = 0.0
        self._order = 0
        """How many workers of the round have exited, or could not be started."""
        self._stopped_by: dict[int, int] = {}
        """Last signal sent, by local rank."""
        self._keeping = False
        """Processes that workers left behind run on, and hold their output open."""
        self._reports_ready = self._sought_ready = False
        """A worker of this node has made its ready file, in this round or an earlier one; one was sought."""
        self._suspended: set[int] = set()
        """Local ranks of the workers that a SIGSTOP or a debugger held when they were signalled."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks of the workers started last, by local rank."""
        member = self.member
        return tuple(range(member.rank_offset, member.rank_offset + member.nproc)) if member else ()

    @property
    def pids(self) -> dict[int, int]:
        """Process id by local rank, of the workers started last."""
        return dict(self._pids)

    @property
    def alive(self) -> dict[int, int]:
        """Process id by local rank, of the workers that run. From any thread."""
        pids = self.pids
        return {rank: pids[rank] for rank in self.supervisor.alive() if rank in pids}

    @property
    def started_s(self) -> dict[int, float]:
        """When each worker was started, by local rank, on this host's monotonic clock. From any thread."""
        return dict(self._started_s)

    @property
    def written(self) -> dict[int, int]:
        """Bytes that each worker has written to its stdout and stderr, by local rank. From any thread."""
        logs = self.round_logs
        return logs.written() if logs is not None else {}

    @property
    def preload(self) -> str:
        """The state of --preload, in words; empty without that flag."""
        return self._preloading.status if self._preloading is not None else ""

    def prepare(self) -> tuple[int, int]:
        """How many workers this node can run, and a port held free for the next round. Raises AgentError or OSError."""
        port = self._port.renew()
        return self._spec.count_workers(), port

    def start(self, round: Round, member: Member, restart_count: int) -> list[Event]:  # noqa: A002 - the field's word
        """Start the round's workers. Where the host refuses files or memory, nothing is raised: the failure is
        returned, as events."""
        self.member, self.nodes = member, round.nodes
        self._pids, self.reports = {}, {}
        self._started_s, self._exited, self._failed, self._round = {}, {}, [], round.number
        self._starting, self._order, self._round_began_s = 0, 0, time.monotonic()
        self._stopped_by.clear()
        self._suspended.clear()
        self._sought_ready = False
        self._oom.begin()
        try:
            cwd = _working_directory()
            if self.fencing is not None:
                self.supervisor.begin(self.fencing.read_in(round.version))
            self.supervisor.start(self._launches(round, member, restart_count, cwd), range(member.nproc))
            self._port.serve(round.number, member.group_rank)  # after the workers, which take longer to come to it
        except (AgentError, OSError) as error:
            failed = StartFailed(self._start_failure(self._starting, refusal(error), host=is_of_host(error)))
            # WorkersGone follows for those that were started.
            return [failed] if self.supervisor.busy() else [failed, WorkersGone()]
        finally:
            if self.round_logs is not None:
                self.round_logs.close_worker_ends()
        self._seen()
        return []

    def _seen(self) -> None:
        if self.on_seen is not None and (member := self.member) is not None:
            place = (time.monotonic(), self._round, member.nproc, member.rank_offset, self._round_began_s)
            known = (dict(self._started_s), dict(self._exited), self.steps.shown(), tuple(self._failed))
            self.on_seen(WorkersSeen(*place, *known))

    def _launches(self, round: Round, member: Member, restart_count: int, cwd: str) -> Iterator[Launch]:  # noqa: A002 - as above
        ranks = {local_rank: member.rank_offset + local_rank for local_rank in range(member.nproc)}
        addr = self._spec.master_addr or round.master_addr
        steps = self.steps.begin(member.nproc)

        def environment(local_rank: int, error_file: str = "") -> dict[str, str]:
            place = (addr, round.master_port, error_file, steps[local_rank])
            return worker_environment(self._spec, round, member, local_rank, restart_count, *place)

        # Only a class of another package, which says where logs go, looks at the environments before that is known.
        envs = {rank: environment(rank) for rank in ranks} if self._spec.logs.reify is not None else {}
        logs = self.logs.open_round(round.number, restart_count, ranks, member.role, self._host, envs)
        self.round_logs = logs
        forked = self._preloading is not None and self._preloading.forking and not self._spec.numa
        for local_rank in ranks:
            self._starting = local_rank
            out, err = logs.stdio(local_rank)
            env = envs.get(local_rank, {}) | environment(local_rank, logs.error_files[local_rank])
            if self._spec.numa:
                env[CPUS] = self._cpus(local_rank, self._spec.base_env if self._spec.virtual_local_rank else env)
            argv = followed(worker_argv(self._spec, local_rank))
            yield Launch(local_rank, argv, env, cwd, out, err, forked)
            logs.close_worker_ends()  # the nursery has them

    def _cpus(self, local_rank: int, env: Mapping[str, str]) -> str:
        """The CPUs to which a worker is bound, as numactl writes them; empty: not bound."""
        from . import numa

        try:
            return numa.ranges(numa.cpus_of(self._spec.numa, numa.gpus(env), local_rank))
        except (UsageError, OSError) as error:
            if not self._spec.numa_optional:
                raise
            self._log(f"local rank {local_rank} is not bound to CPUs: {error}", False)
            return ""

    def ask_bound(self, agreement: Agreement) -> list[Event]:
        """Ask the workers that run where they are."""
        return [*self.steps.ask(agreement, self.supervisor.alive())]

    def observe_steps(self) -> list[Event]:
        """What the workers say of their steps. Never blocks."""
        found: list[Event] = [*self.steps.observe(self.supervisor.alive())]
        self._seen()
        return found

    def observe(self) -> list[Event]:
        """What happened to the workers since the last call. Waits for no longer than `last_lines.AT_ONCE_S`."""
        return [event for fact in self.supervisor.observe() for event in self._events(fact)]

    def _events(self, fact: Fact) -> Iterator[Event]:
        if isinstance(fact, Started):
            self._pids[fact.key] = fact.pid
            self._started_s[fact.key] = time.monotonic()
            if self.member is not None and len(self._started_s) == self.member.nproc:
                self._seen()
                # An agreement that came with the round was asked for when no worker ran yet.
                yield from self.steps.review(self.supervisor.alive())
        elif isinstance(fact, SpawnFailed):
            yield StartFailed(self._start_failure(fact.key, fact.reason, host=fact.host))
        elif isinstance(fact, Exited):
            self._exited[fact.key] = time.monotonic(), fact.exit_code
            end = self._failure(fact.key, fact.pid, fact.exit_code, dumped=fact.dumped)
            self._failed += [(fact.key, end.sign)] if fact.exit_code and end.sign not in BY_AGENT else []
            self._seen()
            yield WorkerExited(fact.key, end, None) if fact.exit_code else WorkerExited(fact.key, None, end)
            yield from self.steps.review(self.supervisor.alive())
        elif isinstance(fact, WorkersFenced):
            # Their exits follow, and may have been read with it: `alive` would leave them out.
            self._stopped_by |= dict.fromkeys(self._pids.keys() - self._exited.keys(), KILLED_BY)
            yield fact
        elif isinstance(fact, StoreEnded):
            if self._port.lost(fact.round):
                yield WorkerStoreLost(fact.reason)
        elif isinstance(fact, Preloaded | PreloadFailed | PreloadWarning):
            if self._preloading is not None:
                self._preloading.report(fact)
        else:
            ends = isinstance(fact, NurseryLost) or (isinstance(fact, WorkersGone) and not self._keeping)
            if not (ends and self._last_lines.hold(fact, self.round_logs, 0.0 if self._keeping else DRAIN_S)):
                yield fact

    def signal(self, signum: int) -> None:
        """Signal every worker, and all it started, to end; record which workers a SIGSTOP or a debugger holds."""
        for local_rank in self.supervisor.unfinished():
            self._stopped_by[local_rank] = signum
            if local_rank in self._pids and is_suspended(self._pids[local_rank]):
                self._suspended.add(local_rank)
        self.supervisor.signal(signum)

    def kill(self) -> None:
        """SIGKILL every worker and all it started."""
        self._stopped_by.update(dict.fromkeys(self.supervisor.unfinished(), KILLED_BY))
        self.supervisor.kill()

    def keep_leftovers(self) -> None:
        """Let what the workers left behind run on. Its output is passed on until `close`."""
        self._keeping = True
        self.supervisor.keep_leftovers()

    def _failure(
        self, local_rank: int, pid: int, exit_code: int, message: str = "", *, dumped: bool = False
    ) -> WorkerFailure:
        rank = self.member.rank_offset + local_rank if self.member else local_rank
        logs = self.round_logs if not message and exit_code else None
        path = logs.error_files.get(local_rank, "") if logs else ""
        stopped_by = self._stopped_by.get(local_rank, 0)
        failure, report = failure_of(
            self._name,
            self._host,
            rank,
            local_rank,
            pid,
            exit_code,
            path,
            logs.stderr_tail(local_rank) if logs else None,
            stopped_by=stopped_by,
            suspended=local_rank in self._suspended,
        )
        now = time.monotonic()
        self._first_exit_s = self._first_exit_s if self._order else now
        self._order += 1
        note = self._note(pid, exit_code, stopped_by, dumped)
        started_s = self._started_s.get(local_rank)
        lived_s = None if started_s is None else now - started_s
        failure = replace(
            failure,
            order=self._order,
            after_s=now - self._first_exit_s,
            note=note,
            message=message or failure.message,
            lived_s=lived_s or 0.0,
            startup=self._in_startup(lived_s, path, failure.said) if exit_code else False,
            final=restart_policy.forbids_restart(self._spec.restarts, exit_code),
        )
        if note and is_kill(exit_code):
            failure = replace(failure, sign_because=f"was killed; {note}")
        self.reports[failure] = report
        return failure

    def _start_failure(self, local_rank: int, reason: str, *, host: bool) -> WorkerFailure:
        """The failure of a worker that never ran: its command is wrong, or the host refused a process or descriptor."""
        sign = Sign.HOST if host else Sign.OWN
        failure = self._failure(local_rank, 0, CANNOT_START, reason)
        return replace(failure, sign=sign, sign_because="could not be started")

    def _note(self, pid: int, exit_code: int, stopped_by: int, dumped: bool) -> str:
        if dumped:
            return core_note()
        if is_kill(exit_code) and stopped_by != KILLED_BY:
            return oom_note(pid, self._oom.kills(), self._round_began_s)
        return ""

    def _in_startup(self, lived_s: float | None, error_file: str, said: str) -> bool:
        ready: bool | None = bool(error_file) and os.path.exists(ready_file(error_file))
        if not self._sought_ready and not self._reports_ready and self.round_logs is not None:
            # Once a round, because there may be thousands of these files.
            self._sought_ready = True
            others = self.round_logs.error_files.values()
            self._reports_ready = any(path and os.path.exists(ready_file(path)) for path in others)
        self._reports_ready = self._reports_ready or bool(ready)
        if not self._reports_ready:
            ready = None
        return restart_policy.in_startup(self._spec.restarts, lived_s, ready, importing=died_importing(said))

    def _drain(self) -> None:
        if self.round_logs is not None:
            self.round_logs.finish(0.0 if self._keeping else DRAIN_S)

    def open(self) -> None:
        """Start the nursery, or another one after NurseryLost. Raises AgentError or OSError."""
        self.supervisor.open()
        self.fileno = self.supervisor.fileno()
        if self.fencing is not None:
            self.supervisor.fence(self.fencing.page.fd, self.fencing.presence_fd)
        self.supervisor.hold(self.held)
        if TIMER_SWITCH in self._spec.base_env and self._timer is None:
            from .file_timer import timer_of

            self._timer = timer_of(self._spec.base_env, lambda: self.supervisor.mark, self._log)
        if self._preloading is not None:
            self._preloading.begin(self.supervisor, _working_directory())

    def close(self) -> None:
        """End the nursery and everything below it; release the port, close the logs."""
        stop_timer = self._timer.close if self._timer is not None else lambda: None
        rest = (self._drain, self.logs.close, self._last_lines.close, self._port.close, self.steps.close)
        in_any_case(stop_timer, self.supervisor.close, *rest)


def _preloading(spec: WorkerSpec, log: Callable[[str, bool], None]) -> Preloading | None:
    if not spec.preload:
        return None
    from .preload import Preloading

    return Preloading(spec, log)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise HostFailed(
            f"the working directory is gone ({error.strerror}), and workers start in it; start the agent in another one"
        ) from error
