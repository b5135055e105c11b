"""What metrics say of workers that have exited, and of the size of their checkpoints."""

from __future__ import annotations

import time

import pytest

from elastic_agent.agent.steps.seen import Shown, WorkersSeen
from elastic_agent.control.service.messages import Goodput, LostTime, SpentTime
from elastic_agent.control.service.metrics import Counted, stage_samples, text_of, time_samples
from elastic_agent.control.stream import Checkpoint, Entry, Stage
from elastic_agent.proto.frozen import replace
from elastic_agent.rendezvous.failures import Sign


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


def test_each_worker_that_fails_is_counted_by_what_its_exit_says() -> None:
    """Several of one node and round, each once; none that the agent stopped."""
    counted = Counted()
    first, second = (0, Sign.OWN), (2, Sign.PEER)
    for round_number, codes, failed in (
        (1, {0: 1}, (first,)),
        (1, {0: 1, 2: 1}, (first, second)),
        (1, {0: 1, 2: 1, 1: -15}, (first, second)),
        (2, {}, ()),
        (2, {0: 1}, (first,)),
    ):
        counted.seen(replace(seen(round_number, codes), failed=failed))
    assert {sign: number for sign, number in counted.failures.items() if number} == {"own": 2, "peer": 1}


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


def test_goodput_lost_time_and_stages_of_recoveries_have_the_values_of_the_account() -> None:
    """What several rounds lost by the same kind of end is one sample; a job that is not measured has no ratio."""
    counted = Counted()
    for number, (name, took_s) in enumerate((("stopped", 0.0), ("stopped", 2.0), ("stopped", 3.0), ("agreed", 0.02))):
        counted.recorded(Entry(number, 0.0, 0.0, Stage(name, 1, 1.0, took_s), "", ""))
    lost = (LostTime(1, "failure", 5.0), LostTime(3, "failure", 2.5), LostTime(2, "arrival", 1.0))
    account = Goodput(
        "node0", 10.0, 2, 0.75, True, (SpentTime("useful steps", 15.0), SpentTime("starting", 5.0)), lost=lost
    )
    lines = text_of([*time_samples(counted, account, None), *stage_samples(counted)]).decode().splitlines()
    assert {line for line in lines if line.startswith(("elastic_agent_worker_time", "elastic_agent_lost_time"))} == {
        'elastic_agent_worker_time_seconds{bucket="useful steps"} 15',
        'elastic_agent_worker_time_seconds{bucket="starting"} 5',
        'elastic_agent_lost_time_seconds{kind="failure"} 7.5',
        'elastic_agent_lost_time_seconds{kind="arrival"} 1',
    }
    assert "elastic_agent_goodput_ratio 0.75" in lines
    assert {
        line for line in lines if line.startswith("elastic_agent_recovery_stage_seconds_") and "bucket" not in line
    } == {
        'elastic_agent_recovery_stage_seconds_sum{stage="stopped"} 5',
        'elastic_agent_recovery_stage_seconds_count{stage="stopped"} 2',
        'elastic_agent_recovery_stage_seconds_sum{stage="agreed"} 0.02',
        'elastic_agent_recovery_stage_seconds_count{stage="agreed"} 1',
    }
    unmeasured = text_of(time_samples(counted, Goodput("node0", share=0.0), None)).decode()
    assert "goodput_ratio" not in unmeasured


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


def test_a_run_id_that_is_no_utf_8_is_shown_all_the_same() -> None:
    sample = ("elastic_agent_info", {"run_id": "caf\udce9"}, 1.0)
    assert b'run_id="caf?"' in text_of([sample])
