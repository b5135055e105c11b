"""What a node asks of all ranks: how long a record holds it, and how long workers wait behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastic_agent.agent.lifecycle import on_agreement
from elastic_agent.agent.lifecycle.events import AskBound, DecideWorkers, ReleaseWorkers
from elastic_agent.agent.lifecycle.state import Node, Phase, RoundTally, Rules
from elastic_agent.agent.report import is_routine
from elastic_agent.control.service import methods
from elastic_agent.control.service.messages import SaveRequest
from elastic_agent.proto.frozen import replace
from elastic_agent.rendezvous.agreements import MAX_REQUESTS, MAX_SAVES, Act, Agreement, Request
from elastic_agent.rendezvous.driver.events import RoundSeen
from elastic_agent.rendezvous.records import Round, RoundPhase

RULES = Rules(node="a", name="a")


def test_a_request_whose_end_the_node_missed_is_taken_from_its_record() -> None:
    """The newest announcement says so although its agreement is another; else the same signal would be ignored for
    good, as what is asked for already."""
    node = Node(requests=(Request(1, Act.SAVE, "save-signal"), Request(2, Act.SAVE, "other")), requested=2)
    another = Agreement(9, Act.SAVE, "of b", requests=(("b", 1),))
    seen = Round(9, 1, 1, RoundPhase.RUNNING, "it runs", agreement=another, served=(("a", 1), ("b", 2)))
    assert on_agreement.without_served(node, seen, RULES).requests == node.requests[1:]


def test_workers_behind_an_agreement_whose_end_the_node_missed_go_on() -> None:
    """The newest announcement is of the next agreement; else they would never come to its boundary."""
    settled = Agreement(4, Act.RESTART, at=2, round=1)
    node = Node(tally=RoundTally(round=1), agreement=settled)
    following = Agreement(7, Act.SAVE, "later", round=1)
    _, effects = on_agreement.follow(
        node, Round(8, 1, 1, RoundPhase.RUNNING, "it runs", agreement=following), 0.0, RULES
    )
    assert effects == (ReleaseWorkers(4), AskBound(following))


def test_workers_see_that_an_agreement_was_given_up_before_their_node_knew_of_it() -> None:
    """They may wait for the decision; the node reads only the newest announcement, in which it is over."""
    over = Agreement(4, Act.RESTART, round=1, over=True)
    node = Node(tally=RoundTally(round=1))
    _, effects = on_agreement.follow(node, Round(8, 1, 1, RoundPhase.RUNNING, "it runs", agreement=over), 0.0, RULES)
    assert effects == (DecideWorkers(over),)


def test_checkpoints_that_nobody_makes_keep_nobody_from_stopping_the_job() -> None:
    """A script without the worker library leaves them standing for ever; each further act has its place."""
    node = Node()
    for number in range(2 * MAX_REQUESTS):
        node, _ = on_agreement.ask(node, Act.SAVE, f"label {number}", "asked by cron", 0.0, RULES)
    assert node.because == "asked by cron: not asked for, as 4 checkpoints that were asked for before are not made yet"
    for act in (Act.SETTLE, Act.RESTART, Act.PREEMPT, Act.KILL):
        node, _ = on_agreement.ask(node, act, "", "asked", 0.0, RULES)
    assert [request.act for request in node.requests[MAX_SAVES:]] == [Act.SETTLE, Act.RESTART, Act.PREEMPT, Act.KILL]
    assert len(node.requests) == MAX_REQUESTS


def test_a_checkpoint_too_many_is_refused_whoever_asks_by_the_control_socket() -> None:
    """It would be said to be asked for. One that is asked for already is no further one."""
    asked: list[str] = []
    node = Node(requests=tuple(Request(number, Act.SAVE, f"{number}") for number in range(MAX_SAVES)))
    agent: Any = SimpleNamespace(known=lambda: SimpleNamespace(node=node), ask=lambda *args: asked.append(args[-1]))
    service: Any = SimpleNamespace(agent=agent)
    with pytest.raises(methods.NotNow, match="4 checkpoints that were asked for are not made yet: ask again"):
        methods.save(service, SaveRequest(label="another"), "uid 0")
    methods.save(service, SaveRequest(label="2"), "uid 0")
    assert asked == ["2"]


@pytest.mark.parametrize("missed", [False, True])
def test_a_restart_that_was_given_up_is_said_on_the_console(missed: bool) -> None:
    """Who asked for it, such as a watch of memory, would wait for it. A planned change says itself how it goes on."""
    asked = Agreement(4, Act.RESTART, because="memory is short", round=1)
    node = Node(Phase.WORKING, tally=RoundTally(round=1), agreement=None if missed else asked)
    seen = Round(8, 1, 1, RoundPhase.RUNNING, "it runs", agreement=replace(asked, over=True))
    after, _ = on_agreement.follow(node, seen, 0.0, RULES)
    said = "not every worker has made its Run of elastic_agent.worker, so nothing was restarted: memory is short"
    assert after.because == said
    assert not is_routine(RoundSeen(seen), node, after)
    assert is_routine(RoundSeen(seen), after, after), "said once"
