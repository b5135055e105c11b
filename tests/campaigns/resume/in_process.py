"""Plays schedules in one process: ranks one after the other, checkpoints in memory, a kill as an exception."""

from __future__ import annotations

import copy
import io
import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from elastic_agent.worker import run as run_module
from elastic_agent.worker.checkpoints.manifest import Manifest
from elastic_agent.worker.persistence import Found, Snapshot
from elastic_agent.worker.run import Run
from elastic_agent.worker.schedule import Every
from elastic_agent.worker.world import Party

from . import script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .schedule import Life, Schedule

Seen = dict[tuple[str, int, int], list[tuple[int, list[Any], float]]]
"""By loader, steps done and number of the batch since that step: each rank's samples and weight."""


class Killed(BaseException):
    """In the place of SIGKILL."""


class OneRank(Party):
    """As `World`, for ranks that are played one after the other."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.local_rank = rank

    def gather(self, message: Any) -> list[Any]:
        return [message] * self.size

    def most(self, numbers: list[int]) -> list[int]:
        return numbers

    def sum(self, numbers: list[float]) -> list[float]:
        return numbers


@dataclass
class Memory:
    """As `Persistence`: the checkpoint is kept in memory; only the newest is made into bytes, once it is read."""

    rank: int
    begins: Found | None
    newest: tuple[Snapshot, dict[str, Any]] | None = None
    writes: bool = True
    busy: bool = False
    took_s: float = 0.0
    folder: Any = field(default_factory=lambda: SimpleNamespace(path="."))

    def find(self, things: Any) -> Found | None:
        return self.begins

    def save(self, snapshot: Snapshot, states: dict[str, Any]) -> None:
        if self.rank == 0:  # nobody reads those of the others
            self.newest = (snapshot, copy.deepcopy(states))

    def written(self) -> Found | None:
        """The newest checkpoint, as a later life finds it."""
        if self.newest is None:
            return None
        snapshot, states = self.newest
        run = json.loads(json.dumps(snapshot.run))
        manifest = Manifest(
            snapshot.step, "token", 0, snapshot.places, run, snapshot.ledger_head, {}, snapshot.label, {}
        )
        state = io.BytesIO()
        torch.save(states, state)

        read = torch.load(io.BytesIO(state.getvalue()), weights_only=True)

        def load(things: Any) -> Any:
            return copy.deepcopy(read)

        return Found(manifest, snapshot.ledger, load)

    def wait(self) -> None:
        return


@dataclass
class Played:
    """What all lives of a schedule saw."""

    seen: Seen = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    ledger: Any = None

    def merge(self, seen: Seen) -> None:
        """Adds what one life saw."""
        for place, parts in seen.items():
            samples, before = _samples(parts), self.seen.get(place)
            if before is not None and _samples(before) != samples:
                self.wrong.append(f"{place}: {_samples(before)} before the restart, {samples} after it")
            self.seen[place] = parts


def play(schedule: Schedule) -> Played:
    """All lives of a schedule. `wrong` says where a batch seen again after a restart was another one."""
    played = Played()
    checkpoint: Found | None = None
    for life in schedule.lives:
        seen: Seen = {}
        memories = [Memory(rank, checkpoint) for rank in range(life.ranks)]
        for memory in memories:
            _live(schedule, life, memory.rank, memory, seen, played)
        played.merge(seen)
        checkpoint = memories[0].written() or checkpoint
    return played


def _live(schedule: Schedule, life: Life, rank: int, memory: Memory, seen: Seen, played: Played) -> None:
    counts: dict[tuple[str, int], int] = {}

    def record(loader: str, steps: int, samples: list[Any], weight: float) -> None:
        number = counts[loader, steps] = counts.get((loader, steps), 0) + 1
        seen.setdefault((loader, steps, number), []).append((rank, samples, weight))

    with _substituted(OneRank(rank, life.ranks), memory):
        try:
            run = Run("nowhere", seed=schedule.seed, every=Every(steps=schedule.save_steps, seconds=None))
            _kill_after(run, life.until)
            script.train(run, schedule, life.loader_processes, record)
            played.ledger = run.ledger
        except Killed:
            pass


def _kill_after(run: Run, until: int | None) -> None:
    step, last = run.step, None if until is None else run.steps + until

    def killing() -> None:
        step()
        if last is not None and run.steps >= last:
            raise Killed

    run.step = killing  # type: ignore[method-assign]


@contextmanager
def _substituted(world: OneRank, memory: Memory) -> Iterator[None]:
    # By hand: patching by unittest.mock takes a tenth of the campaign's time.
    names: dict[str, Any] = {"World": lambda: world, "Persistence": lambda *_: memory}
    before = {name: getattr(run_module, name) for name in names}
    vars(run_module).update(names)
    try:
        yield
    finally:
        vars(run_module).update(before)


def _samples(parts: list[tuple[int, list[Any], float]]) -> list[Any]:
    """The samples of a global batch, in order, without those of ranks that have none."""
    return [sample for _, samples, weight in parts if weight for sample in samples if sample[0] != "main"]


def _again(played: Played, whole: Played, place: tuple[str, int, int]) -> bool:
    """Whether an outer batch was handed out again because the restart came in the middle of its inner loop."""
    loader, steps, _ = place
    if place in whole.seen:
        return False
    before = [place for place in whole.seen if place[0] == loader and place[1] < steps]
    return bool(before) and _samples(whole.seen[max(before)]) == _samples(played.seen[place])


def compare(played: Played, whole: Played) -> list[str]:
    """Where the lives of a schedule differ from one life with one rank."""
    wrong = list(played.wrong)
    for place in sorted(whole.seen.keys() | played.seen.keys()):
        if _again(played, whole, place):
            continue
        expected, found = (_samples(each.seen.get(place, [])) for each in (whole, played))
        if expected != found:
            wrong.append(f"{place}: {expected} in one life, {found} over restarts")
    if played.ledger is None or played.ledger.head() != whole.ledger.head():
        wrong.append("the ledgers end in different hashes")
    wrong += played.ledger.faults() if played.ledger is not None else []
    for place, parts in played.seen.items():
        ranks = {rank for rank, _, _ in parts}
        total = sum(weight for _, _, weight in parts)
        if abs(total - len(ranks)) > 1e-9:
            wrong.append(f"{place}: the weights of {len(ranks)} ranks sum to {total}")
        if whole.seen.get(place) and len(ranks) == 1 and parts[0][1][-1] != whole.seen[place][0][1][-1]:
            wrong.append(
                f"{place}: the training process drew {parts[0][1][-1]}, {whole.seen[place][0][1][-1]} in one life"
            )
    return wrong
