"""Ranks of other nodes, for which ranks of this one may wait."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_agent.control.decisions.hang import LimitBounds, Mark, Standing, judge
from elastic_agent.control.decisions.ranks_elsewhere import read, summed_up
from elastic_agent.control.readings import progress
from elastic_agent.control.readings.progress import shown_standing
from elastic_agent.proto.durations import Durations
from elastic_agent.proto.progress import Progress

STEPS = Durations()
for _ in range(300):
    STEPS = STEPS.with_one(1.0)


def at(section: str, still_s: float, **sections: Durations) -> Progress:
    """A rank that has shown progress so long before the 100th second."""
    return Progress(section, 7, 40, 100.0 - still_s, 40.0, 30.0, {"step": STEPS, **sections})


def through_the_store(answer: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(json.dumps(answer))
    assert isinstance(found, dict)
    return found


class Node:
    """One whose ranks have shown this progress."""

    def __init__(self, shown: dict[int, Progress]) -> None:
        self._shown = shown

    def progress(self) -> dict[int, Progress]:
        return self._shown


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 100.0))


def shown(ranks: dict[int, Progress]) -> dict[str, Any]:
    return shown_standing(Node(ranks))  # type: ignore[arg-type]


def judged(*nodes: dict[int, Progress]) -> tuple[int, ...]:
    """What a node says whose only rank, 9, has stood still in a step for a minute."""
    answers = [through_the_store(shown(node)) for node in nodes]
    others, learned = read(through_the_store(summed_up(answers)))
    own = {9: Standing(Mark("step", 40), 60.0, 100.0)}
    return judge({**others, **own}, {**learned, "step": STEPS}, LimitBounds()).stands


def test_a_rank_waits_for_one_of_another_node_that_is_in_another_section() -> None:
    """Which may last: nobody knows how long yet, or it is known to last longer."""
    assert judged({0: at("evaluation", 61.0), 1: at("step", 60.0)}, {2: at("step", 60.0)}) == ()
    long = Durations().with_one(90.0).with_one(100.0)
    assert judged({0: at("evaluation", 61.0, evaluation=long)}) == ()


def test_a_section_that_lasts_longer_than_it_may_is_waited_for_no_more() -> None:
    """Its limit is learned on the node where it was seen."""
    short = Durations().with_one(0.5).with_one(0.6)
    assert 9 in judged({0: at("evaluation", 61.0, evaluation=short)})


def test_ranks_of_other_nodes_that_are_in_a_step_too_are_no_reason() -> None:
    """They wait as well, or are the cause."""
    assert 9 in judged({0: at("step", 60.0), 1: at("step", 3.0)})
    assert 9 in judged()


def test_of_ranks_in_one_section_the_last_to_come_counts() -> None:
    """Over all nodes: the first may be over its limit, the last is not."""
    times = Durations().with_one(20.0)
    nodes = [{0: at("save", 99.0, save=times)}, {1: at("save", 5.0, save=times)}]
    others, _ = read(summed_up([shown(node) for node in nodes]))
    assert {rank: each.still_s for rank, each in others.items()} == {1: 5.0}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"sections": [1]},
        {"sections": {"step": 7}},
        {"sections": {"step": ["0", 1.0, 1, 1.0, 1.0, {}]}},
        {"sections": {"step": [0, float("nan"), 1, 1.0, 1.0, {}]}},
        {"sections": {"step": [0, 1.0, -1, 1.0, 1.0, {}]}},
        {"sections": {"step": [0, 1.0, 1, 1.0, 1.0, []]}},
    ],
    ids=str,
)
def test_an_answer_in_no_known_form_says_nothing(answer: dict[str, Any]) -> None:
    """Of another version, or of somebody else who can write to the store."""
    assert read(answer) == ({}, {})


def test_counts_in_no_known_form_are_left_out() -> None:
    """The others count."""
    _, learned = read({"sections": {"step": [0, 1.0, 3, 3.0, 1.0, {"4": 3, "400": 1, "x": 1, "5": -1, "6": "1"}]}})
    assert [at for at, number in enumerate(learned["step"].buckets) if number] == [4]
