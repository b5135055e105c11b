"""What crosses between agent and nursery: orders as frames, reports as lines.

* to the nursery, frames (`agent/nursery/frames.py`): `start KEY TO_COME HAS_STDOUT HAS_STDERR CWD ARGC ARGV...
  NAME=VALUE...`, `fork` with the same fields, `no_more` where a batch ends early, `preload MODULES PER_ROUND CWD ARGC
  ARGV... NAME=VALUE...`, `signal N`, `forward N`, `kill_group KEY`, `kill`, `name`, `keep`, `serve ROUND` with a
  listening socket, `end_store`, `fence 0|1` with its memory (`agent/nursery/fence.py`) and, if 1, the agent's
  presence, `begin GENERATION` before the workers of a round, where there is a fence; `hold` with a descriptor that
  stays open as long as a worker may run;
* from it, lines: `nursery PID CGROUP`, `started KEY PID`, `start_failed KEY REASON`, `fork_failed KEY REASON`,
  `exited KEY PID CODE DUMPED`, `emptied`, `not_forwarded KEY N`, `preloaded SECONDS RSS_KIB PSS_KIB MODULES`,
  `preload_failed REASON`, `preload_warning TEXT`, `leftovers COUNT PID COMMAND<TAB>PID COMMAND...`,
  `store_ended ROUND REASON`, `fenced` before workers are killed, or not started, because the fence is passed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...proto.frozen import dataclass
from ...rendezvous.text import shorten
from ..errors import InternalError, UsageError
from ..lifecycle.events import LeftoversNamed, NurseryLost, SignalNotForwarded, WorkersFenced, WorkersGone
from .nursery_process import MARK

COMMAND_MAX = 60
"""Characters of a process's command that go into a message."""
CPUS = "ELASTIC_AGENT_CPUS"
"""A variable of a launch, which the worker does not get: the CPUs it may use (`0-3,8`); empty or missing: those that
the nursery may use."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One worker to start. Strings may hold no NUL."""

    key: int
    """Identifies the worker in all facts: its local rank."""
    argv: tuple[str, ...]
    """Looked up on the PATH of `env` if its first word has no slash."""
    env: Mapping[str, str]
    """All of the worker's environment; `MARK` is added."""
    cwd: str
    """Absolute."""
    stdout_fd: int | None = None
    """Becomes the worker's stdout; the caller may close it once `start` returned. None: the agent's own."""
    stderr_fd: int | None = None
    forked: bool = False
    """Whether it may be forked with modules imported; then `argv` is `python -u [-m] SCRIPT ...`. See `preload`."""


def encode(launch: Launch, to_come: int, mark: str) -> bytes:
    """The frame's body; `to_come` counts this launch and those behind it in its batch, `mark` is NAME=VALUE. Raises
    UsageError if a string holds a NUL."""
    fields = command_fields(launch, mark)
    verb = b"fork" if launch.forked else b"start"
    has = [b"0" if fd is None else b"1" for fd in (launch.stdout_fd, launch.stderr_fd)]
    return b"\0".join([verb, b"%d" % launch.key, b"%d" % to_come, *has, *map(os.fsencode, fields)])


def command_fields(launch: Launch, mark: str) -> list[str]:
    """CWD ARGC ARGV... NAME=VALUE... of a launch. Raises UsageError if one holds a NUL."""
    fields = [
        launch.cwd,
        str(len(launch.argv)),
        *launch.argv,
        *(f"{k}={v}" for k, v in launch.env.items() if k != MARK),
    ]
    fields.append(mark)
    if at := next((field for field in fields if "\0" in field), None):
        raise UsageError(f"worker {launch.key} cannot start: {at!r} holds a NUL character; take it out")
    return fields


def fds_of(launch: Launch) -> list[int]:
    """The descriptors that go with a launch."""
    return [fd for fd in (launch.stdout_fd, launch.stderr_fd) if fd is not None]


# -- reports, in the order in which it happened ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The worker's program runs (exec succeeded), or the worker was killed before its exec."""

    key: int
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The worker never ran. `reason` is the kernel's: "No such file or directory: 'foo'"."""

    key: int
    reason: str
    host: bool = False
    """The host refused a process or a descriptor for it, whatever its command."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The worker itself exited; what it started may still run, and can still be signalled. Follows Started."""

    key: int
    pid: int
    exit_code: int
    """As in `subprocess`: negative is the signal that killed it."""
    dumped: bool = False
    """The kernel wrote a core dump of it, or piped one to a handler (waitid(2), CLD_DUMPED)."""


@dataclass(frozen=True, slots=True)
class Preloaded:
    """From now on workers are forked from a process that has imported these modules."""

    modules: tuple[str, ...]
    took_s: float
    rss_kib: int
    """What the process has in memory."""
    pss_kib: int
    """The same, with shared pages divided among the processes that share them. Workers share all of it until they
    write."""


@dataclass(frozen=True, slots=True)
class PreloadFailed:
    """From now on every worker is started plainly."""

    reason: str


@dataclass(frozen=True, slots=True)
class PreloadWarning:
    """Preloading goes on, but leaves something out."""

    text: str


@dataclass(frozen=True, slots=True)
class StoreEnded:
    """The process that served the workers' store of this round has died, or could not be started."""

    round: int
    reason: str


Fact = (
    Started
    | SpawnFailed
    | Exited
    | SignalNotForwarded
    | WorkersFenced
    | WorkersGone
    | LeftoversNamed
    | NurseryLost
    | Preloaded
    | PreloadFailed
    | PreloadWarning
    | StoreEnded
)
"""What the supervisor reports. What says all that the machine needs is an event of the machine already."""


def parse_fact(line: str) -> Fact:
    """The fact that a line from the nursery reports. Raises InternalError for an unknown verb."""
    verb, *fields = line.split(" ", 2)
    if verb == "started":
        return Started(int(fields[0]), int(fields[1]))
    if verb in ("start_failed", "fork_failed"):
        return SpawnFailed(int(fields[0]), fields[1], host=verb == "fork_failed")
    if verb == "exited":
        pid, exit_code, dumped = map(int, fields[1].split())
        return Exited(int(fields[0]), pid, exit_code, bool(dumped))
    if verb == "not_forwarded":
        return SignalNotForwarded(int(fields[0]), int(fields[1]))
    if verb == "fenced":
        return WorkersFenced()
    if verb == "emptied":
        return WorkersGone()
    if verb == "leftovers":
        pairs = (each.partition(" ") for each in "".join(fields[1:]).split("\t") if each)
        return LeftoversNamed(int(fields[0]), tuple(f"{pid} ({shorten(name, COMMAND_MAX)})" for pid, _, name in pairs))
    if verb == "preloaded":
        rss_kib, pss_kib, modules = fields[1].split(" ")
        return Preloaded(tuple(modules.split(",")) if modules else (), float(fields[0]), int(rss_kib), int(pss_kib))
    if verb in ("preload_failed", "preload_warning"):
        return (PreloadFailed if verb == "preload_failed" else PreloadWarning)(" ".join(fields))
    if verb == "store_ended":
        return StoreEnded(int(fields[0]), fields[1])
    raise InternalError(f"unknown report {line!r} from the nursery; agent and nursery differ in version")
