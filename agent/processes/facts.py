"""What the supervisor tells of this node's worker processes, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InternalError


@dataclass(frozen=True, slots=True)
class Started:
    """The worker's program runs (exec succeeded), or it was killed on the way there."""

    key: int
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The worker never ran. `reason` as the kernel put it: "No such file or directory: 'foo'"."""

    key: int
    reason: str
    machine: bool = False
    """There was no process for it, whatever its command."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The worker itself is gone; what it started may live on, and can still be signalled. Follows Started."""

    key: int
    pid: int
    exit_code: int
    """As `subprocess` has it: negative is the signal that killed it."""
    dumped: bool = False
    """The kernel wrote a core dump of it, or handed one over (waitid(2), CLD_DUMPED)."""


@dataclass(frozen=True, slots=True)
class Unheard:
    """`forward` passed the worker by: it has no handler for the signal, whose default would end or stop it."""

    key: int
    signum: int


@dataclass(frozen=True, slots=True)
class Emptied:
    """No worker and nothing that a worker started is left. Once for all starts since the last one."""


@dataclass(frozen=True, slots=True)
class NurseryLost:
    """The nursery died, and the workers with it. `open()` starts another."""

    reason: str


@dataclass(frozen=True, slots=True)
class Preloaded:
    """From now on workers are forked from a process that has imported these modules."""

    modules: tuple[str, ...]
    took_s: float
    rss_kib: int
    """What the process has in memory."""
    pss_kib: int
    """The same, with what it shares divided among those who share it. Workers share all of it until they write."""


@dataclass(frozen=True, slots=True)
class Unpreloaded:
    """From now on every worker is started plainly."""

    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something about preloading that people should know."""

    text: str


Fact = Started | SpawnFailed | Exited | Unheard | Emptied | NurseryLost | Preloaded | Unpreloaded | Note


def fact_in(line: str) -> Fact:
    """The fact that a line from the nursery tells. Raises InternalError if there is none."""
    verb, *words = line.split(" ", 2)
    if verb == "started":
        return Started(int(words[0]), int(words[1]))
    if verb == "failed":
        return SpawnFailed(int(words[0]), words[1])
    if verb == "unborn":
        return SpawnFailed(int(words[0]), words[1], machine=True)
    if verb == "exited":
        pid, exit_code, dumped = map(int, words[1].split())
        return Exited(int(words[0]), pid, exit_code, bool(dumped))
    if verb == "unheard":
        return Unheard(int(words[0]), int(words[1]))
    if verb == "emptied":
        return Emptied()
    if verb == "preloaded":
        rss_kib, pss_kib, modules = words[1].split(" ")
        return Preloaded(tuple(modules.split(",")) if modules else (), float(words[0]), int(rss_kib), int(pss_kib))
    if verb in ("unpreloaded", "note"):
        return (Unpreloaded if verb == "unpreloaded" else Note)(" ".join(words))
    raise InternalError(f"the nursery said {line!r}; agent and nursery differ in version")
