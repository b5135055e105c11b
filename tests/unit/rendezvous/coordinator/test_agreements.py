"""When all ranks act on a request, and at which boundary: the coordinator's part, one decision at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_agent.rendezvous.agreements import Act, Agreement, Answer, Request
from elastic_agent.rendezvous.coordinator import events, explain, machine
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.failures import EndKind
from elastic_agent.rendezvous.records import NodeRecord, NodeState, Outcome, RoundPhase
from support.builders import FAILURE, after_records, record

RULES = Rules(own="a", min_nodes=2, max_nodes=2)
WORKING = NodeState.WORKING


def asking(act: Act, label: str = "", number: int = 1) -> tuple[Request, ...]:
    return (Request(number, act, label, "somebody asks"),)


def running() -> Rendezvous:
    """Round 1 with the nodes a and b, whose records have number 2."""
    state = after_records(Rendezvous(epoch=1), 0.0, RULES, record("a"), record("b"))
    return after_records(state, 1.0, RULES, working("a", 2), working("b", 2))


def working(node: str, seq: int, requests: tuple[Request, ...] = (), answer: Answer | None = None) -> NodeRecord:
    return record(node, seq, WORKING, 1, requests=requests, answer=answer)


def agreed(state: Rendezvous) -> Agreement:
    assert state.announced is not None
    assert state.announced.agreement is not None
    return state.announced.agreement


def answers(state: Rendezvous, seq: int, bounds: dict[str, int], *, done: bool = False) -> Rendezvous:
    """The state after these nodes have answered the newest agreement."""
    number = agreed(state).number
    records = [working(node, seq, answer=Answer(number, bound, done)) for node, bound in bounds.items()]
    return after_records(state, 2.0, RULES, *records)


def later(state: Rendezvous, now: float) -> Rendezvous:
    return machine.step(state, events.DeadlineReached(), now, RULES).state


def test_the_largest_bound_of_all_members_is_the_boundary() -> None:
    """It is announced only once every member has answered, so no rank can be past it."""
    state = after_records(running(), 2.0, RULES, working("b", 3, requests=asking(Act.SAVE, "here")))
    assert (agreed(state).act, agreed(state).label, agreed(state).at) == (Act.SAVE, "here", 0)
    state = answers(state, 4, {"b": 17})
    assert agreed(state).at == 0
    state = answers(state, 4, {"a": 12})
    assert (agreed(state).at, agreed(state).over) == (17, False)


def test_an_agreement_is_over_when_all_have_acted_and_its_request_is_not_served_again() -> None:
    """Also if the node's record still holds it."""
    state = after_records(running(), 2.0, RULES, working("b", 3, requests=asking(Act.SAVE)))
    state = answers(state, 4, {"a": 5, "b": 6})
    state = answers(state, 5, {"a": 5}, done=True)
    assert not agreed(state).over
    state = after_records(
        state, 3.0, RULES, working("b", 6, requests=asking(Act.SAVE), answer=Answer(agreed(state).number, 6, done=True))
    )
    assert (agreed(state).over, agreed(state).requests) == (True, (("b", 1),))
    assert agreed(later(state, 4.0)) == agreed(state)
    again = after_records(state, 5.0, RULES, working("b", 7, requests=asking(Act.SAVE, number=2)))
    assert (agreed(again).number > agreed(state).number, agreed(again).over) == (True, False)


def test_equal_requests_of_several_nodes_are_one_agreement() -> None:
    """Both nodes saw one file."""
    first, second = (working(node, 3, requests=asking(Act.SAVE, "one")) for node in "ab")
    state = running()
    state = replace(state, nodes=state.nodes.with_all([replace(state.nodes["a"], record=first)]), asking=frozenset("a"))
    state = after_records(state, 2.0, RULES, second)
    assert agreed(state).requests == (("a", 1), ("b", 1))


