"""What the coordinator announces while all nodes wait: for which nodes, how long yet, and how often."""

from __future__ import annotations

from dataclasses import replace

from elastic_agent.rendezvous.coordinator import deadlines, events, explain, machine
from elastic_agent.rendezvous.coordinator.state import LeaseReadings, Rendezvous, Rules
from elastic_agent.rendezvous.records import NodeState, Round, RoundPhase
from support.builders import FAILURE, after_records, record

BEGUN = Rendezvous(epoch=1)
RULES = Rules(own="a", min_nodes=2, max_nodes=2)


def announced(state: Rendezvous, now: float, rules: Rules) -> Round | None:
    """What a wake-up at `now` announces."""
    step = machine.step(state, events.DeadlineReached(), now, rules)
    return next((effect.round for effect in step.effects if isinstance(effect, events.Announce)), None)


def test_a_wait_is_announced_after_a_second_and_then_ever_more_rarely() -> None:
    """1, 3, 9 and 27 s after it began, then once a minute: 14 times in ten minutes."""
    state, times = after_records(BEGUN, 0.0, RULES, record("a")), []
    now = 0.0
    while (due := deadlines.progress_at(state, RULES)) is not None and due < 600.0:
        now = due
        step = machine.step(state, events.DeadlineReached(), now, RULES)
        assert any(isinstance(effect, events.Announce) for effect in step.effects)
        state = step.state
        times.append(round(now))
    assert times == [1, 3, 9, 27, *range(87, 600, 60)]


def test_a_member_that_does_not_take_its_place_is_named_from_5_s_on() -> None:
    """The workers of the others wait for those of its node, in their first collective call."""
    state = after_records(BEGUN, 0.0, RULES, record("a"), record("b"), record("c"))
    state = after_records(state, 1.0, RULES, record("a", 2, NodeState.WORKING, round=1))
    state = replace(state, readings=LeaseReadings())
    assert announced(state, 5.0, RULES) is None
    late = announced(state, 5.02, RULES)
    assert late is not None
    assert late.because.startswith("waiting for b (no heartbeat for 5.0 s; lost after 5 s) to start the workers of ")
    assert late.because.endswith("round 1 (5 s so far)")
    state = after_records(state, 5.03, RULES, record("b", 2, NodeState.WORKING, round=1))
    assert deadlines.progress_at(state, RULES) is None


def test_such_an_announcement_differs_in_its_text_only() -> None:
    """So no node decides anything by it."""
    state = after_records(BEGUN, 0.0, RULES, record("a"))
    assert state.announced is not None
    first = state.announced
    again = announced(state, 1.01, RULES)
    assert again is not None
    assert again.differs_in_text_only(first)
    assert again.because == "1 of at least 2 nodes joined (a); waiting up to 599 s for more"


def test_a_wait_before_any_node_has_joined_names_nobody() -> None:
    """No word stands where the names would."""
    assert explain.waiting(BEGUN, 0.0, RULES).startswith("0 of at least 2 nodes joined; waiting up to ")


def test_no_wait_is_announced_before_the_store_has_taken_the_last_announcement() -> None:
    """A reading requested since then must be answered first: a sentence must not delay a decision."""
    state = after_records(BEGUN, 0.0, RULES, record("a"))
    behind = replace(state, readings=LeaseReadings(asked_at=0.5, pending=True))
    assert announced(behind, 2.0, RULES) is None
    caught_up = replace(state, readings=LeaseReadings(asked_at=0.5, confirmed_until=0.5))
    assert announced(caught_up, 2.0, RULES) is not None


def test_a_silent_node_is_named_first_with_the_time_of_its_last_heartbeat() -> None:
    """The survivors of a loss wait for its lease, and are shown when that ends."""
    rules = replace(RULES, min_nodes=1, max_nodes=3)
    state = after_records(BEGUN, 0.0, rules, record("a"), record("b"), record("c"))
    state = after_records(state, 1.0, rules, *(record(node, 2, NodeState.WORKING, round=1) for node in "abc"))
    broken = record("a", 3, NodeState.BROKEN, round=1, failure=FAILURE)
    state = after_records(state, 4.0, rules, broken, record("b", 3, NodeState.STOPPING, round=1))
    waiting = announced(replace(state, readings=LeaseReadings()), 5.5, rules)
    assert waiting is not None
    assert waiting.because == (
        "waiting for c (no heartbeat for 4.5 s; lost after 5 s), a, b to stop the workers of round 1 (2 s so far)"
    )


def test_a_wait_for_many_nodes_names_eight() -> None:
    """A thousand names would hide how many there are."""
    rules = replace(RULES, min_nodes=1000, max_nodes=1000)
    state = after_records(BEGUN, 0.0, rules, *(record(f"n{number:03}") for number in range(998)), record("a"))
    waiting = announced(replace(state, readings=LeaseReadings()), 5.01, rules)
    assert waiting is not None
    named = "a, n000, n001, n002, n003, n004, n005, n006 and 991 more"
    assert waiting.because == f"999 of at least 1000 nodes joined ({named}); waiting up to 595 s for more"


def test_a_wait_of_many_nodes_is_announced_from_5_s_on() -> None:
    """A thousand nodes join within two seconds; a sentence before that would cost each of them two messages."""
    rules = replace(RULES, min_nodes=257, max_nodes=257)
    state = after_records(BEGUN, 0.0, rules, record("a"))
    assert deadlines.progress_at(state, rules) == 5.01
    assert deadlines.progress_at(state, replace(rules, min_nodes=256)) == 1.01


def test_the_last_call_of_many_nodes_is_announced_once_it_has_lasted_for_half_a_second() -> None:
    """Where all come, the round begins in that moment, and no node reads in vain. Other news is not held back."""
    rules = replace(RULES, min_nodes=300, max_nodes=400)
    nodes = [record("a"), *(record(f"n{number:03}") for number in range(399))]
    state = replace(after_records(BEGUN, 0.0, rules, *nodes[:299]), readings=LeaseReadings())
    called = replace(after_records(state, 4.0, rules, *nodes[299:399]), readings=LeaseReadings())
    assert called.phase is RoundPhase.LAST_CALL
    assert called.announced == state.announced
    said_at = deadlines.progress_at(called, rules)
    assert said_at == 4.51
    said = announced(called, said_at, rules)
    assert said is not None
    assert said.phase is RoundPhase.LAST_CALL
    assert said.because.startswith("399 of at most 400 nodes joined (a, n000, ")
    begun = after_records(called, 4.1, rules, nodes[399]).announced
    assert begun is not None
    assert begun.phase is RoundPhase.RUNNING


def test_a_job_of_many_nodes_that_waited_too_long_names_eight_of_each_and_counts_the_rest() -> None:
    """Each node records this sentence, and a thousand names would not fit into the record."""
    rules = replace(RULES, min_nodes=1000, max_nodes=1000)
    here = (record(f"n{number:03}") for number in range(500))
    ended = (record(f"z{number:03}", 2, NodeState.ENDED) for number in range(400))
    state = after_records(BEGUN, 0.0, rules, *here, *ended)
    missing = ", ".join(f"z{number:03} (ended)" for number in range(8))
    assert explain.who_is_missing(state, rules) == (
        "500 of at least 1000 nodes joined within the join timeout of 600 s: "
        "n000, n001, n002, n003, n004, n005, n006, n007 and 492 more; "
        f"missing: {missing} and 392 more, 100 nodes that never joined"
    )
