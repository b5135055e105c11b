"""The campaign of partitions: its judge, and one job of it."""

from __future__ import annotations

import pytest

from campaigns.partitions.campaign import FOREVER_S, run_seed
from campaigns.partitions.judge import Life, Played, judge
from campaigns.partitions.plan import KINDS, STORE, draw
from support.network import why_unavailable

CUT = Played("1+3", True, 10.0, 15.0, 20.0, complete=True)
OUTAGE = Played("outage", False, 10.0, 15.0, 20.0, complete=True)
FIRST = Life("a", 1, 1.0, 12.0)


def test_workers_of_two_rounds_at_one_moment_are_two_worlds() -> None:
    """Also on one node; workers of one round, and rounds that follow each other, are not."""
    late = Life("b", 2, 11.9, 30.0)
    assert len(judge([late, FIRST], [CUT]).two_worlds) == 1
    assert not judge([Life("b", 1, 1.1, 12.5), FIRST, Life("a", 2, 12.6, 30.0)], [CUT]).wrong


def test_a_round_that_begins_in_what_disturbs_nobody_is_needless() -> None:
    """Where workers may be stopped it is not; and it is counted in any case."""
    lives = [FIRST, Life("a", 2, 12.5, 30.0)]
    assert len(judge(lives, [OUTAGE]).needless) == 1
    verdict = judge(lives, [CUT])
    assert (verdict.wrong, verdict.stopped) == ([], 1)
    assert judge([FIRST], [CUT]).stopped == 0


def test_nodes_that_do_not_meet_again_are_stuck() -> None:
    assert judge([FIRST], [Played("freeze", True, 10.0, 15.0, 60.0, complete=False)]).stuck


def test_a_plan_has_each_kind_and_cuts_what_it_says() -> None:
    plans = [draw(seed) for seed in range(18)]
    of_kind = {each.kind: (plan, each) for plan in plans for each in plan.partitions}
    assert set(of_kind) == set(KINDS)
    assert plans[3] == draw(3)
    plan, pair = of_kind["2+2"]
    assert len(pair.cut) == 2 * 2 * (len(plan.nodes) - 2 + 1)
    plan, peers = of_kind["peers only"]
    assert len(peers.cut) == len(plan.nodes) * (len(plan.nodes) - 1)
    assert all(STORE in each for each in of_kind["outage"][1].cut)
    ways = of_kind["one-way"][1].cut
    assert not ways & {(b, a) for a, b in ways}


@pytest.mark.slow
@pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable() or "there are namespaces")
def test_a_job_is_cut_and_healed() -> None:
    """Two partitions of real nodes, of a seed whose are short."""
    verdict, played = run_seed(28, 2, FOREVER_S)
    assert (verdict.wrong, played.total()) == ([], 2)
