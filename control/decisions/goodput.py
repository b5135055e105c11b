"""Where the seconds of a node's workers go: each is in exactly one bucket. Pure: times come with events.

A worker is a place for one, by local rank, from the agent's begin on: it has seconds also while no process is there.
Its buckets add up to the time since then at any moment, whatever order events come in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from ...agent.steps.seen import Shown, WorkersSeen


class Bucket(Enum):
    """What a second went to."""

    __hash__ = object.__hash__

    USEFUL = "useful steps"
    """Steps that were done for the first time, with all that the loop does between them but for checkpoints."""
    REPEATED = "steps repeated"
    """Steps up to the last one that a worker of this node had done in an earlier round."""
    SAVING = "saving"
    """Standing still for a checkpoint."""
    PEERS = "waiting for peers"
    """Exited 0, while other workers of the round run."""
    STARTING = "starting"
    """Until the worker's program runs; of the agent: until its store answers."""
    IMPORTING = "importing"
    """From the start of the program until it has made its Run: imports, the process group, loading a checkpoint."""
    RE_FORMING = "re-forming"
    """From the last step of a round that was cut off until the next round begins."""
    NODES = "waiting for nodes"
    """Too few nodes are here, or this one is a spare."""
    PAUSED = "paused"
    """The pause of a crash loop; or the worker waits for its program's next call."""
    HANGING = "hanging"
    """Since the last step of a round that was ended as its workers stood still."""
    UNMEASURED = "not measured"
    """Running, and not measured: without the worker library, or behind the loop."""


GOOD = frozenset({Bucket.USEFUL, Bucket.SAVING, Bucket.UNMEASURED})
"""Buckets that no end of a round has cost."""
IN_STEP, IN_SAVE, IN_PAUSE, AFTER = 0, 1, 2, 3
"""Values of `Shown.doing`."""
DOING = {IN_SAVE: Bucket.SAVING, IN_PAUSE: Bucket.PAUSED, AFTER: Bucket.UNMEASURED}


@dataclass(frozen=True)
class Moved:
    """This node is in another phase, or waits for something else."""

    at_s: float
    bucket: Bucket
    """Of its workers while none runs."""
    cause: int = 0
    """The round that has ended here, and costs what follows; 0: none has."""
    hung: int = 0
    """The round that is ended as workers stand still; 0: none."""
    working: bool = False
    """Workers of a round run, or begin."""
    gone: bool = False
    """No process of a worker is left."""


@dataclass(frozen=True)
class RoundEnded:
    """How a round ended is known, or better known."""

    at_s: float
    round: int
    kind: str
    because: str
    node: str = ""
    """The one that caused it; empty: no node did."""


Event = Moved | RoundEnded | WorkersSeen
Key = tuple[Bucket, int]
"""A bucket, and the round whose end has cost it; 0: the job's start, or nothing."""


UNSEEN = Shown()


@dataclass(frozen=True)
class Worker:
    """One place for a worker. `until_s`: up to when its seconds are in `spent`."""

    until_s: float
    spent: Mapping[Key, float] = field(default_factory=dict)
    runs: bool = False
    """A process of a round is there, or about to be."""
    started: bool = False
    shown: Shown = UNSEEN
    """What of the round's is in `spent` already."""
    rest: Key | None = None
    """Where its seconds go since it exited."""


@dataclass(frozen=True)
class SecondsAccount:
    """One node's account."""

    began_s: float
    now: Bucket = Bucket.STARTING
    """What goes on where no worker runs."""
    cause: int = 0
    """The round whose end costs what is lost now."""
    round: int = 0
    hung: int = 0
    """The newest round that was ended as its workers stood still."""
    measured: bool = False
    """A worker of this job uses the worker library."""
    workers: tuple[Worker, ...] = ()
    ends: Mapping[int, RoundEnded] = field(default_factory=dict)


def begin(at_s: float) -> SecondsAccount:
    """Of an agent that begins now."""
    return SecondsAccount(at_s, workers=(Worker(at_s),))


def step(state: SecondsAccount, event: Event) -> SecondsAccount:
    """The account after one event."""
    if isinstance(event, RoundEnded):
        return replace(state, ends={**state.ends, event.round: event})
    if isinstance(event, Moved):
        return _moved(state, event)
    return _seen(state, event)


def with_room(state: SecondsAccount, workers: int) -> SecondsAccount:
    """With a place for each of so many workers, as long as no round has shown how many there are."""
    missing = workers - len(state.workers)
    return state if state.round or missing <= 0 else replace(state, workers=state.workers + state.workers[:1] * missing)


def totals(state: SecondsAccount, now_s: float) -> list[dict[Key, float]]:
    """What each worker's seconds until now went to, by local rank."""
    made = []
    for worker in state.workers:
        spent = dict(worker.spent)
        key = _going_on(state, worker)
        spent[key] = spent.get(key, 0.0) + max(0.0, now_s - worker.until_s)
        made.append(spent)
    return made


# -- what goes on -----------------------------------------------------------------------------------------------------