def test_a_kill_takes_the_place_of_a_save_that_has_no_boundary_yet() -> None:
    """A save may wait for ever for a worker without the library."""
    state = after_records(running(), 2.0, RULES, working("a", 3, requests=asking(Act.SAVE)))
    state = after_records(state, 3.0, RULES, working("b", 3, requests=asking(Act.KILL)))
    assert agreed(state).act is Act.KILL


def test_a_kill_waits_for_a_save_under_way_only_so_long() -> None:
    """A rank that hangs in a save must not keep the job from ending."""
    state = after_records(running(), 2.0, RULES, working("a", 3, requests=asking(Act.SAVE)))
    state = answers(state, 4, {"a": 5, "b": 6})
    state = after_records(state, 3.0, RULES, working("b", 5, requests=asking(Act.KILL)))
    assert agreed(state).act is Act.SAVE
    state = later(later(state, 2.0 + RULES.settle_s), 2.1 + RULES.settle_s)
    assert agreed(state).act is Act.KILL
    state = later(state, 3.0 + 2 * RULES.settle_s)
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.KILLED)


@pytest.mark.parametrize("finished", ["all", "one"])
def test_the_kill_switch_closes_the_job_when_all_have_exited_or_the_time_is_over(finished: str) -> None:
    """With 83 on every node, as each reads the outcome."""
    state = after_records(running(), 2.0, RULES, working("a", 3, requests=asking(Act.KILL)))
    state = answers(state, 4, {"a": 5, "b": 6})
    state = answers(state, 5, {"a": 5, "b": 6}, done=True)
    state = after_records(state, 3.0, RULES, record("a", 6, NodeState.FINISHED, 1))
    assert state.phase is RoundPhase.RUNNING
    if finished == "all":
        state = after_records(state, 3.0, RULES, record("b", 6, NodeState.FINISHED, 1))
    else:
        assert later(state, 1.9 + RULES.settle_s).phase is RoundPhase.RUNNING
        state = later(state, 2.0 + RULES.settle_s)
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.KILLED)


def test_an_arrival_during_a_planned_restart_is_taken_into_the_next_round() -> None:
    """All have saved and wait, which is what an arrival would have asked of them."""
    rules = replace(RULES, max_nodes=3, settles=True)
    state = after_records(Rendezvous(epoch=1), 0.0, rules, record("a"), record("b"))
    state = machine.step(state, events.DeadlineReached(), 60.0, rules).state
    asked = (working("a", 2, requests=asking(Act.RESTART)), working("b", 2))
    state = after_records(state, 61.0, rules, *asked)
    assert agreed(state).act is Act.RESTART
    for seq, done in ((3, False), (4, True)):
        number = agreed(state).number
        answered = (working(node, seq, answer=Answer(number, 5, done)) for node in "ab")
        state = after_records(state, 62.0, rules, record("c") if seq == 3 else record("c", 2), *answered)
    assert (state.phase, state.end.ending and state.end.ending.kind) == (RoundPhase.OVER, EndKind.ARRIVAL)


def test_workers_that_are_to_exit_are_waited_for_by_the_settle_time_and_not_by_the_barrier() -> None:
    """The barrier does not end the job then, so no sentence says when it ends."""
    state = after_records(running(), 2.0, RULES, working("a", 3, requests=asking(Act.KILL)))
    state = answers(answers(state, 4, {"a": 5, "b": 6}), 5, {"a": 5, "b": 6}, done=True)
    state = after_records(state, 3.0, RULES, record("a", 6, NodeState.FINISHED, 1))
    assert explain.waiting(state, 12.0, RULES) == "waiting up to 50 s for the workers of b to save and exit"


def test_a_failure_after_the_kill_switch_is_not_restarted() -> None:
    """The checkpoint may fail; the job ends all the same, and says so."""
    state = after_records(running(), 2.0, RULES, working("a", 3, requests=asking(Act.KILL)))
    state = answers(state, 4, {"a": 5, "b": 6})
    state = after_records(state, 3.0, RULES, record("b", 5, NodeState.BROKEN, 1, FAILURE))
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.KILLED)
    assert "worker failed" in state.because


