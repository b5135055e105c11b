"""What a node asks of all ranks: how long a record holds it, and how long workers wait behind it."""

from __future__ import annotations

from elastic_agent.agent.lifecycle import on_agreement
from elastic_agent.agent.lifecycle.events import AskBound, DecideWorkers, ReleaseWorkers
from elastic_agent.agent.lifecycle.state import Node, RoundTally, Rules
from elastic_agent.rendezvous.agreements import Act, Agreement, Request
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
