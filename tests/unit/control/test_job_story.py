"""`elasticctl explain`: the story of a job from its events, whoever wrote them."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_agent.control.ctl.story import all_lines, lines, stories_of, story_of

MEMBERS = [{"node": "0a", "name": "node0", "nproc": 2}, {"node": "0b", "name": "node1", "nproc": 2}]


def announced(at_s: float, number: int, phase: str, because: str, **more: Any) -> dict[str, Any]:
    """A line of the events file."""
    return {
        "what": "announced", "at_s": at_s, "node": "node0", "number": number, "phase": phase, "because": because,
        "members": MEMBERS, "ended": None, "outcome": None, **more,
    }  # fmt: skip


ENDED = {"round": 1, "kind": "failure", "because": "rank 3 on node1: boom", "charged": "0b", "rank": 3}
FILE = [
    announced(100.0, 1, "gathering", "0 of 2 nodes"),
    announced(101.0, 1, "running", "every place is taken"),
    announced(161.0, 1, "over", "rank 3 failed"),
    announced(161.5, 2, "gathering", "again", ended=ENDED),
    announced(162.0, 2, "running", "all are back", ended=ENDED),
    announced(200.0, 2, "closed", "all workers exited 0", outcome="succeeded", ended=ENDED),
    {"what": "concluded", "at_s": 200.1, "node": "node0", "exit_code": 0, "because": "done", "outcome": "succeeded"},
]


def test_each_round_has_its_reason_its_end_and_its_cost() -> None:
    assert lines(story_of(FILE)) == [
        "2 rounds in 100 s, 1 restart charged, 1 s between rounds; the job succeeded",
        "between rounds, by what ended the one before: failure on node1 1 s",
        "",
        "round 1  began 1 s into the job with 2 nodes, 4 workers: every place is taken",
        "  ran 60 s, ended by failure: rank 3 on node1: boom",
        "  node1 is charged a restart",
        "  1 s until the next round began",
        "",
        "round 2  began 62 s into the job with 2 nodes, 4 workers: all are back",
        "  ran 38 s, ended: all workers exited 0",
        "",
        "node0: exit 0: done",
    ]


def test_a_round_runs_on_while_one_of_its_nodes_has_finished() -> None:
    """That node waits for the others."""
    finished = {"what": "event", "at_s": 130.0, "node": "node1", "phase": "finished", "round": 1, "members": MEMBERS,
                "because": "all workers of this node exited 0"}  # fmt: skip
    assert lines(story_of([*FILE[:2], finished]))[-1] == "  still running, or its end is not in these events"
    assert "  ran 60 s, ended by failure: rank 3 on node1: boom" in lines(story_of([*FILE[:2], finished, *FILE[2:]]))


STORY: list[dict[str, Any]] = [
    {"what": "alarm", "at_s": 130.0, "node": "node1", "id": "0b/7", "cause": "", "happened": "fired", "watch": "hang",
     "because": "rank 3 stands still", "members": []},
    {"what": "event", "at_s": 161.0, "node": "node1", "id": "exit/1/3", "cause": "0b/7", "phase": "stopping",
     "round": 1, "because": "a worker failed", "happened": "HangFound", "members": MEMBERS},
    *({"what": "stage", "at_s": at_s, "node": node, "id": f"{node}/{at_s}", "cause": "exit/1/3", "round": number,
       "stage": stage, "took_s": took_s, "members": []}
      for node, number, stage, at_s, took_s in (
          ("node0", 1, "noticed", 161.0, 0.0), ("node0", 1, "stopped", 161.2, 0.2), ("node1", 1, "stopped", 163.0, 2.0),
          ("node0", 2, "agreed", 164.0, 1.0), ("node1", 2, "started", 164.1, 0.1), ("node1", 2, "imported", 170.0, 6.0),
          ("node0", 2, "first step", 171.0, 1.0))),
    *({"what": "goodput", "at_s": 200.0, "node": node, "wall_s": 100.0, "workers": 2, "measured": True, "ranks": [],
       "buckets": {"useful steps": 160.0, "importing": 12.0, "hanging": 28.0, "paused": 0.0}, "members": [],
       "lost": [{"round": 0, "kind": "start", "length_s": 6.0, "node": "", "because": ""},
                {"round": 1, "kind": "failure", "length_s": 34.0, "node": "node1", "because": "boom"}]}
      for node in ("node0", "node1")),
]  # fmt: skip


def test_a_story_follows_causes_and_says_where_the_time_went() -> None:
    """What led to a round's end, over nodes; the slowest node's stages; goodput, and what is lost by round and node."""
    over = {**FILE[2], "id": "announced/3", "cause": "exit/1/3"}
    told = lines(story_of([*FILE[:2], over, *FILE[3:], *STORY]))
    assert told[1:4] == [
        "goodput 80.0 % of 7 min of 4 workers: useful steps 5 min, hanging 56 s, importing 24 s",
        "lost, by the round whose end cost it: round 1, failure 68 s, start 12 s",
        "lost, by the node that caused it: node1 68 s",
    ]
    at = told.index("  ran 60 s, ended by failure: rank 3 on node1: boom")
    assert told[at + 1 : at + 5] == [
        "  caused by  node1: a worker failed",
        "  caused by  node1: rank 3 stands still",
        "  node1 is charged a restart",
        "  1 s until the next round began",
    ]
    slowest = "stopped after 2 s, agreed after 1 s, started after 0.1 s, imported after 6 s, first step after 1 s"
    assert told[at + 5] == f"  then, of the slowest node: {slowest}"


def test_events_of_a_socket_tell_the_same_as_the_file() -> None:
    """Names of JSON, and the number of an event beside that of its round."""

    def live(number: int, event: dict[str, Any]) -> dict[str, Any]:
        made = {"number": number, "timeS": 1.7e9, "atS": event["at_s"], "happened": event["what"], "failure": ""}
        if event["what"] == "announced":
            made["round"] = event["number"]
        if "exit_code" in event:
            made["exitCode"] = event["exit_code"]
        kept = ("what", "node", "phase", "because", "members", "ended", "outcome")
        return made | {name: event[name] for name in kept if event.get(name)}

    assert lines(story_of(live(number, event) for number, event in enumerate(FILE))) == lines(story_of(FILE))


def test_a_node_that_does_not_coordinate_knows_its_own_rounds() -> None:
    def event(at_s: float, phase: str, because: str, round_number: int, failure: str = "") -> dict[str, Any]:
        return {
            "what": "event", "at_s": at_s, "node": "node1", "phase": phase, "because": because, "round": round_number,
            "happened": "x", "members": MEMBERS, "failure": failure,
        }  # fmt: skip

    told = story_of([event(5.0, "working", "round 1 begins", 1), event(9.0, "stopping", "rank 0 failed", 1, "rank 0")])
    assert lines(told)[2:] == [
        "round 1  began 0 s into the job with 2 nodes, 4 workers: round 1 begins",
        "  ran 4 s, ended: rank 0 failed",
    ]


def test_what_cheap_ends_of_rounds_have_cost_is_told_as_a_sum() -> None:
    """Where an account has had too many of them."""
    lost = [{"round": number, "kind": kind, "node": "", "length_s": 2.0, "because": ""}
            for number, kind in ((7, "failure"), (0, "failure"), (0, "start"))]  # fmt: skip
    account = {"what": "goodput", "at_s": 200.2, "node": "node0", "wall_s": 6.0, "workers": 1, "measured": False,
               "buckets": {"re-forming": 6.0}, "lost": lost}  # fmt: skip
    said = "lost, by the round whose end cost it: round 7, failure 2 s, other rounds, failure 2 s, start 2 s"
    assert said in lines(story_of([*FILE, account]))


def test_no_events_are_no_story() -> None:
    assert lines(story_of([])) == ["these events contain no round"]


def test_a_history_that_begins_late_says_so() -> None:
    told = story_of([{**FILE[1], "missed": 7}])
    assert lines(told)[1] == "7 events before these are not kept; ELASTIC_AGENT_EVENTS keeps all"


def test_the_failure_that_ends_the_job_costs_no_restart() -> None:
    """It is charged to a node, and there is nothing to start again."""
    ended = {**ENDED, "round": 2, "charged": "0a", "because": "rank 0 on node0: boom"}
    closed = announced(200.0, 2, "closed", "no restarts are left there", outcome="failed", ended=ended)
    told = lines(story_of([*FILE[:5], closed]))
    assert told[0] == "2 rounds in 100 s, 1 restart charged, 1 s between rounds; the job failed"
    assert [line for line in told if "restart " in line or line.endswith("restart")][1:] == [
        "  node1 is charged a restart",
        "  node0 had no restart left",
    ]


def test_a_job_that_runs_is_told_until_now_and_a_file_of_it_until_its_last_event() -> None:
    running = FILE[:5]
    assert lines(stories_of(running, {False: 400.0, True: 0.0})[0])[0].startswith("2 rounds in 5 min, 1 restart")
    assert lines(story_of(running))[0].startswith("2 rounds in 62 s until the last of these events, 1 restart")
    assert lines(stories_of(FILE, {False: 400.0, True: 0.0})[0])[0].startswith("2 rounds in 100 s, 1 restart")


@pytest.mark.parametrize("pids", [(1, 2), (1, 1)])
def test_starts_that_share_a_file_are_told_apart(pids: tuple[int, int]) -> None:
    """Each has a round 1, and announcements from 1 on. Its agents have new names, but for those of containers."""

    def start(offset_s: float, pid: int) -> list[dict[str, Any]]:
        members = [{**each, "name": f"{each['name']}:{pid}"} for each in MEMBERS]
        made = [
            {**event, "at_s": event["at_s"] + offset_s, "time_s": event["at_s"] + offset_s, "node": f"node0:{pid}",
             "members": members if "members" in event else [], **({"version": version} if "number" in event else {})}
            for version, event in enumerate(FILE, 1)
        ]  # fmt: skip
        at = {"at_s": 99.0 + offset_s, "time_s": 99.0 + offset_s}
        other = {**at, "what": "event", "node": f"node1:{pid}", "round": 0,
                 "phase": "joining", "because": "waits", "happened": "x", "members": []}  # fmt: skip
        account = {**STORY[-1], "node": f"node1:{pid}", "time_s": 200.0 + offset_s, "wall_s": 100.0, "at_s": 1.0}
        over = {**made[-1], "node": f"node1:{pid}"}
        return [other, *made, account, over]

    one, two = start(0.0, pids[0]), start(1000.0, pids[1])
    stories = stories_of([*two, *one])
    assert [lines(each) for each in stories] == [lines(story_of(one)), lines(story_of(two))]
    assert [len(each.rounds) for each in stories] == [2, 2]
    told = all_lines(stories)
    assert told[0] == "start 1 of 2"
    assert told[told.index("start 2 of 2") - 1 :][:3] == ["", "start 2 of 2", ""]
