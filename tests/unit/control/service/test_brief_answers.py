"""Brief answers of an agent whose job has many nodes: little to send, and the same screen."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest

from campaigns.control import large_job
from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.control.ctl import asking, screen, views
from elastic_agent.control.ctl.call import CallRefused
from elastic_agent.control.ctl.find import Agent
from elastic_agent.control.service import methods
from elastic_agent.control.service.describe import BRIEF_NODES, brief
from elastic_agent.control.service.messages import Capacity, Job, Node, Status, StatusRequest, to_json
from elastic_agent.proto.frozen import replace
from elastic_agent.rendezvous.records import Member

STATES = ("working", "finished", "waiting", "joining", "ended", "unknown", "broken", "stopping", "leaving", "lost")


def job_of(nodes: tuple[Node, ...], source: str = "coordinator") -> Job:
    return Job("job1", "node0", source, phase="running", nodes=nodes, lease_s=5.0, capacity=Capacity(0, 0))


def lines(job: Job) -> list[screen.Line]:
    return screen.screen(json.loads(to_json(job)), (), (), 1000.0, width=120)


def test_a_brief_job_of_512_nodes_is_small_and_names_those_that_need_attention() -> None:
    """Whole it takes 67 kB."""
    nodes = [*large_job.nodes_of(512)]
    nodes[7] = replace(nodes[7], state="broken")
    nodes[99] = replace(nodes[99], heard_age_s=4.0)
    made = brief(job_of(tuple(nodes)))
    assert [each.name for each in made.nodes] == ["node7:4711", "node99:4711"]
    assert made.others is not None
    assert (made.others.nodes, made.others.placed) == (510, 510)
    assert len(to_json(made)) < 1000


@pytest.mark.parametrize("seed", range(200))
def test_the_screen_of_a_brief_answer_is_that_of_the_whole_one(seed: int) -> None:
    chance = random.Random(seed)

    def node(number: int) -> Node:
        rank = None if chance.random() < 0.1 else number
        heard_s = chance.choice((None, 0.0, 1.0, 2.5, 2.6, 9.0))
        state = chance.choice(STATES) if chance.random() < 0.2 else "working"
        return Node(f"node{number}", state, rank, 8 * number, 8, heard_s, 3, number == 0, "why", 3, rank is None)

    count = chance.choice((1, BRIEF_NODES, BRIEF_NODES + 1, 40))
    whole = job_of(tuple(map(node, range(count))), chance.choice(("coordinator", "announcement")))
    assert lines(brief(whole)) == lines(whole)


@pytest.mark.parametrize("count", [2, BRIEF_NODES + 1])
def test_a_brief_status_still_says_which_ranks_run_here(count: int) -> None:
    members = tuple(Member(f"{n}", f"node{n}", n, 3 * n, 3, "default", 3 * n) for n in range(count))
    found = Status(
        name="node1", phase=Phase.WORKING, because="", round=3, group_rank=1, world_size=3 * count, members=members,
        restarts_used=0, max_restarts=3, spare=False, hosting=False, coordinating=False,
        worker_pids={0: 7, 1: 8, 2: 9}, log_dir="",
    )  # fmt: skip
    known = SimpleNamespace(node=SimpleNamespace(latest_round=SimpleNamespace(nodes=count)))
    agent: Any = SimpleNamespace(status=lambda: found, known=lambda: known, members=lambda: members)
    service: Any = SimpleNamespace(agent=agent)
    made = methods.status(service, StatusRequest(brief=True), "uid 0")
    assert len(made.members) == (1 if count > BRIEF_NODES else count)
    assert views.ranks_of(Agent("path", json.loads(to_json(made)))) == range(3, 6)


def test_an_agent_that_knows_no_brief_answer_gives_the_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of an older version does; what else it refuses is told."""
    asked: list[dict[str, object]] = []

    def call(path: str, method: str, **fields: object) -> dict[str, object]:
        asked.append(fields)
        if fields:
            raise CallRefused("Job: 'brief' is no field of this request; it has none")
        return {"nodes": []}

    monkeypatch.setattr(asking, "call", call)
    assert asking.call_brief("path", "Job") == {"nodes": []}
    assert asked == [{"brief": True}, {}]

    def refuse(path: str, method: str, **fields: object) -> dict[str, object]:
        raise CallRefused("this agent has not started yet; ask again")

    monkeypatch.setattr(asking, "call", refuse)
    with pytest.raises(CallRefused, match="not started"):
        asking.call_brief("path", "Job")
