"""The job as its watches see it, where other nodes cannot be asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_agent.control.decisions.questions import PACES
from elastic_agent.control.in_agent.view import AgentsJob
from elastic_agent.control.job_view import Answers
from elastic_agent.control.table.parse import parse_table
from elastic_agent.rendezvous.records import Member
from elastic_agent.rendezvous.store import StoreUnreachable

MEMBERS = (Member("a1", "here:1", 0, 0, 2), Member("b2", "there:2", 1, 2, 2), Member("c3", "there:2", 2, 4, 2))


class Link:
    """One whose store does not answer."""

    def values(self) -> None:
        raise StoreUnreachable("store.example:29400: connection refused")


@pytest.fixture
def job() -> Iterator[AgentsJob]:
    """In an agent that has the first place of three."""
    status = SimpleNamespace(round=3, members=MEMBERS, group_rank=0, name="here:1", log_dir="", coordinating=True)
    workers = SimpleNamespace(alive={}, written={})
    agent: Any = SimpleNamespace(
        link=Link(), name="here:1", status=lambda: status, members=lambda: MEMBERS, workers=workers
    )
    made = AgentsJob()
    made.begin(agent, parse_table('[[watch]]\nwhat = "hang"', "w.toml", inside=True), lambda line: None)
    yield made
    made.close()


def test_where_others_cannot_be_asked_this_node_alone_answers(job: AgentsJob) -> None:
    """It is said why, and the hang is still acted upon."""
    began = time.monotonic()
    answers = job.ask_nodes(PACES, {}, 60.0)
    assert dict(answers.found) == {"here:1": {"ranks": {}}}
    assert len(answers.silent) == 2
    assert answers.trouble == "cannot ask other nodes: store.example:29400: connection refused"

    def conclude_from(found: Answers) -> Mapping[str, Any]:
        return {"because": found.trouble}

    assert job.conclude(PACES, {}, 60.0, conclude_from, 60.0) == ({"because": answers.trouble}, "")
    assert not job.publish("end", {})
    assert time.monotonic() - began < 10.0


def test_two_nodes_of_one_name_are_told_apart(job: AgentsJob) -> None:
    """Such as two containers, in which the agent has the same process id."""
    answers = job.ask_nodes(PACES, {}, 60.0)
    assert answers.silent == ("there:2 (node 1)", "there:2 (node 2)")
    assert job.ranks_of("there:2 (node 2)") == range(4, 6)
    assert job.ranks_of("nobody") == range(0)
