"""Judging thousands of exits: the same cause as by the plain rules, and no more time than there is."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest

from elastic_agent.rendezvous.coordinator import root_cause
from elastic_agent.rendezvous.coordinator.root_cause import Evidence, Judgement
from elastic_agent.rendezvous.failures import ECHOES, FAULTS, PASSIVE, Role, Sign, WorkerFailure
from support.source_tree import ROOT

# -- the clauses in their plainest form, whatever time they take ------------------------------------------------------

Deaths = Sequence[WorkerFailure]


def plain(deaths: Deaths, *, complete: bool = True) -> Judgement:
    """What `root_cause.judge` must say."""
    own = _plain_own(deaths)
    if own is not None:
        return own
    named = _plain_named(deaths)
    for clause in root_cause.CLAUSES[1:]:
        found = named if clause is root_cause._named else clause(deaths)
        if found is not None:
            return found if complete else Judgement(found.cause, Role.UNDECIDED, found.because)
    return Judgement(None, Role.UNDECIDED, "no worker was seen to exit")


def _plain_own(deaths: Deaths) -> Judgement | None:
    faults = [death for death in deaths if death.sign in FAULTS]
    if not faults:
        return None
    failed = len([death for death in deaths if death.sign not in PASSIVE])
    ways = ["".join(letter for letter in death.sign_because if not letter.isdigit()) for death in faults]
    common = max(ways, key=ways.count)
    alike = ways.count(common) >= 2 and ways.count(common) * 2 > failed and all(d.sign is Sign.OWN for d in faults)
    if alike and any(way != common for way in ways):
        odd = faults[[way != common for way in ways].index(True)]
        because = f"{odd.sign_because}, while most of the others failed alike, in another way"
        return Judgement(odd, Role.UNDECIDED, because)
    first = faults[0]
    for death in deaths:
        if death is first:
            break
        if death.sign in (Sign.UNCLEAR, Sign.QUIET):
            because = f"{first.sign_because}; but rank {death.rank} was seen to fail before it"
            return Judgement(first, Role.UNDECIDED, because)
    if len(faults) > 1 and first.sign is Sign.OWN:
        because = f"{first.sign_because}; the first seen of {len(faults)} that failed on their own"
        return Judgement(first, Role.UNDECIDED, because)
    return Judgement(first, Role.CAUSE, first.sign_because)


def _plain_named(deaths: Deaths) -> Judgement | None:
    named = [rank for death in deaths for rank in death.suspects]
    for rank in named:
        for found in deaths:
            if found.rank == rank and found.sign not in ECHOES:
                witness = next(death.rank for death in deaths if rank in death.suspects)
                role = Role.CAUSE if set(named) == {rank} else Role.UNDECIDED
                because = f"the error of rank {witness} names it as missing; it {found.sign_because}"
                return Judgement(found, role, because)
    return None


# -- comparisons -------------------------------------------------------------------------------------------------------

SAID = ("raised ValueError: boom", "raised ValueError: step {}", "raised KeyError: {}", "was killed by signal 9", "")


def drawn(rng: random.Random) -> list[WorkerFailure]:
    """Some exits, of a few kinds: with all kinds at once the first clause would decide nearly always."""
    signs = rng.sample([*Sign], rng.randint(1, 4))
    said = rng.sample(SAID, rng.randint(1, 3))
    size = rng.choice((0, 1, 2, 3, 5, 8, 13))
    chatty = rng.random() < 0.5
    deaths: list[WorkerFailure] = []
    for at in range(size):
        rank = rng.randrange(size + 2)
        suspects = tuple(rng.randrange(size + 2) for _ in range(rng.randint(0, 3))) if chatty else ()
        because = rng.choice(said).format(rng.randrange(100))
        sign = rng.choice(signs)
        deaths.append(
            WorkerFailure("a", "a", rank, rank, 100 + at, 1, sign=sign, sign_because=because, suspects=suspects)
        )
    return deaths


def test_judging_many_is_the_same_as_judging_plainly() -> None:
    """The same exit, certainty and sentence, for exits of all kinds in any order; and whether it is certain already."""
    rng = random.Random(20)
    roles: set[tuple[Role, bool]] = set()
    for _ in range(20_000):
        deaths = drawn(rng)
        for complete in (True, False):
            judged, expected = root_cause.judge(deaths, complete=complete), plain(deaths, complete=complete)
            assert judged == expected, deaths
            assert judged.cause is expected.cause, deaths
            roles.add((judged.role, complete))
        half = len(deaths) // 2
        evidence = Evidence().with_exits(deaths[:half]).with_exits(deaths[half:])
        assert evidence.certain is (plain(deaths, complete=False).role is Role.CAUSE), deaths
    assert len(roles) == 4


BOUND_S = 2.0
"""Of processor time, for all that a coordinator does while 1,000 nodes with 8 workers fail and report."""


@pytest.mark.parametrize("mix", ["own", "alike", "echoes", "named"])
def test_eight_thousand_failures_at_once_are_judged_in_two_seconds(mix: str) -> None:
    """1,000 nodes report that a worker failed, and then how all eight ended: the coordinator, whose loop also takes the
    host's signals, is not busy for longer, and no event takes a quarter of a second."""
    script = str(ROOT / "benchmarks" / "scripts" / "judging.py")
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".typing")}
    done = subprocess.run(
        [sys.executable, script, "1000", "8", mix], capture_output=True, text=True, timeout=300, check=True, env=env
    )
    told = json.loads(done.stdout)
    assert told["round"] == 2, told
    assert told["storm_s"] < BOUND_S, told
    assert told["worst_ms"] < 250.0, told
