"""When failed workers are started again: the budget, the pauses of a crash loop, what forbids a restart. Pure.

Decides from what a node was charged so far, the time, and the rules. A charge is a failure of the node's own workers
that the coordinator has settled on. What preemption, a change of membership or another node's death led to is never
charged (`rendezvous.coordinator.charging`), so it neither spends the budget nor makes a crash loop. Nor is a failure
of the machine: those are counted apart, and a machine that fails again and again is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NO_RESTART_CODE = 93
"""Exit code by which a worker says that starting it again is of no use."""

SICK_AFTER = 3
"""Failures of the machine in a row after which its node leaves the job. One may be chance, the second gets a pause."""

HEALTHY_S = 600.0
"""A machine that has kept its workers for so long is well, and what it failed before is forgotten; as kubelet does."""

STOPS = frozenset({1, 2, 3, 15})
"""Signals by which schedulers ask processes to stop: SIGHUP, SIGINT, SIGQUIT, SIGTERM."""

PREEMPTION_S = 1.0
"""A scheduler signals all processes of a step one after the other. Where the worker's turn came first, and no restart
is left, its agent waits so long for its own."""

STEEPEST = 32
"""Doublings of a pause that are counted; no pause that can be asked for takes as many to reach its longest."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules. Times in seconds."""

    max_restarts: int = 0
    window_s: float = 0.0
    """The budget counts the charges of so long; 0: of the whole job."""
    pause_min_s: float = 0.0
    """The shortest pause of a crash loop; 0: none."""
    pause_max_s: float = 0.0
    """The longest. Workers that last longer than this are in no crash loop, as they fail more rarely than it paces."""
    startup_s: float = 30.0
    """A worker that fails sooner, without having said that it is ready, failed in its start-up."""
    no_restart_codes: frozenset[int] = frozenset({NO_RESTART_CODE})


@dataclass(frozen=True, slots=True)
class Charge:
    """A failure that cost this node a restart; or, among those of its machine, none."""

    at: float
    """When its first worker failed, on this host's monotonic clock."""
    pause_s: float = 0.0
    """The pause that followed."""


@dataclass(frozen=True, slots=True)
class History:
    """What a node was charged so far, or how often its machine failed."""

    total: int = 0
    recent: tuple[Charge, ...] = ()
    """The last ones, oldest first: as many as any rule looks at."""

    def add(self, charge: Charge, policy: Policy) -> History:
        """With one more."""
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


def is_sick(losses: History, at: float) -> bool:
    """Whether a failure of the machine at `at`, after these, is one too many. Those count that came no later than
    `HEALTHY_S` after the pause of the one before."""
    return _in_a_row(losses, at, HEALTHY_S) >= SICK_AFTER


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


def loss_pause_s(policy: Policy, losses: History, at: float, jitter: tuple[float, ...]) -> float:
    """The same for a failure of the machine, whatever the budget."""
    return _pause_s(policy, _in_a_row(losses, at, HEALTHY_S) - 1, jitter[losses.total % len(jitter)])


def _pause_s(policy: Policy, again: int, share: float) -> float:
    """`again`: failures before this one; `share`: where in its range the pause lies, from 0 to 1."""
    if again == 0 or policy.pause_min_s == 0:
        return 0.0
    high = min(policy.pause_max_s, policy.pause_min_s * float(1 << min(again, STEEPEST)))
    low = max(policy.pause_min_s, high / 2)
    return low + (high - low) * share


def in_startup(policy: Policy, lived_s: float | None, ready: bool) -> bool:
    """Whether a worker failed in its start-up. `lived_s`: None if it could not be started at all; `ready`: it has said
    that its start-up is over."""
    return lived_s is None or (not ready and lived_s < policy.startup_s)


def forbids_restart(policy: Policy, exit_code: int) -> bool:
    """Whether a worker that exits so is not to be started again, budget or not."""
    return exit_code in policy.no_restart_codes


def may_be_preemption(policy: Policy, history: History, at: float, exit_code: int, stopped_by: int) -> bool:
    """Whether a worker that ends so at `at` may be the first of this node to be asked to stop. Looked at only where the
    job would end otherwise: a restart is not to wait, and one charged to a node that then leaves costs nobody."""
    signum = -exit_code if exit_code < 0 else exit_code - 128
    return signum in STOPS and not stopped_by and restarts_left(policy, history, at) == 0
