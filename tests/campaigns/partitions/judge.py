"""Judges a job by what its workers have written themselves: in which round, and from when until when they ran. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Life:
    """One worker. Times are of CLOCK_BOOTTIME, in seconds."""

    node: str
    round: int
    began_s: float
    last_s: float
    """The last moment that it has written."""


@dataclass(frozen=True)
class Played:
    """One partition, from the cut to the moment at which all nodes worked again, or nobody waited any more."""

    kind: str
    disturbs: bool
    began_s: float
    healed_s: float
    ended_s: float
    complete: bool
    """All nodes work in one round again."""


@dataclass
class Verdict:
    """What was found."""

    two_worlds: list[str] = field(default_factory=list)
    needless: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    stopped: int = 0
    """Partitions that ended a round."""

    @property
    def wrong(self) -> list[str]:
        return [*self.two_worlds, *self.needless, *self.stuck]


def judge(lives: Sequence[Life], played: Sequence[Played]) -> Verdict:
    """No worker of one round runs at a moment at which one of another does; nobody is stopped by what disturbs nobody;
    and all nodes work again behind each partition."""
    verdict = Verdict()
    ordered = sorted(lives, key=lambda life: life.began_s)
    for at, life in enumerate(ordered):
        for later in ordered[at + 1 :]:
            if later.round != life.round and later.began_s <= life.last_s:
                verdict.two_worlds.append(
                    f"round {later.round} began on {later.node} while {life.node} ran round {life.round} for "
                    f"{life.last_s - later.began_s:.3f} s more"
                )
    for each in played:
        began = {life.round for life in lives if each.began_s <= life.began_s <= each.ended_s}
        verdict.stopped += bool(began)
        if began and not each.disturbs:
            verdict.needless.append(f"{each.kind} of {each.healed_s - each.began_s:.1f} s began rounds {sorted(began)}")
        if not each.complete:
            verdict.stuck.append(f"{each.kind}: not all nodes worked {each.ended_s - each.healed_s:.0f} s later")
    return verdict
