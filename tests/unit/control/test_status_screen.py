"""The screen of `elasticctl status`: what an operator sees of a job, and what is odd."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_agent.control.ctl.screen import screen


def node(name: str, rank: int | None, heard_s: float = 0.3, state: str = "working", **more: Any) -> dict[str, Any]:
    place = {} if rank is None else {"groupRank": rank, "rankOffset": 2 * rank}
    return {"name": name, "state": state, "nproc": 2, "heardAgeS": heard_s, "restartsLeft": 3, **place, **more}


def job(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "runId": "job1", "name": "node0", "source": "coordinator", "announcedAgeS": 840.0, "phase": "running",
        "because": "every place is taken", "round": 3, "minNodes": 2, "maxNodes": 4, "worldSize": 8, "restarts": 1,
        "nodes": list(nodes), "outcome": "", "store": "c10d node0:29400", "storeTrouble": "", "leaseS": 5.0,
        "ageS": 7980.0, "lastEvent": 9, **more,
    }  # fmt: skip


WORKERS = [{"name": "node0", "workers": [{"state": "running"}, {"state": "running", "markAgeS": 40.0, "steps": 18240}]}]
EVENTS = [
    {"timeS": 160.0, "what": "announced", "node": "node0", "because": "round 2 ended", "failure": "", "number": 8},
    {"timeS": 996.0, "what": "event", "node": "node0", "because": "node3 is late", "failure": "", "number": 9},
]


def shown(of: dict[str, Any], width: int = 100, **more: Any) -> str:
    return "\n".join(line.text for line in screen(of, WORKERS, EVENTS, 1000.0, width=width, **more))


def test_a_silent_node_is_named_before_it_is_lost() -> None:
    """The first line, its own line and the next step say so; its workers are unknown, a worker without a sign of life
    stands still."""
    late = {**node("node3", 3, 4.0), "because": "round 3 begins with 4 nodes"}
    of = job(node("node0", 0, 0.0, own=True), node("node1", 1), node("node2", 2), late)
    text = shown(of)
    assert text.splitlines() == [
        "job1  running, node3 is silent                  4 of 2:4 nodes  8 workers  2 h 13 min",
        "why   round 3: every place is taken",
        "step  18,240",
        "from  node0, the coordinator; store: c10d node0:29400",
        "",
        "NODE   STATE    LAST SIGN  RANKS  WORKERS  LEFT  NOTE",
        "node0  working  -          0-1    =z       3     this agent",
        "node1  working  0.3 s      2-3    ==       3",
        "node2  working  0.3 s      4-5    ==       3",
        "node3  SILENT   4 s        6-7    ??       3",
        "",
        "     4 s  node0  node3 is late",
        "  14 min  job  round 2 ended",
        "next  node3 is lost in about 1 s      elasticctl explain",
    ]
    odd = [line.text.split()[0] for line in screen(of, WORKERS, EVENTS, 1000.0, width=100) if line.odd]
    assert odd == ["job1", "node3"]


def test_workers_that_have_not_begun_the_last_failure_and_where_the_time_went_are_shown() -> None:
    """One imports, two are not there yet; a node that is about to get its first process is no unknown one."""
    failure = "rank 3 (local rank 1, pid 977) on node1, exit code 1: ValueError: boom"
    of = job(
        node("node0", 0, 0.0, own=True, nproc=4), node("node1", 1), node("node2", None, state="waiting"),
        ended={"round": 2, "kind": "failure", "because": "so", "charged": "node1", "failure": failure},
        goodput=["goodput 96.1 % of 8 h of 4 workers: useful steps 7 h"],
    )  # fmt: skip
    begun = [{"state": "running"}, {"state": "running", "importing": True}]
    workers: list[dict[str, Any]] = [
        {"name": "node0", "workers": begun}, {"name": "node1", "workers": []}, {"name": "node2", "workers": []},
    ]  # fmt: skip
    lines = [line.text for line in screen(of, workers, EVENTS, 1000.0, width=120)]
    assert "time  goodput 96.1 % of 8 h of 4 workers: useful steps 7 h" in lines
    assert [line for line in lines if line.startswith("node")] == [
        "node0  working  -          0-3    =i..     3     this agent",
        "node1  working  0.3 s      2-3    ..       3     rank 3 failed in round 2: exit code 1: ValueError: boom",
        "node2  waiting  0.3 s      -      -        3",
    ]


def test_what_is_not_known_at_first_hand_is_shown_as_unknown_with_its_age() -> None:
    other = {"name": "node1", "state": "unknown", "nproc": 2, "groupRank": 1, "rankOffset": 2}
    of = job(node("node0", 0, own=True), other, source="announcement", announcedAgeS=12.0)
    text = shown(of)
    assert "(its own state is current; other nodes as announced 12 s ago)" in text
    assert "node1  unknown  ?          2-3    ??       ?" in text


def test_a_job_whose_store_is_away_a_spare_and_a_lost_node() -> None:
    of = job(
        node("node0", 0, own=True),
        node("node1", 1, state="lost", heard_s=9.0),
        node("spare", None, state="waiting", waits=True),
        storeTrouble="connection refused",
        ended={"round": 2, "kind": "failure", "because": "rank 3 failed", "charged": "node1"},
        agreement={"act": "save", "because": "the save switch", "at": 7},
    )
    text = shown(of)
    assert "store does not answer: connection refused" in text
    assert "node1  LOST" in text
    assert "spare  spare" in text
    assert "last  round 2 ended by failure: rank 3 failed; charged to node1" in text
    assert "plan  all ranks save at step boundary 7: the save switch" in text
    assert text.splitlines()[0].startswith("job1  running, node1 is lost")


def test_many_nodes_are_counted_and_only_the_odd_ones_are_listed() -> None:
    """64 nodes fit in 24 lines of 80 columns; `-o wide` has them all, uncut."""
    of = job(*(node(f"node{rank}", rank, 4.0 if rank == 9 else 0.2) for rank in range(64)), because="long " * 40)
    lines = shown(of, width=80).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "63 other nodes without trouble" in lines
    assert [line.split()[0] for line in lines if line.startswith("node")] == ["node9"]
    wide = shown(of, wide=True)
    assert wide.count("\nnode") == 64
    assert "long " * 40 in wide


def test_many_workers_of_a_node_are_counted_by_what_they_do() -> None:
    """So that what is odd, and the columns behind, are on the screen; `-o wide` has a letter each."""
    of = job({**node("node0", 0, own=True), "nproc": 300}, {**node("node1", 1), "nproc": 300, "rankOffset": 300})
    many = [{"state": "running"}] * 297 + [{"state": "exited"}] * 2 + [{"state": "stopped"}]
    lines = [line.text for line in screen(of, [{"name": "node0", "workers": many}], EVENTS, 1000.0, width=80)]
    assert [line for line in lines if line.startswith("node")] == [
        "node0  working  -          0-299    297= 2x 1!  3     this agent",
        "node1  working  0.3 s      300-599  300=        3",
    ]
    assert "=" * 300 in shown(of, wide=True)


def test_a_node_that_has_ended_or_leaves_is_not_about_to_be_lost() -> None:
    """Its last sign grows old, and nothing more is awaited of it."""
    of = job(node("node0", 0, own=True), node("node1", 1, 4.0, "ended"), node("node2", 2, 4.0, "leaving"))
    assert "is lost in about" not in shown(of)


@pytest.mark.parametrize(
    ("latency_s", "text"),
    [
        (0.00042, "0.42 ms"),
        (0.00099, "1.0 ms"),
        (0.0034, "3.4 ms"),
        (0.00999, "10 ms"),
        (0.13, "130 ms"),
        (2.5, "2500 ms"),
    ],
)
def test_the_screen_says_how_long_the_store_takes_to_answer(latency_s: float, text: str) -> None:
    assert f"from  node0, the coordinator; store: c10d node0:29400, {text}\n" in shown(job(storeLatencyS=latency_s))


def test_a_job_without_nodes_yet_says_so_instead_of_an_empty_table() -> None:
    lines = shown(job(phase="", round=0, because="starting")).splitlines()
    assert "no node of a round is known yet" in lines
    assert not any(line.startswith("NODE ") for line in lines)


def test_a_job_that_has_ended_says_how() -> None:
    of = job(outcome="failed", phase="closed", because="rank 0 failed")
    assert shown(of).splitlines()[0].startswith("job1  failed ")
    assert "next  nothing: the job failed" in shown(of)
