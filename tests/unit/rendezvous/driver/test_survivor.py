"""`--rdzv-conf survivor=go`: of two nodes the guest goes on once its host is silent (`election/machine.py`)."""

from __future__ import annotations

from typing import Any

from elastic_agent.rendezvous.codec.job import new_record, same_job
from elastic_agent.rendezvous.driver.inbound import await_records
from elastic_agent.rendezvous.election import machine
from elastic_agent.rendezvous.election.events import (
    AnnouncementRead,
    DeadlineReached,
    Effect,
    Event,
    HeartbeatAcknowledged,
    Serve,
    WakeAt,
)
from elastic_agent.rendezvous.election.state import Phase, Rules, Voter
from elastic_agent.rendezvous.records import JobSpec, Survivor

GOES, WAITS = Rules("b", 5.0, survivor_goes=True), Rules("b", 5.0)


def voter(rules: Rules, *events: Event) -> Voter:
    """Node b, whose host is a, behind these."""
    state = Voter("a")
    for event in events:
        state = machine.step(state, event, 0.0, rules).state
    return state


def silent(state: Voter, now: float, rules: Rules) -> tuple[Voter, tuple[Effect, ...]]:
    after = machine.step(state, DeadlineReached(), now, rules)
    return after.state, after.effects


TWO = AnnouncementRead((1, 3), ("a", "b"), ())
BEAT = HeartbeatAcknowledged(1, 10.0, 3)


def test_the_guest_hosts_a_lease_behind_the_last_heartbeat_that_was_acknowledged() -> None:
    state = voter(GOES, TWO)
    assert machine.step(state, BEAT, 10.0, GOES).effects == (WakeAt(15.0),)
    state = voter(GOES, TWO, BEAT)
    assert silent(state, 14.9, GOES) == (state, ())
    after, effects = silent(state, 15.0, GOES)
    assert (after.phase, after.host, after.epoch, effects) == (Phase.SERVING, "b", 2, (Serve(2),))
    assert "survivor=go was given" in after.because
    assert (after.outvoted, after.dead) == (frozenset("a"), frozenset())


def test_it_waits_where_nobody_asked_for_that() -> None:
    state = voter(WAITS, TWO, BEAT)
    assert machine.step(state, BEAT, 10.0, WAITS).effects == ()
    assert silent(state, 60.0, WAITS) == (state, ())


def test_it_waits_where_there_are_others_or_it_has_not_read_what_was_announced() -> None:
    three = AnnouncementRead((1, 3), ("a", "b", "c"), ())
    left = AnnouncementRead((1, 3), ("a", "b"), ("c",))
    behind = HeartbeatAcknowledged(1, 10.0, 4)
    for events in ((three, BEAT), (left, BEAT), (TWO, behind)):
        state = voter(GOES, *events)
        assert silent(state, 60.0, GOES) == (state, ())


def test_all_nodes_must_have_been_given_the_same() -> None:
    wait, majority, goes = (JobSpec("job", ("x",), 1, 3, survivor=each) for each in Survivor)
    assert same_job(new_record(goes, "a", "a"), goes)
    assert not any(same_job(new_record(goes, "a", "a"), other) for other in (wait, majority))


class Session:
    """A session that returns the record of this node with its third answer, long behind the deadline."""

    asked = 0

    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, dict[str, bytes]]:
        self.asked += 1
        assert timeout_s > 0
        return cursor + 1, {"b": b"record"} if self.asked == 3 else {}


def test_a_new_host_that_waits_for_the_others_always_waits_for_itself() -> None:
    """It lives, and a job that it coordinates without its own record has no node. Others are lost by the deadline."""
    session: Any = Session()
    assert not await_records(frozenset({"b", "c"}), 0.0, session, "b")
    assert session.asked == 3
    assert not await_records(frozenset({"c"}), 0.0, session, "b")
    assert session.asked == 3
