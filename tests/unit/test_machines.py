"""The two machines as tables: total, closed, pure, and drawn in docs/state-machines.md as they are."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any, get_args

import pytest

from elastic_agent.agent import exit_status
from elastic_agent.agent.lifecycle import events, machine, verdicts
from elastic_agent.agent.lifecycle.state import Node, Phase, Place, RoundTally, StoreOutage, Verdict
from elastic_agent.agent.lifecycle.state import Rules as AgentRules
from elastic_agent.agent.lifecycle.stop_ladder import Ladder, Rung
from elastic_agent.rendezvous.coordinator import charging
from elastic_agent.rendezvous.coordinator import events as told
from elastic_agent.rendezvous.coordinator import machine as coordinator
from elastic_agent.rendezvous.coordinator.state import Rendezvous, RoundEnd, Rules, Seen
from elastic_agent.rendezvous.failures import Ending, EndKind, WorkerFailure
from elastic_agent.rendezvous.records import Member, NodeRecord, NodeState, Outcome, Round, RoundPhase
from project import diagrams

FAILURE = WorkerFailure(node="a", host="h", rank=0, local_rank=0, pid=1, exit_code=1)
RULES = AgentRules(node="a", name="a")
RUNNING = Round(2, 1, 1, RoundPhase.RUNNING, "here", (Member("a", "a", 0, 0, 1),))
EVENTS: dict[type[Any], Any] = {
    events.StoreOpened: events.StoreOpened(False, "h"),
    events.StoreFailed: events.StoreFailed("no"),
    events.StoreWentAway: events.StoreWentAway("no"),
    events.StoreCameBack: events.StoreCameBack(),
    events.RoundSeen: events.RoundSeen(RUNNING),
    events.RecordWritten: events.RecordWritten(1),
    events.LeadershipChanged: events.LeadershipChanged(leads=True),
    events.OthersEnded: events.OthersEnded(),
    events.PlacePrepared: events.PlacePrepared(1, 1),
    events.PlaceFailed: events.PlaceFailed("no"),
    events.WorkerStarted: events.WorkerStarted(0, 1),
    events.WorkerExited: events.WorkerExited(0, None),
    events.StartFailed: events.StartFailed(FAILURE),
    events.WorkersGone: events.WorkersGone(),
    events.NurseryLost: events.NurseryLost("gone"),
    events.SignalReceived: events.SignalReceived(15),
    events.ForwardAsked: events.ForwardAsked(10),
    events.SignalNotForwarded: events.SignalNotForwarded(0, 10),
    events.LeaveAsked: events.LeaveAsked("drained"),
    events.DeadlineReached: events.DeadlineReached(),
}
"""One of each."""

PAIRS = [(phase, event) for phase in Phase for event in get_args(events.Event)]
VERDICT = Verdict(0, "done")


def standing(phase: Phase) -> Node:
    """A node that stands in this phase."""
    node = Node(phase=phase, place=Place(ready=True))
    return replace(node, verdict=VERDICT) if phase in (Phase.ENDING, Phase.ENDED) else node


@pytest.mark.parametrize(
    ("phase", "event"), PAIRS, ids=lambda value: getattr(value, "name", getattr(value, "__name__", ""))
)
def test_every_agent_event_is_handled_or_named_illegal(phase: Phase, event: type[Any]) -> None:
    """No event falls between the tables, and what is handled leads to a listed phase without touching its argument."""
    assert ((phase, event) in machine.TRANSITIONS) != ((phase, event) in machine.ILLEGAL)
    node = standing(phase)
    before = dataclasses.asdict(node)
    if (phase, event) in machine.ILLEGAL:
        with pytest.raises(machine.IllegalEvent, match=phase.value):
            machine.step(node, EVENTS[event], 0.0, RULES)
    else:
        machine.step(node, EVENTS[event], 0.0, RULES)
    assert dataclasses.asdict(node) == before


def test_one_of_each_event_is_tried() -> None:
    """An event added to the union must be added here."""
    assert set(EVENTS) == set(get_args(events.Event))


def test_every_coordinator_event_is_handled_in_every_phase() -> None:
    """The coordinator is level-triggered: any word of any node may come at any time."""
    assert set(coordinator.TRANSITIONS) == {(p, e) for p in RoundPhase for e in get_args(told.Event)}


def test_an_unknown_event_is_illegal_and_changes_nothing() -> None:
    """What is in no table is our bug: one typed error, and the caller's state stays."""
    state = Rendezvous()
    with pytest.raises(coordinator.IllegalEvent, match="gathering"):
        coordinator.step(state, "no event", 0.0, Rules(own="a"))  # type: ignore[arg-type]
    assert state == Rendezvous()


