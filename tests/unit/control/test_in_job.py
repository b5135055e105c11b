"""What a watch does to the job around it, on a job that only writes down what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.control.actions import everywhere, in_job
from elastic_agent.control.actions.everywhere import compare
from elastic_agent.control.actions.flight import begun, behind
from elastic_agent.control.actions.stacks import ProcessStack, grouped
from elastic_agent.control.decisions.questions import END
from elastic_agent.control.job_view import Answers
from elastic_agent.control.table.parse import parse_table
from elastic_agent.control.table.watch import Table
from elastic_agent.proto.progress import Progress
from elastic_agent.rendezvous.agreements import Act
from elastic_agent.rendezvous.shared_values import MAX_VALUE_BYTES

WAITS = "all_reduce (torch/distributed/distributed_c10d.py:3252)"


def rows(*places: tuple[int, str]) -> dict[str, Any]:
    """A node's answer: where each of its ranks stands."""
    return {"stacks": [[rank, f"rank {rank}", place, place, place == WAITS, f"  {place}"] for rank, place in places]}


class Job:
    """Two workers, ranks 4 and 5, of a node that may ask others; what these answer is given."""

    def __init__(self, others: dict[str, dict[str, Any]] | None = None, silent: tuple[str, ...] = ()) -> None:
        self.round, self.elected, self.nodes = 3, True, 1 + len(others or {}) + len(silent)
        self.own = rows((4, WAITS), (5, WAITS))
        self._others, self._silent = others or {}, silent
        self.trouble = ""
        self.of_another: tuple[dict[str, Any], str] | None = None
        """A conclusion, and which node has drawn it."""
        self.asked: list[object] = []
        self.published: list[tuple[str, dict[str, Any]]] = []

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

    def ranks_of(self, node: str) -> range:
        return range(4, 6)

    def ask_nodes(self, kind: str, body: Mapping[str, Any], wait_s: float) -> Answers:
        return Answers({"here": self.own, **self._others}, self._silent, self.trouble)

    def conclude(
        self,
        kind: str,
        body: Mapping[str, Any],
        wait_s: float,
        conclude_from: Callable[[Answers], Mapping[str, Any]],
        again_s: float,
    ) -> tuple[Mapping[str, Any], str]:
        return self.of_another or (conclude_from(self.ask_nodes(kind, body, wait_s)), "")

    def publish(self, kind: str, body: Mapping[str, Any]) -> bool:
        self.published.append((kind, dict(body)))
        return True

    def end_round(self, round_number: int, rank: int, because: str, said: str) -> None:
        self.asked.append((round_number, rank, because, said))

    def ask(self, act: Act, because: str) -> None:
        self.asked.append((act, because))

    def leave(self, reason: str) -> None:
        self.asked.append(reason)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_job, "OTHERS_FIRST_S", 0.2)


def hang(job: Job, action: str, folder: Path) -> str:
    table = parse_table(f'[[watch]]\nwhat = "hang"\ndo = ["{action}"]', str(folder / "w.toml"), inside=True)
    return in_job.inside(job, action, table, table.watches[0], "hang: no progress")


def ended(job: Job) -> list[tuple[int, int]]:
    """Round and rank of the failures that were asked for."""
    return [asked[:2] for asked in job.asked if isinstance(asked, tuple)]


def test_the_rank_that_stands_elsewhere_fails_at_once(tmp_path: Path) -> None:
    """It is this node's; all others, of this node and of another one, wait."""
    job = Job({"there": rows((0, WAITS), (1, WAITS))})
    job.own = rows((4, WAITS), (5, "load (data.py:7)"))
    line = hang(job, "restart", tmp_path)
    assert "charged as a failure of rank 5" in line
    assert ended(job) == [(3, 5)]
    assert not job.published


def test_a_rank_of_another_node_fails_by_its_own_agent(tmp_path: Path) -> None:
    """Which gets the message and the stacks; this node ends the round only if that one does not."""
    job = Job({"there": rows((0, WAITS), (1, "load (data.py:7)"))})
    line = hang(job, "restart", tmp_path)
    assert "the node of rank 1 ends the round; otherwise this node does so in 0.2 s" in line
    assert job.asked == []
    [(kind, body)] = job.published
    assert (kind, body["rank"]) == (END, 1)
    assert body["message"].startswith("hang: no progress; rank 1 on there in load (data.py:7); rank ")
    assert body["text"].startswith("rank 1 on there\n  load (data.py:7)")
    _after_the_timer()
    assert ended(job) == [(3, 4)]


def test_an_agent_that_is_asked_to_fails_its_own_rank_only() -> None:
    """What others write is not believed further than that."""
    job = Job()
    for rank in (1, "5", True, None):
        in_job.end_asked(job, 3, {"rank": rank, "message": "hang", "text": ""})
    in_job.end_asked(job, 3, {"rank": 5, "message": 7, "text": ""})
    assert ended(job) == []
    in_job.end_asked(job, 3, {"rank": 5, "message": "hang", "text": ""})
    assert ended(job) == [(3, 5)]


def test_while_all_known_ranks_wait_the_nodes_that_did_not_answer_come_first(tmp_path: Path) -> None:
    """The cause may be there; they are named, and have some seconds."""
    job = Job({"there": rows((0, WAITS))}, silent=("node-7:31",))
    line = hang(job, "restart", tmp_path)
    assert "no answer from node-7:31 within 30 s" in line
    assert "every worker that answered waits for a rank that did not" in line
    assert job.asked == []
    _after_the_timer()
    assert ended(job) == [(3, 4)]
    assert "no answer from node-7:31 within 30 s" in str(job.asked)


