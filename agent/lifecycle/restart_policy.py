"""When failed workers are started again: the budget, the pauses of a crash loop, what forbids a restart. Pure.

Decides from what a node was charged so far, the time, and the rules. A charge is a failure of the node's own workers
that the coordinator settled on. What preemption, a change of membership or the loss of another node led to is never
charged (`rendezvous/coordinator/charging.py`), so it neither uses up the budget nor makes a crash loop. Failures of the
host are counted apart, and a host that keeps failing leaves the job.
"""

from __future__ import annotations

from ...proto.frozen import dataclass, replace
from ..exit_status import NO_RESTART

MAX_HOST_FAILURES = 3
"""Failures of the host in a row after which its node leaves the job. One may be chance, the second gets a pause."""

HEALTHY_S = 600.0
"""A host that has kept its workers for so long is healthy, and its earlier failures count no more; as kubelet does."""

STOPS = frozenset({1, 2, 3, 15})
"""Signals by which schedulers ask processes to stop: SIGHUP, SIGINT, SIGQUIT, SIGTERM."""

PREEMPTION_S = 1.0
"""A scheduler signals all processes of a step one after the other. Where a worker was signalled first, and no restart
is left, its agent waits this long for the same signal."""

STEEPEST = 32
"""Doublings of a pause that are counted; no configurable pause takes as many to reach its longest."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules. Times in seconds."""

    max_restarts: int = 0
    window_s: float = 0.0
    """The budget counts the charges of the last so many seconds; 0: of the whole job."""
    pause_min_s: float = 0.0
    """The shortest pause of a crash loop; 0: none."""
    pause_max_s: float = 0.0
    """The longest. Workers that run longer than this are in no crash loop: they fail more rarely than the pauses."""
    startup_s: float = 30.0
    """A worker that fails later has not failed in its start-up."""
    no_restart_codes: frozenset[int] = frozenset({NO_RESTART})


@dataclass(frozen=True, slots=True)
class Charge:
    """A failure that cost this node a restart; or, among failures of its host, none."""

    at: float
    """When its first worker failed, on this host's monotonic clock."""
    pause_s: float = 0.0
    """The pause that followed."""


@dataclass(frozen=True, slots=True)
class History:
    """What a node was charged so far, or how often its host failed."""

    total: int = 0
    recent: tuple[Charge, ...] = ()
    """The last ones, oldest first: as many as any rule looks at."""

    def add(self, charge: Charge, policy: Policy) -> History:
        """The history with one more charge; keeps as many as any rule of `policy` looks at."""
        kept = (*self.recent, charge)[-max(policy.max_restarts, STEEPEST) :]
        return replace(self, total=self.total + 1, recent=kept)


def restarts_left(policy: Policy, history: History, at: float) -> int:
    """How many failures may still be answered with a restart, one at `at` included."""
    counted = sum(at - charge.at < policy.window_s for charge in history.recent) if policy.window_s else history.total
    return max(0, policy.max_restarts - counted)


def failures_in_a_row(policy: Policy, history: History, at: float) -> int:
    """How long a crash loop is with a failure at `at`; 1: it is none. Each failure of a loop came no later than
    `pause_max_s` after the pause of the one before."""
    return _in_a_row(history, at, policy.pause_max_s)


def host_keeps_failing(failures: History, at: float) -> bool:
    """Whether a failure of the host at `at`, after these, is one too many. A failure counts if it came no later than
    `HEALTHY_S` after the pause of the one before."""
    return _in_a_row(failures, at, HEALTHY_S) >= MAX_HOST_FAILURES


def _in_a_row(history: History, at: float, well_after_s: float) -> int:
    length = 1
    for charge in reversed(history.recent):
        if at > charge.at + charge.pause_s + well_after_s:
            break
        length += 1
        at = charge.at
    return length


def pause_s(policy: Policy, history: History, at: float, jitter: tuple[float, ...]) -> float:
    """How long after a failure at `at` workers may be started again, at the earliest.

    Nothing for the first failure; then `pause_min_s` and twice as much from each to the next, up to `pause_max_s`. Each
    is drawn from the upper half of its range by `jitter`, numbers from 0 to 1 that are used in turn; the first from
    `pause_min_s` to twice that. So nodes that fail together come back apart. Nothing, too, where no restart follows.
    """
    if restarts_left(policy, history, at) == 0:
        return 0.0
    return _pause_s(policy, failures_in_a_row(policy, history, at) - 1, jitter[history.total % len(jitter)])


def host_pause_s(policy: Policy, failures: History, at: float, jitter: tuple[float, ...]) -> float:
    """As `pause_s` for a failure of the host, whatever the budget."""
    return _pause_s(policy, _in_a_row(failures, at, HEALTHY_S) - 1, jitter[failures.total % len(jitter)])


def _pause_s(policy: Policy, again: int, share: float) -> float:
    """`again`: failures before this one; `share`: where in its range the pause lies, from 0 to 1."""
    if again == 0 or policy.pause_min_s == 0:
        return 0.0
    high = min(policy.pause_max_s, policy.pause_min_s * float(1 << min(again, STEEPEST)))
    low = max(policy.pause_min_s, high / 2)
    return low + (high - low) * share


def in_startup(policy: Policy, lived_s: float | None, ready: bool | None, *, importing: bool) -> bool:
    """Whether a worker failed in its start-up. `lived_s`: None if it could not be started at all; `ready`: whether it
    has reported the end of its start-up, None where no worker of the job has ever reported that; `importing`: its
    error was raised while its script imported."""
    if lived_s is None:
        return True
    return lived_s < policy.startup_s and not ready and (importing or ready is False)


def forbids_restart(policy: Policy, exit_code: int) -> bool:
    """Whether a worker with this exit code is not to be started again, whatever the budget."""
    return exit_code in policy.no_restart_codes


def may_be_preemption(policy: Policy, history: History, at: float, exit_code: int, stopped_by: int) -> bool:
    """Whether a worker that ends so at `at` may be the first process of this node that a scheduler asked to stop. Only
    where the job would end otherwise: a restart must not wait, and a charge to a node that then leaves costs
    nothing."""
    signum = -exit_code if exit_code < 0 else exit_code - 128
    return signum in STOPS and not stopped_by and restarts_left(policy, history, at) == 0