def test_an_unlisted_change_of_phase_is_illegal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that jumps where EDGES has no edge is stopped before its state counts."""
    monkeypatch.setattr(machine, "EDGES", {})
    with pytest.raises(machine.IllegalEvent, match="went from connecting to joining"):
        machine.step(Node(), events.StoreOpened(False, "h"), 0.0, RULES)


def test_closed_and_ended_are_final() -> None:
    """No edge leaves the last phase of either machine."""
    assert not [edge for edge in coordinator.EDGES if edge[0] is RoundPhase.CLOSED]
    assert not [edge for edge in machine.EDGES if edge[0] is Phase.ENDED]


def test_diagrams_equal_the_tables() -> None:
    """docs/state-machines.md shows what the code does; `python -m tests.project.diagrams` draws it anew."""
    assert diagrams.PAGE.read_text() == diagrams.page()


BEGUN = Rendezvous(epoch=1)
"""A coordinator in its first term, before anything else."""


# -- the coordinator, one decision at a time ---------------------------------------------------------------------------


def record(
    node: str,
    seq: int = 1,
    state: NodeState = NodeState.WAITING,
    *,
    round: int = 0,  # noqa: A002  # as the record calls it
    failure: WorkerFailure | None = None,
    restarts_left: int = 0,
) -> NodeRecord:
    return NodeRecord(node, node, state, seq, round=round, failure=failure, restarts_left=restarts_left)


def tell(state: Rendezvous, now: float, rules: Rules, *records: NodeRecord) -> Rendezvous:
    for each in records:
        state = coordinator.step(state, told.NodeSeen(each), now, rules).state
    return state


def test_a_stale_record_changes_nothing() -> None:
    """Records may come again or late; only a newer one counts."""
    rules = Rules(own="a", max_nodes=2)
    state = tell(BEGUN, 0.0, rules, record("a", seq=5))
    for seq in (5, 4):
        step = coordinator.step(state, told.NodeSeen(record("a", seq, NodeState.ENDED)), 0.0, rules)
        assert step.state.nodes == state.nodes
        assert step.state.phase is state.phase


def test_an_early_or_repeated_wake_up_is_harmless() -> None:
    """A deadline that is not yet due, or came twice, decides nothing and announces nothing."""
    rules = Rules(own="a", max_nodes=2)
    state = tell(BEGUN, 0.0, rules, record("a"))
    for _ in range(3):
        step = coordinator.step(state, told.DeadlineReached(), 0.9, rules)
        assert not [effect for effect in step.effects if isinstance(effect, told.Announce)]
        state = step.state
    assert state.phase is RoundPhase.LAST_CALL


def test_the_next_version_follows_each_announcement() -> None:
    """Versions count by one, so that a reader can wait for the next."""
    rules = Rules(own="a", max_nodes=2)
    state = tell(BEGUN, 0.0, rules, record("a"))
    assert state.version == 1
    assert tell(state, 0.1, rules, record("b")).version == 2


def test_a_node_that_never_heard_of_its_place_holds_the_next_round_up() -> None:
    """It may be about to start workers of the round that it was placed in; its word that it did not is waited for."""
    rules = Rules(own="a", max_nodes=2, min_nodes=1)
    state = tell(BEGUN, 0.0, rules, record("a"), record("b"))
    assert state.phase is RoundPhase.RUNNING
    state = tell(state, 1.0, rules, record("a", 2, NodeState.WORKING, round=1))
    state = tell(state, 2.0, rules, record("a", 3, NodeState.BROKEN, round=1, failure=FAILURE, restarts_left=1))
    state = tell(state, 3.0, rules, record("a", 4, round=1, failure=FAILURE, restarts_left=1))
    assert (state.phase, state.number) == (RoundPhase.OVER, 1)
    state = tell(state, 4.0, rules, record("b", 2, round=1))
    assert (state.phase, state.number) == (RoundPhase.RUNNING, 2)


def test_a_job_that_ends_before_its_last_ending_is_settled_charges_nobody() -> None:
    """Too few remain, so the job ends soon; that the failure only echoed another's death could not be learnt."""
    rules = Rules(own="a", max_nodes=3, min_nodes=3)
    state = tell(BEGUN, 0.0, rules, *(record(node) for node in "abc"))
    state = tell(state, 1.0, rules, *(record(node, 2, NodeState.WORKING, round=1) for node in "abc"))
    state = tell(state, 2.0, rules, replace(record("c", 3, NodeState.FINISHED, round=1), finished=True))
    broken = record("a", 3, NodeState.BROKEN, round=1, failure=FAILURE, restarts_left=1)
    state = tell(state, 3.0, rules, broken)
    state = coordinator.step(state, told.DeadlineReached(), 3.0 + charging.LAST_REPORTS_S / 2, rules).state
    assert state.phase is RoundPhase.OVER
    state = coordinator.step(state, told.DeadlineReached(), 3.0 + charging.LAST_REPORTS_S, rules).state
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)
    assert state.end.ending is not None
    assert (state.end.ending.failure, state.end.ending.charged) == (FAILURE, "")


