"""Which worker exit caused the end of a round, which ones only followed, and which are undecided. Pure.

    judge(deaths) -> Judgement(cause, role, because)

Takes the exits of workers in the order in which the coordinator read them, each with what it says by itself
(`agent/failures/classify.py`). No clock is compared: order within a node is that of its agent, order between nodes
that of the store. `CLAUSES` are tried one after the other; the first that names an exit decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...proto.frozen import dataclass, replace
from ..failures import ECHOES, FAULTS, PASSIVE, Judged, Role, Sign, WorkerFailure

Deaths = Sequence[WorkerFailure]

_MUTE = frozenset({Sign.UNCLEAR, Sign.QUIET})
"""Signs of a failure that names neither a cause nor a peer."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the exits seen so far say of the cause, counted as they are seen: it is asked for at every event, when
    thousands of workers may have ended."""

    faults: int = 0
    """How many failed on their own."""
    by_host: bool = False
    """The host ended the first of these."""
    mute_first: bool = False
    """One that says nothing was seen before the first of these."""

    def with_exits(self, deaths: Deaths) -> Evidence:
        """The evidence with these exits, which were seen next."""
        faults, by_host, mute_first = self.faults, self.by_host, self.mute_first
        for death in deaths:
            if death.sign in FAULTS:
                by_host = by_host if faults else death.sign is Sign.HOST
                faults += 1
            elif not faults:
                mute_first = mute_first or death.sign in _MUTE
        return Evidence(faults, by_host, mute_first)

    @property
    def certain(self) -> bool:
        """Whether the cause is certain before all exits are known, as `judge(deaths, complete=False)` has it."""
        return not self.mute_first and (self.faults == 1 or (self.faults > 1 and self.by_host))


@dataclass(frozen=True, slots=True)
class Judgement:
    """The cause, how sure that is, and why."""

    cause: WorkerFailure | None
    """None where no worker exited."""
    role: Role
    because: str


def judge(deaths: Deaths, *, complete: bool = True) -> Judgement:
    """Name the cause among these exits, in the order seen. While they are not `complete`, only a worker that failed on
    its own is certain: all others are judged by what their peers did not do."""
    for clause in CLAUSES:
        if (judgement := clause(deaths)) is not None:
            certain = complete or clause is _own
            return judgement if certain else replace(judgement, role=Role.UNDECIDED)
    return Judgement(None, Role.UNDECIDED, "no worker was seen to exit")


def roles(deaths: Deaths, judgement: Judgement) -> tuple[Judged, ...]:
    """What each of these exits was, given the cause."""
    return tuple(Judged(death, *_role(death, judgement)) for death in deaths)


def echoes_of_departure(deaths: Deaths) -> tuple[Judged, ...]:
    """What each of these exits was in a round that a member's departure ended."""
    return tuple(
        Judged(death, Role.UNDECIDED, f"{death.sign_because}; but a node departed at the time")
        if death.sign in FAULTS or death.sign is Sign.UNCLEAR
        else Judged(death, Role.COLLATERAL, death.sign_because)
        for death in deaths
    )


def _role(death: WorkerFailure, judgement: Judgement) -> tuple[Role, str]:
    if death is judgement.cause:
        return judgement.role, judgement.because
    if death.sign in ECHOES or death.sign in PASSIVE:
        return Role.COLLATERAL, death.sign_because
    if judgement.role is Role.CAUSE:
        return Role.COLLATERAL, f"{death.sign_because}; seen after the cause"
    return Role.UNDECIDED, death.sign_because


# -- the clauses, most telling first ---------------------------------------------------------------------------------


def _own(deaths: Deaths) -> Judgement | None:
    """A worker that failed on its own, by its error or the signal that killed it, or that its host killed. Of several
    the first, and no more than likely: a worker that lost its peer may raise another error, and be seen to exit
    sooner."""
    faults = [death for death in deaths if death.sign in FAULTS]
    if not faults:
        return None
    if (odd := _odd_one(faults, sum(death.sign not in PASSIVE for death in deaths))) is not None:
        return Judgement(
            odd, Role.UNDECIDED, f"{odd.sign_because}, while most of the others failed alike, in another way"
        )
    first = faults[0]
    before = next((d for d in deaths[: _at(deaths, first)] if d.sign in _MUTE), None)
    if before is not None:
        because = f"{first.sign_because}; but rank {before.rank} was seen to fail before it"
        return Judgement(first, Role.UNDECIDED, because)
    if len(faults) > 1 and first.sign is Sign.OWN:
        because = f"{first.sign_because}; the first seen of {len(faults)} that failed on their own"
        return Judgement(first, Role.UNDECIDED, because)
    return Judgement(first, Role.CAUSE, first.sign_because)


