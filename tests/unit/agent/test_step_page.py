"""The page through which an agent and its workers agree on a step boundary: real memory, threads as workers.

Two nodes with two workers each, which wait for each other in each step as in a collective.
"""

from __future__ import annotations

import random
import select
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from elastic_agent.agent.lifecycle.events import Acted, BoundAwaited, BoundFound
from elastic_agent.agent.steps.page import StepPage
from elastic_agent.proto import steps
from elastic_agent.rendezvous.agreements import Act, Agreement
from elastic_agent.worker.loop.channel import Channel, Orders

BOUND_S = 30.0
NODES, EACH = 2, 2
LOCAL = range(EACH)


@dataclass
class Ranks:
    """Threads that step until they are told to stop, and what each was told at which boundary."""

    channels: list[Channel]
    acted: list[list[tuple[int, Orders]]] = field(default_factory=list)
    stopping: bool = False

    def start(self, seed: int) -> None:
        self.acted = [[] for _ in self.channels]
        self._together = threading.Barrier(len(self.channels))
        self._threads = [
            threading.Thread(target=self._run, args=(rank, random.Random(f"{seed} {rank}")))
            for rank in range(len(self.channels))
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, rank: int, chance: random.Random) -> None:
        channel = self.channels[rank]
        last = threading.Event()
        while True:
            if (orders := channel.reached()) is not None:
                self.acted[rank].append((channel.boundary, orders))
                channel.acted(orders)
            if chance.random() < 0.1:
                last.wait(chance.random() / 1000)  # a step that takes longer on this rank than on others
            try:
                self._together.wait(BOUND_S)
            except threading.BrokenBarrierError:
                return
            if self.stopping:
                self._together.abort()
                return

    def end(self) -> None:
        self.stopping = True
        for thread in self._threads:
            thread.join(BOUND_S)
        assert not any(thread.is_alive() for thread in self._threads)


@pytest.fixture
def pages() -> Iterator[list[StepPage]]:
    made = [StepPage() for _ in range(NODES)]
    yield made
    for page in made:
        page.close()


CHANNELS: list[Channel] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while CHANNELS:
        CHANNELS.pop().close()


def channel(place: str) -> Channel:
    CHANNELS.append(Channel(steps.from_variable(place)))
    return CHANNELS[-1]


def attach(page: StepPage, workers: int = EACH) -> list[Channel]:
    return [channel(place) for place in page.begin(workers).values()]


Answered = TypeVar("Answered", Acted, BoundFound)


def wait_for(page: StepPage, kind: type[Answered], agreement: Agreement) -> Answered:
    """The page's answer to this agreement, once it is there."""
    poll = select.poll()
    poll.register(page.fileno, select.POLLIN)
    events = page.review(LOCAL)
    while True:
        for event in events:
            if isinstance(event, kind):
                return event
        assert poll.poll(BOUND_S * 1000), f"no {kind.__name__} of agreement {agreement.number}"
        events = page.observe(LOCAL)


def bound_of(page: StepPage, agreement: Agreement) -> int:
    for event in page.ask(agreement, LOCAL):
        if isinstance(event, BoundFound):
            return event.bound
    return wait_for(page, BoundFound, agreement).bound


@pytest.mark.parametrize("seed", range(5))
def test_all_ranks_act_at_one_boundary_that_none_has_passed(pages: list[StepPage], seed: int) -> None:
    """40 requests at random moments: each is acted upon once by each rank, at the boundary agreed on, within two
    steps of the rank that is furthest."""
    ranks = Ranks([each for page in pages for each in attach(page)])
    ranks.start(seed)
    chance = random.Random(seed)
    decided = []
    for number in range(1, 41):
        agreement = Agreement(number, Act.SAVE, f"label {number}")
        threading.Event().wait(chance.random() / 200)
        furthest = max(each.boundary for each in ranks.channels)
        bounds = []
        for page in chance.sample(pages, NODES):
            bounds.append(bound_of(page, agreement))
            threading.Event().wait(chance.random() / 200)
        at = max(bounds)
        assert at > furthest
        decided.append((at, f"label {number}"))
        for page in chance.sample(pages, NODES):
            page.decide(Agreement(number, Act.SAVE, f"label {number}", at=at))
        for page in pages:
            wait_for(page, Acted, agreement)
    ranks.end()
    for acted in ranks.acted:
        assert [(boundary, orders.label) for boundary, orders in acted] == decided


