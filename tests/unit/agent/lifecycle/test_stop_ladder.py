"""Stopping workers: signal, grace, SIGKILL, a last wait, give up and say so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.agent.lifecycle import stop_ladder
from elastic_agent.agent.lifecycle.stop_ladder import Leftovers, Rung


def test_an_early_wake_up_changes_nothing() -> None:
    """The ladder stays on its rung until the time of the rung is up."""
    ladder = stop_ladder.ask(10.0, 30.0)
    assert ladder.climb(39.9) is ladder


def test_workers_are_killed_after_the_grace() -> None:
    """Workers that did not react to the signal get SIGKILL when the grace is over."""
    killed = stop_ladder.ask(10.0, 30.0).climb(40.0)
    assert (killed.rung, killed.until) == (Rung.KILLED, 40.0 + stop_ladder.GIVE_UP_S - stop_ladder.LAST_LOOK_S)


def test_workers_that_survive_sigkill_are_given_up() -> None:
    """After GIVE_UP_S: a process stuck in the kernel must not keep the agent for ever."""
    killed = stop_ladder.ask(0.0, 1.0).climb(1.0)
    about_to = killed.climb(killed.until)
    assert (about_to.rung, about_to.until) == (Rung.LAST_LOOK, 1.0 + stop_ladder.GIVE_UP_S)
    assert about_to.climb(about_to.until).rung is Rung.GIVEN_UP


def test_after_a_freeze_of_any_length_killed_workers_have_time_to_be_seen_gone() -> None:
    """They exited while agent and nursery stood still, so nobody knows of it yet when the time is up."""
    killed = stop_ladder.ask(0.0, 1.0).climb(1.0)
    for late_s in (0.001, 0.5, 3600.0):
        thawed = killed.until + late_s
        assert killed.climb(thawed).until == thawed + stop_ladder.LAST_LOOK_S


def test_leftovers_have_time_to_end_by_themselves() -> None:
    """Processes left by workers that exited 0 are named after UNNAMED_S; after LEFTOVER_S in all they get the signal,
    and the whole grace."""
    named = stop_ladder.linger(0.0, 7.0).climb(stop_ladder.UNNAMED_S)
    assert (named.rung, named.until) == (Rung.NAMED, stop_ladder.LEFTOVER_S)
    asked = named.climb(stop_ladder.LEFTOVER_S)
    assert (asked.rung, asked.until) == (Rung.ASKED, stop_ladder.LEFTOVER_S + 7.0)


@pytest.mark.parametrize("leftover_s", [0.0, 1.0, 2.0])
def test_a_short_time_for_leftovers_is_kept(leftover_s: float) -> None:
    """--leftovers stop:1."""
    asked = stop_ladder.linger(0.0, 7.0, Leftovers.STOP, leftover_s).climb(leftover_s)
    assert (asked.rung, asked.until) == (Rung.ASKED, leftover_s + 7.0)


@pytest.mark.parametrize(("leftovers", "rung"), [(Leftovers.WAIT, Rung.NAMED), (Leftovers.KEEP, Rung.KEPT)])
def test_leftovers_that_are_waited_for_or_kept_are_never_stopped(leftovers: Leftovers, rung: Rung) -> None:
    """--leftovers wait, --leftovers keep."""
    ladder = stop_ladder.linger(0.0, 7.0, leftovers).climb(stop_ladder.UNNAMED_S)
    assert ladder.rung is rung
    assert ladder.climb(1e9) is ladder


def test_a_request_to_stop_ends_the_time_of_leftovers() -> None:
    """A first signal asks them, with the grace of workers; a second one kills them."""
    waiting = stop_ladder.linger(0.0, 7.0, Leftovers.WAIT).climb(stop_ladder.UNNAMED_S)
    asked = waiting.ask_now(5.0)
    assert (asked.rung, asked.until) == (Rung.ASKED, 12.0)
    assert asked.hurry(6.0).climb(6.0).rung is Rung.KILLED


def test_a_second_request_ends_the_grace() -> None:
    """SIGKILL follows at once."""
    assert stop_ladder.ask(0.0, 30.0).hurry(5.0).climb(5.0).rung is Rung.KILLED


def test_a_second_request_does_not_shorten_the_wait_after_sigkill() -> None:
    """The agent still waits for killed workers to exit."""
    killed = stop_ladder.ask(0.0, 1.0).climb(1.0)
    assert killed.hurry(2.0) is killed


def test_a_grace_of_0_kills_at_once() -> None:
    """--shutdown-timeout 0."""
    assert stop_ladder.ask(7.0, 0.0).climb(7.0).rung is Rung.KILLED


@given(st.lists(st.floats(0.0, 50.0), max_size=20), st.floats(0.0, 60.0), st.booleans())
def test_it_never_descends_and_ends_in_bounded_time(gaps_s: list[float], grace_s: float, lingers: bool) -> None:
    """Whenever the wake-ups come, the rung never goes back, and a wake-up at each deadline ends the ladder."""
    order = list(Rung)
    ladder = stop_ladder.linger(0.0, grace_s) if lingers else stop_ladder.ask(0.0, grace_s)
    now = 0.0
    for gap_s in gaps_s:
        now += gap_s
        climbed = ladder.climb(now)
        assert order.index(climbed.rung) >= order.index(ladder.rung)
        ladder = climbed
    for _ in Rung:
        now = max(now, ladder.until)
        ladder = ladder.climb(now)
    assert ladder.rung is Rung.GIVEN_UP