def test_the_kill_switch_ends_a_job_also_while_no_round_runs() -> None:
    """No worker runs that could make a checkpoint."""
    waiting = after_records(Rendezvous(epoch=1), 0.0, RULES, record("a", requests=asking(Act.KILL)))
    assert (waiting.phase, waiting.outcome) == (RoundPhase.CLOSED, Outcome.KILLED)
    broken = after_records(running(), 2.0, RULES, record("b", 3, NodeState.BROKEN, 1, FAILURE))
    over = after_records(broken, 2.0, RULES, working("a", 3, requests=asking(Act.KILL)))
    assert (over.phase, over.outcome) == (RoundPhase.CLOSED, Outcome.KILLED)


def test_a_restart_ends_the_round_once_all_have_saved_and_charges_no_node() -> None:
    """It is planned."""
    state = after_records(running(), 2.0, RULES, working("a", 3, requests=asking(Act.RESTART)))
    state = answers(state, 4, {"a": 5, "b": 6})
    assert state.phase is RoundPhase.RUNNING
    state = answers(state, 5, {"a": 5, "b": 6}, done=True)
    assert state.phase is RoundPhase.OVER
    assert state.end.ending is not None
    assert (state.end.ending.kind, state.end.ending.charged) == (EndKind.PLANNED, "")
    state = after_records(state, 3.0, RULES, *(record(node, 6, NodeState.WAITING, 1) for node in "ab"))
    assert (state.phase, state.number, state.restarts) == (RoundPhase.RUNNING, 2, 0)


def test_a_restart_after_which_too_few_nodes_would_remain_is_given_up_and_workers_go_on() -> None:
    """a has finished, so b alone could begin no round of two: a restart would end the job."""
    state = after_records(running(), 2.0, RULES, working("b", 3, requests=asking(Act.RESTART)))
    state = answers(state, 4, {"a": 5, "b": 6})
    state = after_records(state, 2.0, RULES, record("a", 6, NodeState.FINISHED, 1))
    state = answers(state, 7, {"b": 6}, done=True)
    assert (state.phase, agreed(state).over, state.asking - {"b"}) == (RoundPhase.RUNNING, True, frozenset())
    assert state.announced is not None
    assert "not restarted, as a had already finished, and 1 node remains, fewer than min_nodes 2" in state.because
    state = after_records(state, 3.0, RULES, record("b", 8, NodeState.FINISHED, 1))
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.SUCCEEDED)


def test_without_boundaries_nothing_is_restarted() -> None:
    """A worker that uses no Run would lose its steps."""
    state = after_records(running(), 2.0, RULES, working("a", 3, requests=asking(Act.RESTART)))
    state = answers(state, 4, {"a": 5, "b": 0})
    assert (state.phase, agreed(state).over, agreed(state).at) == (RoundPhase.RUNNING, True, 0)


def test_a_request_outlives_the_round_in_which_it_was_not_served() -> None:
    """Boundaries are of one round; the request stands in its node's record."""
    state = after_records(running(), 2.0, RULES, working("a", 3, requests=asking(Act.SAVE, "kept")))
    state = after_records(state, 3.0, RULES, record("b", 3, NodeState.BROKEN, 1, FAILURE))
    assert state.agreement is None
    waiting = [record(node, 7, NodeState.WAITING, 1, requests=asking(Act.SAVE, "kept")) for node in "a"]
    state = after_records(state, 4.0, RULES, *waiting, record("b", 7, NodeState.WAITING, 1, FAILURE))
    assert (state.phase, state.number, agreed(state).label) == (RoundPhase.RUNNING, 2, "kept")