def _odd_one(faults: Deaths, failed: int) -> WorkerFailure | None:
    """The first that failed in another way than most, if most failed alike: what one failure does to its peers, it
    does to all of them. None where a host killed one, which no peer's failure does."""
    if any(death.sign is not Sign.OWN for death in faults):
        return None
    ways = [_way(death) for death in faults]
    counts = dict.fromkeys(ways, 0)
    for way in ways:
        counts[way] += 1
    common, alike = max(counts.items(), key=lambda each: each[1])
    if alike < 2 or alike * 2 <= failed:
        return None
    return next((death for death, way in zip(faults, ways, strict=True) if way != common), None)


def _way(death: WorkerFailure) -> str:
    """How it failed, without the numbers of ranks and steps in its error."""
    return "".join(letter for letter in death.sign_because if not letter.isdigit())


def _quiet(deaths: Deaths) -> Judgement | None:
    """The first that exited with a code of its own and names no peer."""
    first = next((death for death in deaths if death.sign is Sign.QUIET), None)
    if first is None:
        return None
    rivals = [death for death in deaths if death is not first and death.sign in _MUTE]
    return Judgement(first, Role.UNDECIDED if rivals else Role.CAUSE, first.sign_because)


def _cut_off(deaths: Deaths) -> Judgement | None:
    """Workers that were killed because their node was cut off: those are the peers that the others have lost."""
    first = next((death for death in deaths if death.sign is Sign.CUT_OFF), None)
    return Judgement(first, Role.CAUSE, first.sign_because) if first is not None else None


def _named(deaths: Deaths) -> Judgement | None:
    """A rank that the others' errors name as missing."""
    witnesses: dict[int, int] = {}
    ended: dict[int, WorkerFailure] = {}
    for death in deaths:
        for rank in death.suspects:
            witnesses.setdefault(rank, death.rank)
        if death.sign not in ECHOES:
            ended.setdefault(death.rank, death)
    for rank, witness in witnesses.items():
        if (found := ended.get(rank)) is not None:
            role = Role.CAUSE if len(witnesses) == 1 else Role.UNDECIDED
            return Judgement(found, role, f"the error of rank {witness} names it as missing; it {found.sign_because}")
    return None


def _unclear(deaths: Deaths) -> Judgement | None:
    """The first exit without evidence, where the others say that they followed."""
    unclear = [death for death in deaths if death.sign is Sign.UNCLEAR]
    if not unclear:
        return None
    first = unclear[0]
    rest = [death for death in deaths if death is not first]
    if any(death.sign in ECHOES for death in rest) and len(unclear) == 1:
        return Judgement(first, Role.CAUSE, f"all other failures are echoes; {first.sign_because}")
    if not rest:
        return Judgement(first, Role.CAUSE, first.sign_because)
    return Judgement(first, Role.UNDECIDED, f"the first seen to fail; {first.sign_because}".strip("; "))


def _standing(deaths: Deaths) -> Judgement | None:
    """A worker that was frozen while the others waited for it."""
    standing = [death for death in deaths if death.sign is Sign.STANDING]
    if not standing:
        return None
    role = Role.CAUSE if len(standing) == 1 else Role.UNDECIDED
    return Judgement(standing[0], role, f"it {standing[0].sign_because}, and the others waited for it")


def _deserter(deaths: Deaths) -> Judgement | None:
    """A worker that exited 0, unasked, and left the others without a peer. When its exit was seen is no evidence: its
    connections close before it exits, so its peers may fail sooner."""
    echo = next((death for death in deaths if death.sign in ECHOES), None)
    left = [death for death in deaths if death.sign is Sign.LEFT]
    if not left or echo is None:
        return None
    alone = len(left) == 1 and not any(death.sign is Sign.STOPPED for death in deaths)
    because = f"it exited 0 while rank {echo.rank} still needed it"
    return Judgement(left[0], Role.CAUSE if alone else Role.UNDECIDED, because)


def _silent(deaths: Deaths) -> Judgement | None:
    """A worker that went on when all others had timed out waiting for it."""
    silent = [death for death in deaths if death.sign is Sign.STOPPED]
    echo = next((death for death in deaths if death.sign in ECHOES), None)
    if not silent or echo is None:
        return None
    if len(silent) > 1:
        ranks = ", ".join(str(rank) for rank in sorted(death.rank for death in silent))
        because = f"one of ranks {ranks}, which went on when rank {echo.rank} gave up"
        return Judgement(silent[0], Role.UNDECIDED, because)
    return Judgement(silent[0], Role.CAUSE, "it went on in silence when all others had timed out waiting for it")


def _first(deaths: Deaths) -> Judgement | None:
    """All exits say that the cause is elsewhere: the first is named, undecided."""
    first = next((death for death in deaths if death.sign in ECHOES), None)
    if first is None:
        return None
    because = f"the first seen to fail, but the cause is elsewhere: {first.sign_because}"
    return Judgement(first, Role.UNDECIDED, because)


CLAUSES: tuple[Callable[[Deaths], Judgement | None], ...] = (
    _own,
    _quiet,
    _cut_off,
    _named,
    _standing,
    _unclear,
    _deserter,
    _silent,
    _first,
)


def _at(deaths: Deaths, wanted: WorkerFailure) -> int:
    return next(at for at, death in enumerate(deaths) if death is wanted)
