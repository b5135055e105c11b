"""Which nodes stand for election: those that do their part (`rendezvous/driver/health.py`), at that moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from elastic_agent.rendezvous.driver.driver import Driver
from elastic_agent.rendezvous.driver.events import LoopAsked
from elastic_agent.rendezvous.memory_store import ElectingSession, MemoryStore
from elastic_agent.rendezvous.records import JobSpec
from elastic_agent.rendezvous.store import Store

LEASE_S, BEAT_S = 0.5, 0.05
BOUND_S = 20.0


class LoopThatStops:
    """The agent's loop, as the driver's threads see it: from some moment on it takes no question any more."""

    def __init__(self) -> None:
        self.stands = threading.Event()

    def post(self, event: object) -> None:
        if isinstance(event, LoopAsked) and not self.stands.is_set():
            event.answer()


def test_a_node_whose_loop_stands_still_wins_no_election_for_which_it_stood_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It campaigned while it was well, and still waits for its turn when the leader resigns."""
    campaigns, ended = threading.Event(), threading.Event()
    won: list[int] = []

    class Watched(ElectingSession):
        def lead(self, node: str, timeout_s: float) -> int | None:
            if node == "b":
                campaigns.set()
            try:
                epoch = super().lead(node, timeout_s)
            finally:
                if node == "b":
                    ended.set()
            if node == "b" and epoch is not None:
                won.append(epoch)
            return epoch

    monkeypatch.setattr("elastic_agent.rendezvous.memory_store.ElectingSession", Watched)
    store, loop = MemoryStore(LEASE_S), LoopThatStops()
    leader = store.guest()
    epoch = leader.lead("a", BOUND_S)
    assert epoch is not None
    stop = threading.Event()

    def stay() -> None:
        while not stop.wait(BEAT_S):
            leader.beat("a", 1)

    def open_store(cancelled: threading.Event, join: Callable[[Store], None]) -> Store:
        session = store.guest()
        join(session)
        return session

    beating = threading.Thread(target=stay)
    beating.start()
    spec = JobSpec("job", ("train.py",), 1, 2)
    made = Driver("b", "b", spec, open_store, loop.post, BEAT_S, LEASE_S, find_addr=lambda: "127.0.0.1", warn=print)
    with closing(made) as driver:
        driver.open()
        assert campaigns.wait(BOUND_S)
        loop.stands.set()
        ended.wait(4 * LEASE_S)  # the campaign under way is given up; before, it was not
        stop.set()
        beating.join()
        leader.resign(epoch)
        assert ended.wait(BOUND_S)
        assert store.guest().lead("c", BOUND_S)
    assert not won
