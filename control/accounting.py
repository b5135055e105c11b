"""Keeps a node's account of its workers' seconds: turns the agent's events into those of `decisions/goodput.py`.

Loaded when somebody asks, when metrics or a file of events are wanted, or when many events wait for it.
"""

from __future__ import annotations

from dataclasses import replace

from ..agent.lifecycle.state import Phase, Verdict
from ..agent.report import AgentEvent
from ..agent.steps.seen import WorkersSeen
from ..rendezvous.failures import STOOD_STILL, Ending, EndKind
from ..rendezvous.records import Member, Round
from .decisions import goodput
from .decisions.goodput import Bucket
from .service.messages import Goodput, LostTime, RankSteps, SpentTime

WAITS = {"nodes": Bucket.NODES, "place": Bucket.NODES, "pause": Bucket.PAUSED, "": Bucket.RE_FORMING}
TOLD_MAX = 32
"""Ends of rounds whose cost is told one by one. Each account has them, and a file of events an account for each
round."""
START = "start"
"""What costs the time until the first step."""


class Accounting:
    """The account of one agent."""

    def __init__(self, began_s: float) -> None:
        self._state = goodput.begin(began_s)
        self._ended: Ending | None = None
        self._members: tuple[Member, ...] = ()
        self._seen: WorkersSeen | None = None

    def follow(self, what: AgentEvent | Round | WorkersSeen | Verdict) -> None:
        """Take in what happened."""
        if isinstance(what, WorkersSeen):
            self._seen = what
            self._state = goodput.step(self._state, what)
            return
        if isinstance(what, AgentEvent):
            self._moved(what)
            self._end(what.ended, what.members, what.at_s)
        elif isinstance(what, Round):
            self._end(what.unsettled or what.ended, what.placed, self._state.began_s)

    def _moved(self, event: AgentEvent) -> None:
        phase, now = event.phase, self._state.now
        if phase is Phase.JOINING:
            bucket = WAITS[event.waits]
        elif event.finished:
            bucket = Bucket.PEERS
        elif phase in (Phase.ENDING, Phase.ENDED):
            bucket = now if now in (Bucket.RE_FORMING, Bucket.NODES, Bucket.PAUSED) else Bucket.PEERS
        else:
            bucket = Bucket.RE_FORMING if phase is Phase.STOPPING else Bucket.STARTING
        lost = (phase is Phase.STOPPING and not event.finished) or (
            phase is Phase.JOINING and self._state.round == event.round
        )
        self._state = goodput.step(
            self._state,
            goodput.Moved(
                event.at_s,
                bucket,
                cause=self._state.round if lost else 0,
                hung=event.round if _hangs(event) else 0,
                working=phase is Phase.WORKING,
                gone=phase not in (Phase.WORKING, Phase.STOPPING),
            ),
        )

    def _ranks(self) -> tuple[RankSteps, ...]:
        seen = self._seen
        if seen is None:
            return ()
        return tuple(
            RankSteps(seen.first_rank + local_rank, shown.steps, shown.useful_s + shown.repeated_s)
            for local_rank, shown in enumerate(seen.shown)
            if shown.began_s
        )

    def _end(self, ended: Ending | None, members: tuple[Member, ...], at_s: float) -> None:
        """How a round ended, and, once the next one has begun, who is missing in it."""
        if ended is not None and ended != self._ended:
            self._ended = ended
            self._state = goodput.step(
                self._state,
                goodput.RoundEnded(at_s, ended.round, ended.kind.value, ended.because, self._who(ended)),
            )
        if not members or members == self._members:
            return
        here = {member.node for member in members}
        gone = sorted(member.name for member in self._members if member.node not in here)
        self._members = members
        known = self._state.ends.get(self._ended.round) if self._ended is not None else None
        if gone and known is not None and known.kind == EndKind.DEPARTURE.value and not known.node:
            self._state = goodput.step(self._state, replace(known, node=", ".join(gone)))

    def _who(self, ended: Ending) -> str:
        if ended.failure is not None and ended.kind is EndKind.FAILURE:
            return ended.failure.node
        return next((member.name for member in self._members if member.node == ended.charged), "")

    def message(self, now_s: float, name: str, room: int = 1) -> Goodput:
        """The account for people and programs, until now. `room`: for how many workers this node has room, which counts
        as long as it has had no place in a round."""
        state = goodput.with_room(self._state, room)
        totals = goodput.totals(state, now_s)
        by_bucket = dict.fromkeys(Bucket, 0.0)
        lost: dict[int, float] = {}
        for spent in totals:
            for (bucket, cause), length_s in spent.items():
                by_bucket[bucket] += length_s
                if bucket not in goodput.GOOD:
                    lost[cause] = lost.get(cause, 0.0) + length_s
        all_s = sum(by_bucket.values())
        return Goodput(
            name=name,
            wall_s=max(0.0, now_s - state.began_s),
            workers=len(totals),
            share=by_bucket[Bucket.USEFUL] / all_s if all_s else 0.0,
            measured=state.measured,
            buckets=tuple(SpentTime(bucket.value, length_s) for bucket, length_s in by_bucket.items()),
            ranks=self._ranks(),
            lost=_told([_lost(state, cause, lost_s) for cause, lost_s in sorted(lost.items()) if lost_s > 0]),
        )


def _told(lost: list[LostTime]) -> tuple[LostTime, ...]:
    """Those that cost most, in their order, and behind them sums of the others."""
    dear = sorted(lost, key=lambda each: -each.length_s)[:TOLD_MAX]
    sums: dict[tuple[str, str], float] = {}
    for each in lost:
        if each not in dear:
            sums[each.kind, each.node] = sums.get((each.kind, each.node), 0.0) + each.length_s
    told = [each for each in lost if each in dear]
    return (*told, *(LostTime(0, kind, length_s, node) for (kind, node), length_s in sums.items()))


def _lost(state: goodput.SecondsAccount, cause: int, lost_s: float) -> LostTime:
    known = state.ends.get(cause)
    if not cause:
        return LostTime(0, START, lost_s)
    if known is None:
        return LostTime(cause, "unknown", lost_s)
    return LostTime(cause, known.kind, lost_s, known.node, known.because)


def _hangs(event: AgentEvent) -> bool:
    ended = event.ended if event.ended is not None and event.ended.round == event.round else None
    failures = (event.failure, ended.failure if ended is not None else None)
    return any(each is not None and each.sign_because == STOOD_STILL for each in failures)