def test_a_rank_that_holds_goes_on_when_it_is_released(pages: list[StepPage]) -> None:
    """A planned change that does not happen after all costs no restart."""
    ranks = Ranks([each for page in pages for each in attach(page)])
    ranks.start(0)
    asked = Agreement(1, Act.SETTLE)
    at = max(bound_of(page, asked) for page in pages)
    for page in pages:
        page.decide(Agreement(1, Act.SETTLE, at=at))
    for page in pages:
        wait_for(page, Acted, asked)
    assert [each.boundary for each in ranks.channels] == [at] * len(ranks.channels)
    for page in pages:
        page.release(1)
    again = Agreement(2, Act.SAVE)
    assert max(bound_of(page, again) for page in pages) > at
    for page in pages:
        page.decide(Agreement(2, Act.SAVE))  # given up
    ranks.end()
    assert [len(acted) for acted in ranks.acted] == [1] * len(ranks.channels)


def test_a_checkpoint_waits_for_workers_that_have_made_no_run_and_nothing_else_does(pages: list[StepPage]) -> None:
    """Before a Run there is nothing to lose; a checkpoint can be made once there is one."""
    page = pages[0]
    places = page.begin(2)
    channel(places[0])
    assert page.ask(Agreement(1, Act.SAVE), LOCAL) == [BoundAwaited(1, (1,))]
    assert page.observe(LOCAL) == []
    assert page.ask(Agreement(2, Act.KILL), LOCAL) == [BoundFound(2, 0)]
    page.ask(Agreement(3, Act.SAVE), LOCAL)
    channel(places[1])
    assert page.observe(LOCAL) == [BoundFound(3, 1)]


def test_workers_that_wait_for_orders_see_that_nobody_was_asked(pages: list[StepPage]) -> None:
    """A worker that had not begun made its node give the agreement up before any worker saw it. What was decided before
    stays in the page until all know it."""
    page = pages[0]
    places = page.begin(2)
    early = channel(places[0])
    asked = Agreement(1, Act.RESTART)
    assert page.ask(asked, LOCAL) == [BoundFound(1, 0)]
    late = channel(places[1])
    waiting = [threading.Thread(target=each.await_orders, daemon=True) for each in (early, late)]
    for each in waiting:
        each.start()
    page.decide(asked)
    for each in waiting:
        each.join(BOUND_S)
    assert not any(each.is_alive() for each in waiting)
    at = bound_of(page, Agreement(2, Act.SAVE))
    page.decide(Agreement(2, Act.SAVE, at=at))
    late.attend(False)
    assert page.ask(Agreement(3, Act.RESTART), LOCAL) == [BoundFound(3, 0)]
    page.decide(Agreement(3, Act.RESTART))
    found = [early.reached() for _ in range(at)]
    assert [orders.number for orders in found if orders] == [2]
    late.attend(True)
    assert [orders.number for orders in [late.reached() for _ in range(at)] if orders] == [2]
    page.observe(LOCAL)
    for one in (early, late):
        assert (one.reached(), one._known) == (None, 3)


def test_a_second_process_of_a_worker_does_not_take_its_slot(pages: list[StepPage]) -> None:
    """Boundaries are counted in one process."""
    places = pages[0].begin(1)
    channel(places[0])
    with pytest.raises(FileExistsError, match="slot 0 belongs to process"):
        channel(places[0])


def test_workers_that_have_exited_are_not_waited_for(pages: list[StepPage]) -> None:
    """The other workers of the node answer for it."""
    page = pages[0]
    places = page.begin(2)
    channel(places[0])
    assert page.ask(Agreement(1, Act.KILL), [0]) == [BoundFound(1, 1)]
    assert page.ask(Agreement(2, Act.SAVE), []) == []


def test_a_boundary_without_a_request_costs_less_than_20_us(pages: list[StepPage]) -> None:
    """The best of five series counts: a shared host adds its own delays."""
    rank = attach(pages[0], workers=1)[0]
    series_us = []
    for _ in range(5):
        began_s = time.perf_counter()
        for _ in range(2000):
            rank.reached()
        series_us.append((time.perf_counter() - began_s) / 2000 * 1e6)
    assert min(series_us) < 20