def _going_on(state: SecondsAccount, worker: Worker) -> Key:
    """Where a worker's seconds since `until_s` go, as far as is known."""
    if not worker.runs:
        return _key(state, state.now)
    if worker.rest is not None:
        return worker.rest
    if not worker.started:
        return _key(state, Bucket.STARTING)
    if not worker.shown.began_s:
        return _key(state, Bucket.IMPORTING if state.measured else Bucket.UNMEASURED)
    return _key(state, DOING.get(worker.shown.doing, Bucket.USEFUL))


def _key(state: SecondsAccount, bucket: Bucket) -> Key:
    return bucket, 0 if bucket in GOOD else state.cause


def _booked(worker: Worker, key: Key, until_s: float) -> Worker:
    """With the seconds up to then under this key. Time never goes back: what is booked stays."""
    length_s = until_s - worker.until_s
    if length_s <= 0.0:
        return worker
    return replace(worker, until_s=until_s, spent={**worker.spent, key: worker.spent.get(key, 0.0) + length_s})


# -- events -----------------------------------------------------------------------------------------------------------


def _moved(state: SecondsAccount, event: Moved) -> SecondsAccount:
    state = replace(state, hung=max(state.hung, event.hung))
    workers = tuple(_left(state, worker, event) for worker in state.workers)
    now = state.now if event.working and any(worker.runs for worker in workers) else event.bucket
    return replace(state, now=now, cause=max(state.cause, event.cause), workers=workers)


def _left(state: SecondsAccount, worker: Worker, event: Moved) -> Worker:
    """One worker, once its node has moved."""
    if not worker.runs:
        return _booked(worker, _key(state, state.now), event.at_s)
    if not event.gone:
        return worker
    if worker.rest is None:  # its exit was not seen
        worker = _exited(state, worker, state.round, event.at_s, 1)
    return replace(_booked(worker, _going_on(state, worker), event.at_s), runs=False, rest=None)


def _seen(state: SecondsAccount, seen: WorkersSeen) -> SecondsAccount:
    if seen.round < state.round:
        return state
    workers = _enough(state, seen)
    if seen.round > state.round:
        workers = tuple(
            _entered(state, worker, local_rank < seen.nproc, seen.began_s) for local_rank, worker in enumerate(workers)
        )
        state = replace(state, round=seen.round, now=Bucket.NODES)
    measured = state.measured or any(each.began_s for each in seen.shown)
    state = replace(state, measured=measured)
    made = tuple(
        _followed(state, worker, seen, local_rank) if local_rank < seen.nproc else worker
        for local_rank, worker in enumerate(workers)
    )
    return replace(state, workers=made)


def _enough(state: SecondsAccount, seen: WorkersSeen) -> tuple[Worker, ...]:
    """With a place for each worker. One that comes later has waited, for whatever the first has not."""
    first, missing = state.workers[0], seen.nproc - len(state.workers)
    if missing <= 0:
        return state.workers
    if not state.round:
        return with_room(state, seen.nproc).workers
    waited = {(Bucket.NODES, 0): first.until_s - state.began_s}
    return state.workers + (Worker(first.until_s, waited),) * missing


def _entered(state: SecondsAccount, worker: Worker, placed: bool, at_s: float) -> Worker:
    """In a new round, from here on."""
    worker = _booked(worker, _going_on(state, worker), at_s)
    return replace(worker, runs=placed, started=False, shown=Shown(), rest=None)


def _followed(state: SecondsAccount, worker: Worker, seen: WorkersSeen, local_rank: int) -> Worker:
    """With what is known of its process now."""
    if not worker.runs or worker.rest is not None:
        return worker
    if not worker.started and (started_s := seen.started_s.get(local_rank)) is not None:
        worker = replace(_booked(worker, _key(state, Bucket.STARTING), started_s), started=True)
    shown = seen.shown[local_rank] if local_rank < len(seen.shown) else Shown()
    if worker.started and shown.began_s:
        worker = _spent(state, worker, shown)
    if (end := seen.exited.get(local_rank)) is not None:
        worker = _exited(state, worker, seen.round, *end)
    return worker


def _spent(state: SecondsAccount, worker: Worker, shown: Shown) -> Worker:
    """With what it has counted since it was last looked at."""
    if not worker.shown.began_s:
        worker = _booked(worker, _key(state, Bucket.IMPORTING), shown.began_s)
    before = worker.shown
    for bucket, length_s in (
        (Bucket.USEFUL, shown.useful_s - before.useful_s),
        (Bucket.REPEATED, shown.repeated_s - before.repeated_s),
        (Bucket.SAVING, shown.saving_s - before.saving_s),
        (Bucket.PAUSED, shown.paused_s - before.paused_s),
    ):
        worker = _booked(worker, _key(state, bucket), worker.until_s + max(0.0, length_s))
    return replace(worker, shown=shown)


def _exited(state: SecondsAccount, worker: Worker, round_number: int, at_s: float, exit_code: int) -> Worker:
    """The seconds since its last step were for nothing, unless it exited 0."""
    key = _going_on(state, worker)
    if exit_code and key[0] in (Bucket.USEFUL, Bucket.UNMEASURED) and worker.shown.began_s:
        key = (Bucket.HANGING if state.hung == round_number else Bucket.RE_FORMING), round_number
    rest = (Bucket.RE_FORMING, round_number) if exit_code else (Bucket.PEERS, 0)
    return replace(_booked(worker, key, at_s), rest=rest)