def test_the_last_settled_ending_stays_announced_while_the_next_is_open() -> None:
    """A node that missed a whole round still learns whether it was charged for the one before."""
    ending = Ending(1, EndKind.FAILURE, "failed", "a", FAILURE)
    state = Rendezvous(epoch=1, announced=Round(3, 1, 2, RoundPhase.RUNNING, "here", ended=ending), number=2)
    view = replace(state, end=RoundEnd(Ending(2, EndKind.DEPARTURE, "left"), settled=False)).view(4, "here")
    assert view.ended == ending


def test_the_host_is_not_told_to_retire_before_its_own_first_word() -> None:
    """Other nodes may come and go while the host's own record is still on its way."""
    rules = Rules(own="a")
    step = coordinator.step(BEGUN, told.NodeSeen(record("b", 1, NodeState.ENDED)), 0.0, rules)
    assert step.state.phase is RoundPhase.GATHERING
    assert told.Retire() not in step.effects


# -- the agent, one decision at a time ---------------------------------------------------------------------------------


def test_an_agent_that_stood_still_gives_the_store_a_second_look() -> None:
    """A wake-up that comes late says that we were frozen, not that the store was away for so long."""
    node = Node(phase=Phase.WORKING, tally=RoundTally(1, frozenset({0})), outage=StoreOutage(10.0, "no answer"))
    late = machine.step(node, events.DeadlineReached(), 60.0, RULES)
    assert late.node.phase is Phase.WORKING
    assert late.effects == (events.WakeAt(65.0),)
    gone = machine.step(late.node, events.DeadlineReached(), 65.0, RULES)
    assert gone.node.verdict is not None
    assert gone.node.verdict.exit_code == exit_status.STORE_LOST


def test_a_place_that_a_missed_round_had_for_its_master_is_not_offered_again() -> None:
    """The store answers again before the next place is there; workers of that round may still know the last one."""
    node = Node(place=Place("h"))
    over = Round(2, 1, 1, RoundPhase.OVER, "b arrived", RUNNING.members, "h", 1)
    told: list[tuple[int, NodeState]] = []
    for event in (
        events.StoreOpened(False, "h"),
        events.PlacePrepared(1, 1),
        events.StoreWentAway("no answer"),
        events.RoundSeen(over),
        events.StoreCameBack(),
        events.PlacePrepared(1, 2),
    ):
        step = machine.step(node, event, 1.0, RULES)
        node = step.node
        told += [(each.record.port, each.record.state) for each in step.effects if isinstance(each, events.Publish)]
    assert told == [(1, NodeState.WAITING), (2, NodeState.WAITING)]


def serving() -> Node:
    """A host that has said its last word, while others still need its store."""
    ending = Node(phase=Phase.ENDING, hosting=True, latest_round=RUNNING, verdict=VERDICT, conclude_at=3.0)
    return machine.step(ending, events.RecordWritten(1), 0.0, RULES).node


def test_a_host_that_only_serves_outlasts_a_connection_of_its_own() -> None:
    """It stood still, or one connection broke: others may reach its store as well as ever."""
    away = machine.step(serving(), events.StoreWentAway("no answer within 5 s"), 10.0, RULES)
    assert away.effects == (events.WakeAt(10.0 + RULES.store_grace_s),)
    back = machine.step(away.node, events.StoreCameBack(), 12.0, RULES)
    later = machine.step(back.node, events.DeadlineReached(), 10.0 + RULES.store_grace_s, RULES)
    assert later.node.phase is Phase.ENDING


def test_a_host_without_its_own_store_for_the_grace_stops_serving() -> None:
    """It will never hear that the others have ended; but one that stood still itself gets a second look."""
    away = machine.step(serving(), events.StoreWentAway("no answer within 5 s"), 10.0, RULES).node
    assert machine.step(away, events.DeadlineReached(), 13.0, RULES).node.phase is Phase.ENDING
    late = machine.step(away, events.DeadlineReached(), 500.0, RULES)
    assert late.node.phase is Phase.ENDING
    assert late.effects == (events.WakeAt(505.0),)
    assert machine.step(late.node, events.DeadlineReached(), 505.0, RULES).node.phase is Phase.ENDED


def test_a_wake_up_that_comes_too_early_is_asked_for_again() -> None:
    """By a rounding of the clock; so the last word's end and the end of a host's patience with its store come."""
    guest = Node(phase=Phase.ENDING, latest_round=RUNNING, verdict=VERDICT, conclude_at=3.0)
    early = machine.step(guest, events.DeadlineReached(), 2.999, RULES)
    assert (early.node.phase, early.effects) == (Phase.ENDING, (events.WakeAt(3.0),))
    until = 10.0 + RULES.store_grace_s
    away = machine.step(serving(), events.StoreWentAway("no answer within 5 s"), 10.0, RULES).node
    assert machine.step(away, events.DeadlineReached(), until - 0.001, RULES).effects == (events.WakeAt(until),)


