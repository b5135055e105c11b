"""What a watch does to the job around it, on a job that only writes down what it is asked."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from elastic_agent.control.actions import in_job
from elastic_agent.control.actions.flight import begun, behind
from elastic_agent.control.actions.stacks import Dump, Stacks
from elastic_agent.control.table.parse import parse_table
from elastic_agent.control.table.watch import Table
from elastic_agent.proto.progress import Progress
from elastic_agent.rendezvous.agreements import Act

WAITS = "all_reduce (torch/distributed/distributed_c10d.py:3252)"


class Job:
    """Two workers, ranks 4 and 5, of a node of `nodes`."""

    def __init__(self, nodes: int) -> None:
        self.round, self.elected, self.nodes = 3, True, nodes
        self.asked: list[object] = []

    def workers(self) -> dict[int, int]:
        return {4: 40, 5: 50}

    def written(self) -> dict[int, int]:
        return {}

    def progress(self) -> dict[int, Progress]:
        return {}

    def directories(self) -> list[str]:
        return []

    def answers(self, rank: int) -> str:
        return f"/nowhere/{rank}"

    def end_round(self, round_number: int, rank: int, because: str, said: str) -> None:
        self.asked.append((round_number, rank, because))

    def ask(self, act: Act, because: str) -> None:
        self.asked.append((act, because))

    def leave(self, reason: str) -> None:
        self.asked.append(reason)


@pytest.fixture
def dumps(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """By process: where it stands; nothing is written."""
    places = {40: WAITS, 50: WAITS}

    def stacks_of(pids: list[int], *_: object) -> Dump:
        each = [Stacks(f"pid {pid}", places[pid], places[pid], places[pid], pid, places[pid] == WAITS) for pid in pids]
        groups = [(one,) for one in sorted(each, key=lambda one: one.waits)]
        return Dump("stacks", tuple(groups))

    monkeypatch.setattr(in_job, "stacks_of", stacks_of)
    monkeypatch.setattr(in_job, "save", lambda found, folder, more: found)
    monkeypatch.setattr(in_job, "OTHERS_FIRST_S", 0.2)
    return places


def restart(job: Job) -> str:
    table = parse_table('[[watch]]\nwhat = "hang"\ndo = ["restart"]', "w.toml", inside=True)
    return in_job.inside(job, "restart", table, table.watches[0], "hang: no progress")


def test_a_node_whose_rank_stands_elsewhere_ends_the_round_at_once(dumps: dict[int, str]) -> None:
    """The failure is that rank's."""
    dumps[50] = "load (data.py:7)"
    job = Job(nodes=2)
    line = restart(job)
    assert "charged as a failure of rank 5" in line
    assert [asked[:2] for asked in job.asked if isinstance(asked, tuple)] == [(3, 5)]


def test_a_node_whose_ranks_all_wait_leaves_it_to_the_others_first(dumps: dict[int, str]) -> None:
    """The cause is on another node, which is charged if it is quick enough; only then this one ends the round."""
    job = Job(nodes=2)
    line = restart(job)
    assert "all workers of this node wait for others" in line
    assert job.asked == []
    for thread in _timers():
        thread.join(5.0)
    assert [asked[:2] for asked in job.asked if isinstance(asked, tuple)] == [(3, 4)]


def test_on_one_node_nobody_else_can_be_the_cause(dumps: dict[int, str]) -> None:
    """So it does not wait."""
    job = Job(nodes=1)
    restart(job)
    assert len(job.asked) == 1


@pytest.mark.parametrize(("action", "act"), [("restart", Act.RESTART), ("save", Act.SAVE), ("stop", Act.KILL)], ids=str)
def test_memory_guards_ask_all_ranks_at_a_step_boundary(action: str, act: Act) -> None:
    """A leak is no failure: the restart is planned."""
    table = parse_table(f'[[watch]]\nwhat = "memory"\nthreshold = "90 % used"\ndo = ["{action}"]', "w", inside=True)
    job = Job(nodes=2)
    in_job.inside(job, action, table, table.watches[0], "memory: 95 % used")
    assert job.asked == [(act, "memory: 95 % used")]


def test_a_drain_has_this_node_leave() -> None:
    """The others go on."""
    job = Job(nodes=2)
    watch = parse_table('[[watch]]\nwhat = "gpu"\ndo = ["drain"]', "w.toml", inside=True).watches[0]
    in_job.inside(job, "drain", Table("w", "", ()), watch, "gpu: GPU 3 is lost")
    assert job.asked == ["gpu: GPU 3 is lost"]


def flight(*collectives: tuple[int, str]) -> dict[str, object]:
    entries = [
        {"process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": name, "is_p2p": False}
        for number, name in collectives
    ]
    return {"entries": entries}


def test_the_rank_that_did_not_come_to_a_collective_is_named() -> None:
    """By the numbers that torch's recorders give to collectives."""
    all_came = flight((1, "gloo:barrier"), (2, "gloo:all_reduce"))
    late, said = behind({0: all_came, 1: flight((1, "gloo:barrier")), 2: all_came})
    assert (late, said) == (
        (1,),
        "rank 1 did not come to collective 2 (gloo:all_reduce) of group default_pg, where the others are",
    )
    assert behind({0: all_came, 1: all_came}) == ((), "")
    assert behind({}) == ((), "")


def test_a_recorder_in_another_form_says_nothing() -> None:
    """Of a later version of torch, say."""
    assert begun({"entries": [{"number": 3}, {"process_group": 7}]}) == {}


def test_the_stacks_folder_is_beside_the_table(tmp_path: Path) -> None:
    """As without an agent."""
    table = parse_table('[[watch]]\nwhat = "hang"', str(tmp_path / "w.toml"), inside=True)
    assert table.dumps == str(tmp_path / "stacks")


def _timers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
