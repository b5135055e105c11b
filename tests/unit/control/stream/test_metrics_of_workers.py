"""What metrics say of workers that have exited, and of the size of their checkpoints."""

from __future__ import annotations

import time

import pytest

from elastic_agent.agent.steps.seen import Shown, WorkersSeen
from elastic_agent.control.service.messages import Goodput
from elastic_agent.control.service.metrics import Counted, text_of, time_samples
from elastic_agent.control.stream import Checkpoint, Entry


def seen(round_number: int, codes: dict[int, int], *sizes: int) -> WorkersSeen:
    exited = {local_rank: (5.0, code) for local_rank, code in codes.items()}
    return WorkersSeen(5.0, round_number, 3, 0, 1.0, {}, exited, tuple(Shown(written_bytes=size) for size in sizes))


def test_each_worker_that_exits_is_counted_once_by_how_it_did() -> None:
    """However often the agent looks; a later round has workers of its own."""
    counted = Counted()
    for each in (
        seen(1, {0: 1}),
        seen(1, {0: 1, 2: -15}),
        seen(1, {0: 1, 2: -15, 1: -9}),
        seen(2, {}),
        seen(2, {0: 0}),
    ):
        counted.seen(each)
    assert counted.exits == {"zero": 1, "code": 1, "signal": 2}


def test_the_size_of_the_newest_checkpoint_stays_until_there_is_another() -> None:
    """A new round begins with none; a node whose workers bring none to the disk has no sample."""
    counted = Counted()
    found = []
    for sizes in ((0, 0), (0, 700), (0, 0), (0, 900)):
        counted.seen(seen(1, {}, *sizes))
        lines = text_of(time_samples(counted, Goodput("node0"), None)).decode().splitlines()
        found.append([line for line in lines if line.startswith("elastic_agent_checkpoint_bytes")])
    one, other = ["elastic_agent_checkpoint_bytes 700"], ["elastic_agent_checkpoint_bytes 900"]
    assert found == [[], one, one, other]


def test_the_newest_checkpoint_has_a_step_and_an_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its age grows from when it was taken, by the host's monotonic clock; what it held workers up for adds up."""
    counted = Counted()
    for number, step in ((1, 40), (2, 50)):
        taken = Checkpoint(round=1, step=step, at_s=100.0 * number, took_s=0.25)
        counted.recorded(Entry(number, 0.0, 0.0, taken, "", ""))
    monkeypatch.setattr(time, "monotonic", lambda: 230.0)
    lines = text_of(time_samples(counted, Goodput("node0"), None)).decode().splitlines()
    assert {line for line in lines if line.startswith("elastic_agent_checkpoint")} == {
        "elastic_agent_checkpoints_total 2",
        "elastic_agent_checkpoint_held_seconds_total 0.5",
        "elastic_agent_checkpoint_step 50",
        "elastic_agent_checkpoint_age_seconds 30",
    }
