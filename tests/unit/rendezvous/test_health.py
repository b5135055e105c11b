"""What a heartbeat vouches for, and when a store counts as away although the writer's calls are answered."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from elastic_agent.rendezvous.driver import health
from elastic_agent.rendezvous.driver.connection import CallGuard, patience_s
from elastic_agent.rendezvous.driver.health import Health, LoopWatch, Newest, Standstill
from elastic_agent.rendezvous.driver.term import READER_WAIT_S
from elastic_agent.rendezvous.store import NO_BEAT, SPOILED

LIMIT_S, BEAT_S = 5.0, 1.0


def announced(received: int, there_is: int) -> dict[str, Newest]:
    """The watcher has received this version, and the store has announced that."""
    return {"watcher": Newest("announcement", received, there_is)}


class Clock:
    """Moved by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


class Questions:
    """A loop that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []
        self.health = Health(LoopWatch(self.asked.append, BEAT_S), LIMIT_S, BEAT_S)

    def answer(self) -> None:
        self.asked.pop()()


def test_a_loop_that_takes_no_question_for_the_limit_stands_still(clock: Clock) -> None:
    """It is asked once, and turns again as soon as it answers."""
    loop = Questions()
    for second in range(5):
        clock.now = 100.0 + second
        assert not loop.health.loop_stands()
    clock.now = 105.0
    assert loop.health.loop_stands()
    assert len(loop.asked) == 1
    loop.answer()
    assert not loop.health.loop_stands()


def test_a_loop_that_answers_never_stands_still(clock: Clock) -> None:
    """However long it takes to answer each time, within the limit."""
    loop = Questions()
    for _ in range(20):
        for _ in range(4):
            assert not loop.health.loop_stands()
            clock.now += BEAT_S
        loop.answer()


def test_a_pause_of_the_whole_process_says_nothing_about_its_loop(clock: Clock) -> None:
    """A frozen process finds the question unanswered when it goes on, as nothing of it ran."""
    loop = Questions()
    loop.health.loop_stands()
    clock.now += 3600.0
    assert not loop.health.loop_stands()


def test_a_version_that_does_not_arrive_is_named_with_what_was_received(clock: Clock) -> None:
    """After the limit, and until it arrives; half way the watcher gets another connection, once."""
    node = Questions().health
    renewed = []
    for _ in range(5):
        assert node.why_not_receiving(announced(7, 9), {}) == ""
        renewed.append(node.to_renew)
        clock.now += BEAT_S
    assert renewed == [set(), set(), set(), {"watcher"}, set()]
    assert (
        node.why_not_receiving(announced(7, 9), {}) == "announcement 9 was not received for 5 s; the last one here is 7"
    )
    assert node.why_not_receiving(announced(9, 9), {}) == ""


def test_a_record_that_the_coordinator_does_not_receive_is_found_as_an_announcement_is(clock: Clock) -> None:
    """Its calls may be answered all the time, as those of a watch that hangs are. What ended with its term is gone."""
    node = Questions().health
    heard = {**announced(9, 9), "reader": Newest("notification", 20, 23)}
    for _ in range(5):
        assert node.why_not_receiving(heard, {}) == ""
        clock.now += BEAT_S
    assert node.why_not_receiving(heard, {}) == "notification 23 was not received for 5 s; the last one here is 20"
    assert node.why_not_receiving(announced(9, 9), {}) == ""
    assert node.why_not_receiving(heard, {}) == ""


def test_a_node_that_receives_one_version_after_the_other_does_not_lag(clock: Clock) -> None:
    """The store may always be one ahead."""
    node = Questions().health
    for version in range(20):
        assert node.why_not_receiving(announced(version, version + 1), {}) == ""
        clock.now += BEAT_S


def test_a_thread_whose_call_takes_too_long_is_named(clock: Clock) -> None:
    """Half way it gets another connection, once. Calls that end are none of its concern, however many there are."""
    node, renewed = Questions().health, []
    for call in range(11):
        assert node.why_not_receiving({}, {"watcher": (call, 3.0), "reader": (1, 11.0)}) == ""
        renewed.append(node.to_renew)
        clock.now += BEAT_S
    assert renewed == [{"reader"} if second == 6 else set() for second in range(11)]
    assert node.why_not_receiving({}, {"reader": (1, 11.0)}) == "the reader of this agent got no answer in time"
    assert node.why_not_receiving({}, {"reader": (2, 11.0)}) == ""


@pytest.mark.parametrize("lease_s", [1.0, 5.0, 30.0])
@pytest.mark.parametrize("wait_s", [0.0, 1.0, READER_WAIT_S], ids=["announcer", "reader, c10d", "reader, etcd"])
def test_a_coordinator_that_is_cut_off_is_found_within_ten_seconds_or_its_lease(wait_s: float, lease_s: float) -> None:
    """And a call on a connection that broke without a word is answered on the next before that."""
    most_s = patience_s(wait_s, lease_s)
    assert most_s + 2 * BEAT_S <= max(10.0, lease_s + 2 * BEAT_S)
    assert most_s / 2 + wait_s < most_s - 1.0


def test_a_host_whose_heartbeat_does_not_change_stands_still(clock: Clock) -> None:
    """One that a stranger wrote over (SPOILED) stays as it is, too. Before the host's first (NO_BEAT), and on a store
    that no node hosts (None), there is none to look at."""
    node, spoiled, nobody = Questions().health, Questions().health, Questions().health
    for _ in range(5):
        assert not node.host_stands(7, 1)
        assert not spoiled.host_stands(SPOILED, 1)
        clock.now += BEAT_S
    assert spoiled.host_stands(SPOILED, 1)
    assert node.host_stands(7, 1)
    assert not node.host_stands(7, 2)  # what it announces shows that it goes on, as a heartbeat does
    assert not node.host_stands(8, 2)
    for count in (None, NO_BEAT):
        for _ in range(20):
            assert not nobody.host_stands(count, 1)
            clock.now += BEAT_S


def test_a_standstill_counts_from_the_first_look(clock: Clock) -> None:
    """A look at None, and every change, begins anew."""
    same = Standstill(BEAT_S)
    seen = []
    for value in (1, 1, 1, None, 1, 1, 2):
        seen.append(same.look(value))
        clock.now += BEAT_S
    assert seen == [0.0, 1.0, 2.0, 0.0, 0.0, 1.0, 0.0]


def test_a_store_is_away_while_anything_is_wrong_with_it() -> None:
    """Its absence and its return are reported once each, whichever of the two causes began or ended first."""
    said: list[str] = []
    guard = CallGuard(said.append, lambda: said.append("back"))
    guard.noticed("nothing arrives")
    guard.noticed("nothing arrives")
    guard.broke("no answer")
    guard.noticed("")
    assert said == ["nothing arrives"]
    guard.answered()
    assert said == ["nothing arrives", "back"]
    guard.broke("no answer")
    guard.noticed("nothing arrives")
    guard.answered()
    assert said[2:] == ["no answer"]
    guard.noticed("")
    guard.answered()
    assert said[2:] == ["no answer", "back"]
