"""The ranks of one round as they go from step boundary to step boundary, and halt there where they are asked to.

As `agent/steps/page.py` and `worker/loop/channel.py` together: an agent that asks gets a bound, behind which no worker
of its node goes without the decision. No rank comes to a boundary before all ranks have left the one before it, as each
step has a collective. Where they are follows from the time alone while nothing is asked, so a step is no event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle.events import Acted, BoundAwaited, BoundFound
from elastic_agent.rendezvous.agreements import HOLDS, STOPS, Act, Agreement

if TYPE_CHECKING:
    from elastic_agent.rendezvous.records import Round

    from .workers import Nursery, Worker
    from .world import World

FREE = float("inf")
ROUNDING = 1e-6
"""Of a step: rounding errors of times."""


class Page:
    """What one agent shares with the workers of a round."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.asked: Agreement | None = None
        """The newest, also if it is not answered yet."""
        self.answered = 0
        """Number of the newest that was answered."""
        self.shown = 0
        """Of the newest that was answered with a bound."""
        self.bound = 0
        """The answer to that."""
        self.halt = FREE
        """The boundary at which its workers wait for the decision on it."""
        self.decided: Agreement | None = None
        """What they are to act on, and have not yet."""
        self.acting: Agreement | None = None
        """What they act on, or wait behind."""
        self.held = False
        """They wait behind it."""
        self.released = 0

    def limit(self) -> float:
        """The boundary that none of its workers leaves yet."""
        if self.acting is not None:
            return self.acting.at
        return min(self.halt, self.decided.at) if self.decided is not None else self.halt


