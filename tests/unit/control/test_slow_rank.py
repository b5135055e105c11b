"""Which rank is the straggler, and its share of the lost time."""

from __future__ import annotations

import pytest

from elastic_agent.control.decisions.slow import LEAST_STEPS, StepPace, straggler


def test_the_straggler_is_named_with_its_share_of_the_lost_time() -> None:
    """Steps of 2 s, in which three ranks need 1.2 s and one 1.8 s: it costs 0.6 s of each, 3 of 4 parts of the wait."""
    found = straggler({rank: StepPace(100, 2.0, 1.8 if rank == 2 else 1.2) for rank in range(4)})
    assert found is not None
    assert [found.rank, found.lost, found.of_waits] == pytest.approx([2, 0.3, 0.75])
    assert found.text.startswith("rank 2 is the slowest: 1.8 s of its own in a step of 2 s, ranks 0-1, 3 1.2 s")
    assert "30 % of the time, 75 % of the others' waiting" in found.text


def test_equal_ranks_lose_nothing() -> None:
    """One of them is the slowest, of nothing."""
    found = straggler({rank: StepPace(100, 1.0, 0.8) for rank in range(4)})
    assert found is not None
    assert found.lost == 0.0


@pytest.mark.parametrize(
    "paces", [{}, {0: StepPace(100, 1.0, 1.0)}, {0: StepPace(100, 1.0, 1.0), 1: StepPace(LEAST_STEPS - 1, 1.0, 9.0)}]
)
def test_one_rank_or_few_steps_say_nothing(paces: dict[int, StepPace]) -> None:
    """There is nobody to wait, or nothing to compare."""
    assert straggler(paces) is None


def test_the_straggler_of_several_nodes_is_named_with_its_node() -> None:
    """Which of two nodes it is on cannot be read from its rank."""
    paces = {rank: StepPace(100, 2.0, 1.8 if rank == 2 else 1.2) for rank in range(4)}
    found = straggler(paces, {0: "a:1", 1: "a:1", 2: "b:2", 3: "b:2"})
    assert found is not None
    assert found.text.startswith("rank 2 on b:2 is the slowest: 1.8 s of its own")


def test_a_node_of_which_all_ranks_are_slow_is_said_to_be() -> None:
    """Its temperature, its neighbours, its disk: no single rank is the cause. One rank alone says nothing of a node."""
    paces = {rank: StepPace(100, 2.0, 1.7 + rank / 100 if rank in (2, 3) else 1.2) for rank in range(6)}
    found = straggler(paces, {0: "a:1", 1: "a:1", 2: "b:2", 3: "b:2", 4: "c:3", 5: "c:3"})
    assert found is not None
    assert "rank 3 on b:2, of which all 2 ranks are slower than those of other nodes, is the slowest" in found.text
    alone = straggler(paces, {rank: f"node {rank}" for rank in range(6)})
    assert alone is not None
    assert alone.text.startswith("rank 3 on node 3 is the slowest")
