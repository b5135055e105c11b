"""Which nodes stand for election: those that do their part (`rendezvous/driver/health.py`), at that moment."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from elastic_agent.rendezvous.driver.driver import Driver
from elastic_agent.rendezvous.driver.events import LeadershipChanged, LoopAsked, StoreCameBack, StoreWentAway
from elastic_agent.rendezvous.memory_store import ElectingSession, MemoryStore
from elastic_agent.rendezvous.records import JobSpec
from elastic_agent.rendezvous.store import Store, StoreUnreachable
from support.builders import record

LEASE_S, BEAT_S = 0.5, 0.05
BOUND_S = 20.0


class LoopThatStops:
    """The agent's loop, as the driver's threads see it: from some moment on it takes no question any more."""

    def __init__(self) -> None:
        self.stands = threading.Event()
        self.leads = threading.Event()
        """This node has been elected."""

    def post(self, event: object) -> None:
        if isinstance(event, LoopAsked) and not self.stands.is_set():
            event.answer()
        elif isinstance(event, LeadershipChanged) and event.leads:
            self.leads.set()


def driver_on(store: MemoryStore, node: str, post: Callable[[object], None]) -> Driver:
    """The threads of one node, which opens this store."""

    def open_store(cancelled: threading.Event, join: Callable[[Store], None]) -> Store:
        session = store.guest()
        join(session)
        return session

    spec = JobSpec("job", ("train.py",), 1, 2)
    return Driver(node, node, spec, open_store, post, BEAT_S, LEASE_S, find_addr=lambda: "127.0.0.1", warn=print)


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

    beating = threading.Thread(target=stay)
    beating.start()
    with closing(driver_on(store, "b", loop.post)) as driver:
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


@pytest.mark.slow
def test_a_resignation_that_was_not_answered_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses this node's record, so the writer resigns between two tries of it, and the connection breaks
    there. The lease in the store is long: nothing else would end the term."""
    refused, lost = threading.Event(), threading.Event()

    class Refusing(ElectingSession):
        def publish_node(self, node: str, value: bytes) -> None:
            refused.set()
            raise StoreUnreachable("no space")

        def resign(self, epoch: int) -> None:
            if not lost.is_set():
                lost.set()
                raise StoreUnreachable("connection reset")
            super().resign(epoch)

    monkeypatch.setattr("elastic_agent.rendezvous.memory_store.ElectingSession", Refusing)
    store, loop = MemoryStore(lease_s=2 * BOUND_S), LoopThatStops()
    with closing(driver_on(store, "a", loop.post)) as driver:
        driver.open()
        assert loop.leads.wait(BOUND_S)
        driver.publish(record("a"))
        assert refused.wait(BOUND_S)
        loop.stands.set()
        assert lost.wait(BOUND_S)
        assert store.guest().lead("b", BOUND_S / 2) is not None


def test_a_coordinator_resigns_only_while_the_store_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that ends as the store is away would wait for another answer that does not come."""
    away, resigned = threading.Event(), threading.Event()
    told: queue.SimpleQueue[object] = queue.SimpleQueue()

    class Watched(ElectingSession):
        def beat(self, node: str, count: int) -> int:
            if away.is_set():
                raise StoreUnreachable("no answer")
            return super().beat(node, count)

        def resign(self, epoch: int) -> None:
            resigned.set()
            super().resign(epoch)

    def post(event: object) -> None:
        loop.post(event)
        if isinstance(event, StoreWentAway | StoreCameBack):
            told.put(event)

    monkeypatch.setattr("elastic_agent.rendezvous.memory_store.ElectingSession", Watched)
    loop = LoopThatStops()
    with closing(driver_on(MemoryStore(BOUND_S), "a", post)) as driver:
        driver.open()
        assert loop.leads.wait(BOUND_S)
        away.set()
        assert isinstance(told.get(timeout=BOUND_S), StoreWentAway)
        driver.resign()
        assert not resigned.is_set()
        away.clear()
        assert isinstance(told.get(timeout=BOUND_S), StoreCameBack)
        driver.resign()
        assert resigned.is_set()