class Ranks:
    """All ranks of one round."""

    def __init__(self, world: World, running: Round, step_s: float, attaches_s: float) -> None:
        self._world = world
        self._number = running.number
        self._missing = {member.node for member in running.members}
        """Members that have not started their workers."""
        self._step_s = step_s
        self._attaches_s = attaches_s
        self.attached = False
        """All have made a Run: they begin with their first step."""
        self.pages: dict[str, Page] = {}
        self._done: dict[Worker, float] = {}
        """By worker: how many steps it had done at `_since`, with the part of the one under way."""
        self._since = 0.0
        self._due: list[tuple[Nursery, Worker]] = []
        """Workers that would have exited 0 by now, if they did not wait."""

    def started(self, nursery: Nursery) -> None:
        """A node has started its workers."""
        self.pages[nursery.node.ident] = Page(nursery)
        self._missing.discard(nursery.node.ident)
        if not self._missing:
            self._world.at(self._world.rng.random() * self._attaches_s, self._attach)

    def _attach(self) -> None:
        self.attached, self._since = True, self._world.now
        for page in self.pages.values():
            for worker in page.nursery.live.values():
                self._done[worker] = self._world.rng.random()
        for page in self.pages.values():
            self._answer(page)

    def position(self, worker: Worker) -> float:
        """Boundaries that it has come to, with the part of the step that it is in."""
        went = (self._world.now - self._since) / self._step_s if self.attached else 0.0
        return min(self._done.get(worker, 0.0) + went, self._limit())

    def furthest(self) -> float:
        """Of all workers that live."""
        return max((self.position(worker) for page in self._alive() for worker in self._workers(page)), default=0.0)

    def _limit(self) -> float:
        return min((page.limit() for page in self._alive()), default=FREE)

    def _alive(self) -> list[Page]:
        return [page for page in self.pages.values() if self._workers(page)]

    def _workers(self, page: Page) -> list[Worker]:
        return list(page.nursery.live.values()) if page.nursery.round == self._number else []

    # -- what agents ask of it -----------------------------------------------------------------------------------------

    def ask(self, nursery: Nursery, agreement: Agreement) -> None:
        page = self.pages.get(nursery.node.ident)
        if page is not None:
            page.asked = agreement
            self._answer(page)

    def _answer(self, page: Page) -> None:
        asked, workers = page.asked, self._workers(page)
        if asked is None or asked.number == page.answered or not workers:
            return
        node = page.nursery.node
        if not self.attached or page.nursery.habit.plain:
            if asked.act is Act.SAVE:
                node.post_later(BoundAwaited(asked.number, tuple(worker.local_rank for worker in workers)))
                return
            page.answered = asked.number
            self._world.checkers.agreements.cannot(node, asked)
            node.post_later(BoundFound(asked.number, 0))
            return
        self._settle_positions()
        page.answered = page.shown = asked.number
        page.bound = int(max(self._done[worker] for worker in workers) + ROUNDING) + 1
        # Those that wait already wait on: this decision is what they wait for, too.
        page.halt = min(page.halt, *(int(self._done[worker] + ROUNDING) + 1 for worker in workers))
        node.post_later(BoundFound(asked.number, page.bound))
        self._changed()

    def decide(self, nursery: Nursery, agreement: Agreement) -> None:
        page = self.pages.get(nursery.node.ident)
        if page is None or agreement.number != page.shown:
            return
        self._settle_positions()
        page.halt, page.decided = FREE, agreement if agreement.at else None
        self._changed()

    def release(self, nursery: Nursery, number: int) -> None:
        page = self.pages.get(nursery.node.ident)
        if page is not None:
            self._settle_positions()
            page.released = max(page.released, number)
            self._go_on(page)
            self._changed()

    # -- what happens then ---------------------------------------------------------------------------------------------

    def exits(self, nursery: Nursery, worker: Worker) -> None:
        """A worker has done its work and exits 0; one that waits at a boundary does so once it goes on."""
        if self.attached and self.position(worker) >= self._limit() - ROUNDING:
            self._due.append((nursery, worker))
        else:
            nursery.exit(worker, 0)

    def lost_one(self) -> None:
        """A worker has exited, and none waits for it any more."""
        if self.attached:
            self._settle_positions()
            self._changed()

    def _settle_positions(self) -> None:
        """As of now, before what holds workers back changes."""
        if self.attached:
            self._done = {worker: self.position(worker) for page in self._alive() for worker in self._workers(page)}
            self._since = self._world.now

    def _changed(self) -> None:
        """See who comes to its boundary when, and who need not wait any more."""
        limit = self._limit()
        for page in self._alive():
            decided = page.decided
            if decided is not None and page.acting is None and decided.at <= limit:
                slowest = min(self._done[worker] for worker in self._workers(page))
                self._world.at(max(0.0, decided.at - slowest) * self._step_s, self._arrive, page, decided)
        if limit == FREE and self._due:
            due, self._due = self._due, []
            for nursery, worker in due:
                nursery.exit(worker, 0)

    def _arrive(self, page: Page, decided: Agreement) -> None:
        """The workers of a node may all be where they are to act."""
        workers = self._workers(page)
        slowest = min((self.position(worker) for worker in workers), default=0.0)
        if page.decided is decided and page.acting is None and workers and slowest >= decided.at - ROUNDING:
            self._settle_positions()
            page.decided, page.acting, page.held = None, decided, False
            self._world.at(page.nursery.habit.saves_s, self._acted, page, decided)

    def _acted(self, page: Page, decided: Agreement) -> None:
        workers = self._workers(page)
        if page.acting is not decided or not workers:
            return
        node = page.nursery.node
        self._world.checkers.agreements.acted(node, decided)
        node.post_later(Acted(decided.number))
        self._settle_positions()
        page.held = True
        if decided.act in STOPS:
            for worker in workers:
                self._world.at(self._world.delays.dying(), page.nursery.exit, worker, 0)
        self._go_on(page)
        self._changed()

    def _go_on(self, page: Page) -> None:
        acting = page.acting
        if acting is None or not page.held or acting.act in STOPS:
            return
        if acting.act not in HOLDS or page.released >= acting.number:
            page.acting, page.held = None, False
