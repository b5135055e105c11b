"""The store contract: announcements, and fencing by version."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastic_agent.rendezvous.store import FIRST_EPOCH, StoreFenced
from support.procfs import slowed
from support.store_stages import BOUND_S, Stage


def test_the_host_leads_from_the_beginning_to_the_end(hosted: Stage) -> None:
    """It has one term, which resign() does not end; no other node is elected."""
    assert hosted.host.lead("host", BOUND_S) == FIRST_EPOCH
    assert hosted.guest().lead("guest", BOUND_S) is None
    hosted.host.resign(FIRST_EPOCH)
    assert not hosted.host.wait_deposed(FIRST_EPOCH, 0.0)
    hosted.host.announce(1, b"round 1", FIRST_EPOCH)


def test_a_waiting_node_wakes_up_for_a_round(stage: Stage) -> None:
    """wait_round blocks until a newer version is announced, and no longer."""
    waiters = [stage.guest() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for version in range(1, 20):
            waiting = [pool.submit(waiter.wait_round, version - 1, 60.0) for waiter in waiters]
            stage.announce(version, b"round %d" % version)
            assert [future.result(BOUND_S) for future in waiting] == [(version, b"round %d" % version)] * 4


def test_waking_up_takes_milliseconds(stage: Stage) -> None:
    """The median of 30 wake-ups is far below a tenth of a second: nothing polls."""
    waiter = stage.guest()
    delays = []
    with ThreadPoolExecutor(1) as pool:
        for version in range(1, 31):
            waiting = pool.submit(lambda after: (waiter.wait_round(after, 60.0), time.monotonic()), version - 1)
            announced_at = time.monotonic()
            stage.announce(version, b"x")
            delays.append(waiting.result(BOUND_S)[1] - announced_at)
    assert sorted(delays)[15] < slowed(0.1)


def test_wait_round_returns_the_newest_and_skips_those_in_between(stage: Stage) -> None:
    """A node that was away receives the current state, not the steps towards it."""
    for version in range(1, 6):
        stage.announce(version, b"round %d" % version)
    assert stage.guest().wait_round(0, BOUND_S) == (5, b"round 5")
    assert stage.guest().wait_round(4, BOUND_S) == (5, b"round 5")


def test_wait_round_is_none_when_its_time_has_passed(stage: Stage) -> None:
    """No newer version is an answer, not an error."""
    stage.announce(1, b"round 1")
    started = time.monotonic()
    assert stage.guest().wait_round(1, 0.2) is None
    assert 0.15 < time.monotonic() - started < BOUND_S
    assert stage.guest().wait_round(1, 0.0) is None


def test_wait_round_copes_with_a_node_far_behind(stage: Stage) -> None:
    """Versions far behind the newest are deleted; a node that asks for one gets the newest."""
    for version in range(1, 201):
        stage.announce(version, b"round %d" % version)
    assert stage.guest().wait_round(3, BOUND_S) == (200, b"round 200")


def test_at_least_the_newest_16_versions_remain(stage: Stage) -> None:
    """Announcing one of them again, with equal bytes, is still an idempotent repeat."""
    for version in range(1, 201):
        stage.announce(version, b"round %d" % version)
    for version in range(185, 201):
        stage.announce(version, b"round %d" % version)


def test_announcing_the_same_again_changes_nothing(stage: Stage) -> None:
    """A coordinator whose call was not answered may repeat it."""
    stage.announce(1, b"round 1")
    stage.announce(2, b"round 2")
    stage.announce(1, b"round 1")
    stage.session(stage.host).announce(2, b"round 2", stage.epoch)
    assert stage.guest().wait_round(0, BOUND_S) == (2, b"round 2")


def test_announcing_something_else_under_a_taken_version_is_fenced(stage: Stage) -> None:
    """Of two coordinators the second is refused, and nothing that it wrote is read."""
    stage.announce(1, b"round 1")
    stage.announce(2, b"round 2")
    for version in (1, 2):
        with pytest.raises(StoreFenced, match=f"version {version}"):
            stage.session(stage.host).announce(version, b"something else", stage.epoch)
    assert stage.guest().wait_round(0, BOUND_S) == (2, b"round 2")


def test_announcing_a_version_long_past_is_fenced(stage: Stage) -> None:
    """A version that was deleted cannot be announced again, and the newest does not go back."""
    for version in range(1, 201):
        stage.announce(version, b"round %d" % version)
    with pytest.raises(StoreFenced):
        stage.announce(1, b"something else")
    assert stage.guest().beat("n1", 1) == 200


def test_only_one_of_many_coordinators_wins_a_version(stage: Stage) -> None:
    """Announcing is create-only in a race, too."""
    rivals = [stage.guest() for _ in range(6)]
    start = threading.Barrier(6)
    epoch = stage.epoch

    def announce(number: int) -> bool:
        start.wait(BOUND_S)
        try:
            rivals[number].announce(1, b"of rival %d" % number, epoch)
        except StoreFenced:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(announce, range(6)))
    assert won.count(True) == 1
    assert stage.guest().wait_round(0, BOUND_S) == (1, b"of rival %d" % won.index(True))