def test_a_host_that_gave_its_store_up_does_not_serve_it_for_ever() -> None:
    """Nobody can tell it any more that the others have ended."""
    node = Node(phase=Phase.JOINING, hosting=True, place=Place(ready=True), outage=StoreOutage(30.0, "no answer"))
    given_up = machine.step(node, events.DeadlineReached(), 30.0, RULES).node
    assert given_up.phase is Phase.ENDING
    assert machine.step(given_up, events.DeadlineReached(), 33.0, RULES).node.phase is Phase.ENDED


def test_an_agent_that_stood_still_itself_does_not_give_up_on_workers_that_may_be_gone() -> None:
    """That they are may lie unread; so it looks once more, and then gives up as ever."""
    killed = Ladder(Rung.KILLED, 20.0, 0.5)
    node = Node(phase=Phase.STOPPING, tally=RoundTally(1, frozenset({0})), ladder=killed)
    late = machine.step(node, events.DeadlineReached(), 500.0, RULES)
    assert late.node.phase is Phase.STOPPING
    assert late.effects == (events.WakeAt(505.0),)
    assert machine.step(late.node, events.WorkersGone(), 500.1, RULES).node.phase is Phase.JOINING
    given_up = machine.step(late.node, events.DeadlineReached(), 505.0, RULES).node
    assert given_up.phase is Phase.ENDING
    assert given_up.verdict is not None
    assert "workers still run 10 s after SIGKILL" in given_up.verdict.because


def test_a_nursery_that_dies_after_all_workers_finished_takes_nothing_back() -> None:
    """What exited 0 stays finished, whatever becomes of the process that watched over the leftovers."""
    node = Node(phase=Phase.STOPPING, finished=True, tally=RoundTally(1))
    after = machine.step(node, events.NurseryLost("signal 9"), 0.0, RULES)
    assert after.node.phase is Phase.FINISHED
    assert events.RestartNursery() in after.effects


def test_a_nursery_that_dies_is_a_failure_of_this_node() -> None:
    """Charged like a worker's failure, or one that recurs would restart the job for ever."""
    node = Node(phase=Phase.WORKING, tally=RoundTally(1, frozenset({0, 1})), latest_round=RUNNING)
    after = machine.step(node, events.NurseryLost("signal 9"), 0.0, RULES)
    said = [effect.record for effect in after.effects if isinstance(effect, events.Publish)]
    assert [(each.state, each.round) for each in said] == [(NodeState.BROKEN, 1)]
    assert said[0].failure is not None
    assert after.node.phase is Phase.JOINING


@pytest.mark.parametrize("outcome", Outcome)
def test_a_node_that_finished_keeps_its_zero(outcome: Outcome) -> None:
    """However the job ends for the others."""
    closed = Round(9, 1, 1, RoundPhase.CLOSED, "over", outcome=outcome)
    assert verdicts.of_closed(Node(finished=True), closed).exit_code == 0


def test_an_old_failure_is_not_blamed_for_another_ending() -> None:
    """A failure that was restarted is not why the barrier ran out later."""
    ending = Ending(1, EndKind.FAILURE, "failed", "a", FAILURE)
    closed = Round(9, 1, 2, RoundPhase.CLOSED, "over", ended=ending, outcome=Outcome.UNFINISHED)
    assert verdicts.of_closed(Node(), closed).cause is None
    assert verdicts.of_closed(Node(), replace(closed, outcome=Outcome.FAILED)).cause == FAILURE


def test_what_led_to_a_round_that_never_began_is_told() -> None:
    """A node died and none took its place: every survivor tells of the departure, and blames no worker for it."""
    ending = Ending(1, EndKind.DEPARTURE, "c was lost; then worker failed", "", FAILURE)
    closed = Round(9, 1, 2, RoundPhase.CLOSED, "missing: c (lost)", ended=ending, outcome=Outcome.JOIN_TIMED_OUT)
    verdict = verdicts.of_closed(Node(), closed)
    assert (verdict.cause, verdict.ending) == (None, ending)
    assert verdicts.of_closed(Node(), replace(closed, outcome=Outcome.UNFINISHED)).ending is None


def test_seen_is_never_waiting_and_owing_at_once() -> None:
    """A node that owes its word about an earlier round is no candidate for the next."""
    for state in NodeState:
        for lost in (False, True):
            for placed in (0, 1, 2):
                seen = Seen(record("a", 1, state, round=1), 0, 0.0, 0.0, lost=lost, placed=placed)
                assert not (seen.waiting and seen.may_have_workers)