def test_a_successor_goes_on_with_an_agreement() -> None:
    """What was announced stands: its boundary, and that it is over."""
    state = after_records(running(), 2.0, RULES, working("b", 3, requests=asking(Act.SAVE)))
    state = answers(state, 4, {"a": 5, "b": 6})
    records = tuple(seen.record for seen in state.nodes.values())
    elected = events.Elected(2, state.announced, records, state.version)
    after = machine.step(Rendezvous(), elected, 9.0, RULES).state
    assert agreed(after).at == 6
    after = answers(after, 5, {"a": 5, "b": 6}, done=True)
    assert agreed(after).over


def test_a_less_urgent_request_of_the_same_node_is_served_after_a_later_one() -> None:
    """That its newest request was served says nothing of the one before."""
    both = (*asking(Act.SAVE, "first"), *asking(Act.RESTART, number=2))
    state = after_records(running(), 2.0, RULES, working("a", 3, requests=both))
    assert agreed(state).act is Act.RESTART
    state = answers(state, 4, {"b": 0})
    assert agreed(state).over
    later_on = after_records(state, 3.0, RULES, working("a", 4, requests=both))
    assert (agreed(later_on).label, agreed(later_on).requests) == ("first", (("a", 1),))


def test_a_successor_serves_nothing_again_that_records_still_hold() -> None:
    """Also what an earlier agreement than the newest served: its node may be gone, or has missed that."""
    state = after_records(running(), 2.0, RULES, working("b", 3, requests=asking(Act.SAVE, "one")))
    state = answers(state, 4, {"a": 5})
    state = after_records(state, 2.0, RULES, working("b", 4, asking(Act.SAVE, "one"), Answer(agreed(state).number, 5)))
    done = Answer(agreed(state).number, 5, done=True)
    state = after_records(
        state, 2.0, RULES, working("a", 5, answer=done), working("b", 5, asking(Act.SAVE, "one"), done)
    )
    assert agreed(state).over
    state = after_records(state, 3.0, RULES, working("a", 6, requests=asking(Act.SAVE, "two")))
    assert (agreed(state).label, agreed(state).over) == ("two", False)
    records = tuple(seen.record for seen in state.nodes.values())
    after = machine.step(Rendezvous(), events.Elected(2, state.announced, records, state.version), 9.0, RULES).state
    after = answers(after, 7, {"a": 8})
    after = after_records(after, 9.0, RULES, working("b", 7, asking(Act.SAVE, "one"), Answer(agreed(after).number, 8)))
    over = Answer(agreed(after).number, 8, done=True)
    after = after_records(
        after, 9.0, RULES, working("a", 8, answer=over), working("b", 8, asking(Act.SAVE, "one"), over)
    )
    assert (agreed(after).label, agreed(after).over) == ("two", True)
    assert agreed(later(after, 10.0)) == agreed(after)


def test_what_records_hold_no_more_is_announced_no_more() -> None:
    """Announcements do not grow with each request."""
    state = after_records(running(), 2.0, RULES, working("b", 3, requests=asking(Act.SAVE)))
    state = answers(state, 4, {"a": 0})
    assert state.announced is not None
    assert state.announced.served == (("b", 1),)
    state = after_records(state, 3.0, RULES, working("b", 5))
    assert state.announced is not None
    assert state.announced.served == ()


@pytest.mark.parametrize("act", [Act.SETTLE, Act.RESTART])
def test_a_round_of_which_all_have_finished_ends_the_job_whatever_was_asked(act: Act) -> None:
    """A restart of workers that exited 0, or a leave that comes too late, is no reason for another round."""
    state = after_records(running(), 2.0, RULES, working("a", 3, requests=asking(act)))
    state = answers(state, 4, {"a": 5, "b": 6})
    finished = [
        replace(record(node, 6, NodeState.FINISHED, 1), requests=asking(act) if node == "a" else ()) for node in "ab"
    ]
    state = after_records(state, 3.0, RULES, *finished)
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.SUCCEEDED)
