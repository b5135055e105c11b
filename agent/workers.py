"""This node's workers of one round after another: their files, their ports, their start, and what becomes of them.

Turns effects into requests to the supervisor, and the supervisor's facts into events.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

from ..rendezvous.records import Member, Round, WorkerFailure
from . import policy
from .environment import ready_file, worker_argv, worker_environment
from .errors import AgentError, UsageError
from .events import NurseryLost, SignalUnheard, StartFailed, WorkerExited, WorkersGone, WorkerStarted
from .facts import Emptied, Exited, Fact, SpawnFailed, Started, Unheard
from .facts import NurseryLost as SupervisorLost
from .failures import ErrorReport, failure_of
from .logs import JobLogs, RoundLogs
from .ports import PortHold, hold_port
from .spec import WorkerSpec
from .supervisor import Launch, Supervisor

CANNOT_START = 127
"""Exit code given to a worker that could not be started at all; a shell's code for a command that it cannot run."""

DRAIN_S = 5.0
"""How long the last lines of workers that are gone may take to reach console and files."""

WorkerEvent = WorkerStarted | WorkerExited | StartFailed | WorkersGone | NurseryLost | SignalUnheard


class Workers:
    """Owns the supervisor, the logs and the port of one agent."""

    def __init__(self, spec: WorkerSpec, name: str, host: str, logs: JobLogs) -> None:
        self._spec = spec
        self._name = name
        self._host = host
        self.logs = logs
        self.supervisor = Supervisor(spec.orphan_grace_s)
        self.reports: dict[WorkerFailure, ErrorReport] = {}
        """What failed workers said, for the summary; of the last round that had failures."""
        self.round_logs: RoundLogs | None = None
        self.fileno = -1
        """Readable when `observe` has something to tell."""
        self._member: Member | None = None
        self._port: PortHold | None = None
        self._pids: dict[int, int] = {}
        self._born: dict[int, float] = {}
        """By local rank: when it was started, on this host's monotonic clock."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks of the workers started last, by local rank."""
        member = self._member
        return tuple(range(member.rank_offset, member.rank_offset + member.nproc)) if member else ()

    @property
    def pids(self) -> dict[int, int]:
        """Process id by local rank, of the workers started last."""
        return dict(self._pids)

    def prepare(self) -> tuple[int, int]:
        """How many workers there is room for, and a port held free for the next round. Raises AgentError or OSError."""
        if self._port is not None:
            self._port.close()
            self._port = None
        nproc = self._spec.count_workers()
        if self._spec.master_port is not None:
            return nproc, self._spec.master_port
        self._port = hold_port()
        return nproc, self._port.port

    def start(self, round: Round, member: Member, restart_count: int) -> list[WorkerEvent]:  # noqa: A002 - the field's word
        """Start the round's workers. Returns StartFailed instead of raising where files or memory are short."""
        self._member = member
        self._pids = {}
        self._born = {}
        self.reports = {}
        try:
            cwd = _working_directory()
            launches = list(self._launches(round, member, restart_count, cwd))
            self.supervisor.start(launches)
        except (AgentError, OSError) as error:
            failure = self._failure(0, 0, CANNOT_START, str(error))
            return [StartFailed(failure), WorkersGone()]
        finally:
            if self.round_logs is not None:
                self.round_logs.handed_over()
        return []

    def _launches(self, round: Round, member: Member, restart_count: int, cwd: str) -> Iterator[Launch]:  # noqa: A002 - as above
        ranks = {local_rank: member.rank_offset + local_rank for local_rank in range(member.nproc)}
        logs = self.logs.open_round(round.number, restart_count, ranks, member.role, self._host)
        self.round_logs = logs
        addr = self._spec.master_addr or round.master_addr
        for local_rank in ranks:
            out, err = logs.stdio(local_rank)
            env = worker_environment(
                self._spec,
                round,
                member,
                local_rank,
                restart_count,
                addr,
                round.master_port,
                logs.error_files[local_rank],
            )
            yield Launch(local_rank, worker_argv(self._spec, local_rank), env, cwd, out, err)

    def observe(self) -> list[WorkerEvent]:
        """What has become of the workers since the last time. Never blocks."""
        return [event for fact in self.supervisor.observe() for event in self._understand(fact)]

    def _understand(self, fact: Fact) -> Iterator[WorkerEvent]:
        if isinstance(fact, Started):
            self._pids[fact.key] = fact.pid
            self._born[fact.key] = time.monotonic()
            yield WorkerStarted(fact.key, fact.pid)
        elif isinstance(fact, SpawnFailed):
            yield StartFailed(self._failure(fact.key, 0, CANNOT_START, fact.reason))
        elif isinstance(fact, Exited):
            failed = fact.exit_code != 0
            yield WorkerExited(fact.key, self._failure(fact.key, fact.pid, fact.exit_code) if failed else None)
        elif isinstance(fact, Unheard):
            yield SignalUnheard(fact.key, fact.signum)
        elif isinstance(fact, Emptied):
            self._drain()
            yield WorkersGone()
        elif isinstance(fact, SupervisorLost):
            self._drain()
            yield NurseryLost(fact.reason)

    def _failure(self, local_rank: int, pid: int, exit_code: int, message: str = "") -> WorkerFailure:
        rank = self._member.rank_offset + local_rank if self._member else local_rank
        path = self.round_logs.error_files.get(local_rank, "") if self.round_logs and not message else ""
        failure, report = failure_of(self._name, self._host, rank, local_rank, pid, exit_code, path)
        failure = replace(
            failure,
            message=message or failure.message,
            startup=self._in_startup(local_rank, path),
            final=policy.forbids_restart(self._spec.restarts, exit_code),
        )
        self.reports[failure] = report
        return failure

    def _in_startup(self, local_rank: int, error_file: str) -> bool:
        born = self._born.get(local_rank)
        lived_s = None if born is None else time.monotonic() - born
        return policy.in_startup(
            self._spec.restarts, lived_s, bool(error_file) and os.path.exists(ready_file(error_file))
        )

    def _drain(self) -> None:
        if self.round_logs is not None:
            self.round_logs.finish(DRAIN_S)

    def open(self) -> None:
        """Start the nursery, or another in place of one that died."""
        self.supervisor.open()
        self.fileno = self.supervisor.fileno()

    def close(self) -> None:
        """End the nursery and whatever lives below it; give ports and logs back."""
        self.supervisor.close()
        self._drain()
        self.logs.close()
        if self._port is not None:
            self._port.close()


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the working directory is gone, and workers start there ({error.strerror}); start the agent somewhere else"
        ) from error
