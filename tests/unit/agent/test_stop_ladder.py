"""Stopping workers: signal, grace, SIGKILL, a last wait, give up and say so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.agent.lifecycle import stop_ladder
from elastic_agent.agent.lifecycle.stop_ladder import Rung


def test_nothing_happens_before_its_time() -> None:
    """A wake-up that comes early, or one too many, climbs nothing."""
    rungs = stop_ladder.ask(10.0, 30.0)
    assert rungs.climb(39.9) is rungs


def test_the_grace_is_followed_by_kill() -> None:
    """Workers that took no notice of the signal are killed when the grace is over."""
    killed = stop_ladder.ask(10.0, 30.0).climb(40.0)
    assert (killed.rung, killed.until) == (Rung.KILLED, 40.0 + stop_ladder.GIVE_UP_S)


def test_what_survives_kill_is_given_up() -> None:
    """The last rung is bounded: a process stuck in the kernel must not hold the agent for ever."""
    killed = stop_ladder.ask(0.0, 1.0).climb(1.0)
    assert killed.climb(1.0 + stop_ladder.GIVE_UP_S).rung is Rung.GIVEN_UP


def test_leftovers_may_end_by_themselves_first() -> None:
    """Workers ended well; what they left gets a moment, then the signal and the whole grace."""
    asked = stop_ladder.linger(0.0, 30.0).climb(stop_ladder.LEFTOVER_S)
    assert (asked.rung, asked.until) == (Rung.ASKED, stop_ladder.LEFTOVER_S + 30.0)


def test_a_second_request_shortens_the_grace_to_nothing() -> None:
    """It is followed by SIGKILL at once."""
    assert stop_ladder.ask(0.0, 30.0).hurry(5.0).climb(5.0).rung is Rung.KILLED


def test_a_second_request_never_skips_the_killing() -> None:
    """Nothing is abandoned: who asks again while workers are being killed still waits for their end."""
    killed = stop_ladder.ask(0.0, 1.0).climb(1.0)
    assert killed.hurry(2.0) is killed


def test_no_grace_means_kill_at_once() -> None:
    """--shutdown-timeout 0."""
    assert stop_ladder.ask(7.0, 0.0).climb(7.0).rung is Rung.KILLED


@given(st.lists(st.floats(0.0, 50.0), max_size=20), st.floats(0.0, 60.0), st.booleans())
def test_it_only_climbs_and_ends_in_bounded_time(gaps_s: list[float], grace_s: float, lingers: bool) -> None:
    """Whatever the wake-ups, no rung is taken back, and asking at each deadline ends it."""
    order = list(Rung)
    rungs = stop_ladder.linger(0.0, grace_s) if lingers else stop_ladder.ask(0.0, grace_s)
    now = 0.0
    for gap_s in gaps_s:
        now += gap_s
        climbed = rungs.climb(now)
        assert order.index(climbed.rung) >= order.index(rungs.rung)
        rungs = climbed
    for _ in Rung:
        now = max(now, rungs.until)
        rungs = rungs.climb(now)
    assert rungs.rung is Rung.GIVEN_UP
