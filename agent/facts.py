"""What the supervisor tells of this node's worker processes, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass


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


Fact = Started | SpawnFailed | Exited | Unheard | Emptied | NurseryLost