def test_where_the_store_is_away_the_message_says_so(tmp_path: Path) -> None:
    """Nobody was asked, so nobody has failed to answer."""
    job = Job(silent=("there:2",))
    job.trouble = "cannot ask other nodes: connection refused"
    line = hang(job, "restart", tmp_path)
    assert "cannot ask other nodes: connection refused" in line
    assert "no answer" not in line
    _after_the_timer()
    assert ended(job) == [(3, 4)]


def test_on_one_node_nobody_else_can_be_the_cause(tmp_path: Path) -> None:
    """So it does not wait."""
    job = Job()
    hang(job, "restart", tmp_path)
    assert ended(job) == [(3, 4)]


def test_ranks_with_equal_stacks_are_one_group_whichever_node_they_are_on(tmp_path: Path) -> None:
    """The odd one comes first, in the line and in the one file for all."""
    job = Job({"there": rows((0, WAITS), (1, WAITS)), "beyond": rows((2, WAITS), (3, "load (data.py:7)"))})
    line = hang(job, "dump", tmp_path)
    others = "rank 0 on there, rank 1 on there, rank 2 on beyond, rank 4 on here and 1 more"
    assert f"rank 3 on beyond in load (data.py:7); {others} in {WAITS}" in line
    [file] = (tmp_path / "stacks").iterdir()
    text = file.read_text()
    assert text.startswith("rank 3 on beyond: in load (data.py:7)\n")
    assert "rank 0 on there\n" in text
    assert job.asked == []


def test_of_nodes_that_find_one_hang_one_compares(tmp_path: Path) -> None:
    """This one takes the other's word for where the stacks are, and saves none."""
    job = Job({"there": rows((0, WAITS))})
    job.of_another = {"line": "stacks in /logs/s.txt: rank 0 on there in load", "brief": "", "rank": 0}, "there"
    line = hang(job, "dump", tmp_path)
    assert line == "stacks in /logs/s.txt: rank 0 on there in load; compared by there"
    assert not (tmp_path / "stacks").exists()


@pytest.mark.parametrize(
    "answer",
    [{}, {"stacks": 7}, {"stacks": [7, [1], [1, 2, 3, 4, 5, 6], None]}, {"begun": {"x": 1, "1": {"g": "h"}, "2": []}}],
    ids=str,
)
def test_an_answer_that_is_none_is_left_out(answer: dict[str, Any]) -> None:
    """Of another version, or of somebody else who can write to the store."""
    world = compare({"there": answer, "here": rows((4, WAITS))})
    assert [each.rank for group in world.found.groups for each in group] == [4]
    assert world.late == ()


def test_the_rank_that_did_not_come_to_a_collective_is_found_across_nodes() -> None:
    """All stacks are equal; its node has answered as the others."""
    came, did_not = {"pg": [7, "all_reduce"]}, {"pg": [6, "all_gather"]}
    world = compare({
        "here": {**rows((0, WAITS), (1, WAITS)), "begun": {"0": came, "1": came}},
        "there": {**rows((2, WAITS), (3, WAITS)), "begun": {"2": did_not, "3": came}},
    })  # fmt: skip
    assert (world.late, world.odd) == ((2,), 2)
    assert world.said == "rank 2 did not enter collective 7 (all_reduce) of group pg, in which the others are"


def test_texts_of_a_node_are_bounded_and_each_group_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many workers it has, and however deep they are."""
    taken = [ProcessStack(f"pid {pid}", "x" * 20_000, f"{pid % 3}", "f", pid) for pid in range(40)]
    monkeypatch.setattr(everywhere, "stacks_of", lambda *_: grouped(taken))
    job = Job()
    monkeypatch.setattr(job, "workers", lambda: {pid: pid for pid in range(40)})
    [watch] = parse_table('[[watch]]\nwhat = "hang"', "w.toml", inside=True).watches
    answer = everywhere.reply(job, watch)
    assert len(json.dumps(answer)) < MAX_VALUE_BYTES
    world = compare({"here": answer})
    assert [len(group) for group in world.found.groups] == [13, 13, 14]
    assert all(group[0].text for group in world.found.groups)


@pytest.mark.parametrize(("action", "act"), [("restart", Act.RESTART), ("save", Act.SAVE), ("stop", Act.KILL)], ids=str)
def test_memory_guards_ask_all_ranks_at_a_step_boundary(action: str, act: Act) -> None:
    """A leak is no failure: the restart is planned."""
    table = parse_table(f'[[watch]]\nwhat = "memory"\nthreshold = "90 % used"\ndo = ["{action}"]', "w", inside=True)
    job = Job()
    in_job.inside(job, action, table, table.watches[0], "memory: 95 % used")
    assert job.asked == [(act, "memory: 95 % used")]


def test_a_drain_has_this_node_leave() -> None:
    """The others go on."""
    job = Job()
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
    late, said = behind({0: begun(all_came), 1: begun(flight((1, "gloo:barrier"))), 2: begun(all_came)})
    assert (late, said) == (
        (1,),
        "rank 1 did not enter collective 2 (gloo:all_reduce) of group default_pg, in which the others are",
    )
    assert behind({0: begun(all_came), 1: begun(all_came)}) == ((), "")
    assert behind({}) == ((), "")


def test_a_recorder_in_another_form_says_nothing() -> None:
    """Of a later version of torch, say."""
    assert begun({"entries": [{"number": 3}, {"process_group": 7}]}) == {}


def test_the_stacks_folder_is_beside_the_table(tmp_path: Path) -> None:
    """As without an agent."""
    table = parse_table('[[watch]]\nwhat = "hang"', str(tmp_path / "w.toml"), inside=True)
    assert table.dumps == str(tmp_path / "stacks")


def _after_the_timer() -> None:
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer) and thread.interval == in_job.OTHERS_FIRST_S:  # not the run's own
            thread.join(5.0)
