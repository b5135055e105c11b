"""Goodput: every second of every worker is in exactly one bucket, and the buckets say what happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_agent.agent.steps.seen import Shown, WorkersSeen
from elastic_agent.control.decisions import goodput
from elastic_agent.control.decisions.goodput import Bucket, Moved, RoundEnded, SecondsAccount, totals

LENGTH = st.floats(0.001, 50.0)
KINDS = (Bucket.USEFUL, Bucket.REPEATED, Bucket.SAVING, Bucket.PAUSED)
WAITS = (Bucket.RE_FORMING, Bucket.NODES, Bucket.PAUSED)
CLOSE_S = 1e-6


@dataclass
class Life:
    """One process of a worker, as it truly was."""

    local_rank: int
    started_s: float
    began_s: float | None
    """None: it does not use the worker library."""
    parts: list[tuple[Bucket, float]]
    exited_s: float
    exit_code: int

    def shown(self, at_s: float) -> Shown:
        """What its page says then."""
        if self.began_s is None or at_s < self.began_s:
            return Shown()
        found, until_s = Shown(began_s=self.began_s), self.began_s
        for bucket, length_s in self.parts:
            if until_s + length_s > at_s:
                return replace(found, doing={Bucket.SAVING: 1, Bucket.PAUSED: 2}.get(bucket, 0))
            until_s += length_s
            name = {Bucket.USEFUL: "useful_s", Bucket.REPEATED: "repeated_s", Bucket.SAVING: "saving_s"}
            key = name.get(bucket, "paused_s")
            found = replace(found, **{key: getattr(found, key) + length_s})
        return found


@dataclass
class Job:
    """What happened on one node, the events that tell of it, and the truth about each worker."""

    nproc: int
    events: list[tuple[float, object]] = field(default_factory=list)
    truth: list[dict[Bucket, float]] = field(default_factory=list)
    end_s: float = 0.0


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Rounds of some workers, each seen at random moments, and after each some wait."""
    job = Job(draw(st.integers(1, 3)))
    job.truth = [defaultdict(float) for _ in range(job.nproc)]
    now = draw(LENGTH)
    for truth in job.truth:
        truth[Bucket.STARTING] += now
    waits = Bucket.NODES
    library = draw(st.booleans())
    for number in range(1, draw(st.integers(1, 4)) + 1):
        job.events.append((now, Moved(now, waits, gone=True, cause=number - 1)))
        length_s = draw(LENGTH)
        for truth in job.truth:
            truth[waits] += length_s
        now = _round(draw, job, number, now + length_s, library=library)
        waits = draw(st.sampled_from(WAITS))
    job.events.append((now, Moved(now, waits, gone=True)))
    job.end_s = now
    return job


def _round(draw: st.DrawFn, job: Job, number: int, now: float, *, library: bool) -> float:
    """One round from `now` on; returns when none of its processes is left."""
    began_s, lives = now, []
    fails = draw(st.booleans())
    hung = fails and draw(st.booleans())
    for local_rank in range(job.nproc):
        started_s = began_s + draw(LENGTH)
        run_s = started_s + draw(LENGTH) if library else None
        parts = draw(st.lists(st.tuples(st.sampled_from(KINDS), LENGTH), max_size=6)) if library else []
        tail_s = draw(LENGTH)
        exited_s = (started_s if run_s is None else run_s) + sum(each for _, each in parts) + tail_s
        exit_code = 1 if fails else 0
        lives.append(Life(local_rank, started_s, run_s, parts, exited_s, exit_code))
        truth = job.truth[local_rank]
        truth[Bucket.STARTING] += started_s - began_s
        if run_s is None:
            truth[Bucket.UNMEASURED] += exited_s - started_s
        else:
            truth[Bucket.IMPORTING] += run_s - started_s
            for bucket, each_s in parts:
                truth[bucket] += each_s
            truth[(Bucket.HANGING if hung else Bucket.RE_FORMING) if fails else Bucket.USEFUL] += tail_s
    first, last = min(each.exited_s for each in lives), max(each.exited_s for each in lives)
    over = last + draw(LENGTH)
    for each in lives:
        job.truth[each.local_rank][Bucket.RE_FORMING if fails else Bucket.PEERS] += over - each.exited_s
    job.events.append((began_s, Moved(began_s, Bucket.STARTING, working=True)))
    looks = draw(st.lists(st.floats(began_s, over), max_size=4))
    for at_s in (began_s, *looks, *(each.exited_s for each in lives)):
        job.events.append((at_s, _look(job, number, began_s, at_s, lives)))
    if fails:
        # A hang is known before its workers are stopped.
        stopping = Moved(first - 1e-9 if hung else first, Bucket.RE_FORMING, cause=number, hung=number if hung else 0)
        job.events.append((stopping.at_s, stopping))
    return over


def _look(job: Job, number: int, began_s: float, at_s: float, lives: list[Life]) -> WorkersSeen:
    return WorkersSeen(
        at_s, number, job.nproc, 0, began_s,
        {each.local_rank: each.started_s for each in lives if each.started_s <= at_s},
        {each.local_rank: (each.exited_s, each.exit_code) for each in lives if each.exited_s <= at_s},
        tuple(each.shown(min(at_s, each.exited_s)) for each in lives),
    )  # fmt: skip


def _played(job: Job) -> Iterator[tuple[float, SecondsAccount]]:
    state = goodput.begin(0.0)
    for at_s, event in sorted(job.events, key=lambda each: each[0]):
        state = goodput.step(state, event)  # type: ignore[arg-type]
        yield at_s, state


@settings(max_examples=300, deadline=None)
@given(jobs())
def test_the_buckets_add_up_at_every_moment(job: Job) -> None:
    """After each event, and at any moment until the next, each worker's buckets are the time since the begin."""
    for at_s, state in _played(job):
        for now_s in (at_s, at_s + 0.5, at_s + 500.0):
            for spent in totals(state, now_s):
                assert all(each >= 0.0 for each in spent.values())
                assert sum(spent.values()) == pytest.approx(now_s, abs=CLOSE_S)


@settings(max_examples=300, deadline=None)
@given(jobs())
def test_each_bucket_has_what_truly_went_there(job: Job) -> None:
    """When all is over, every bucket of every worker is what the job's script says, however seldom it was looked at."""
    *_, (_, state) = _played(job)
    for spent, truth in zip(totals(state, job.end_s), job.truth, strict=True):
        found = dict.fromkeys(Bucket, 0.0)
        for (bucket, _), length_s in spent.items():
            found[bucket] += length_s
        assert {each.value: found[each] for each in Bucket} == pytest.approx(
            {each.value: truth.get(each, 0.0) for each in Bucket}, abs=1e-5
        )


def _seen(at_s: float, number: int, *shown: Shown, exited: dict[int, tuple[float, int]] | None = None) -> WorkersSeen:
    started = dict.fromkeys(range(len(shown)), 2.0)
    return WorkersSeen(at_s, number, len(shown), 0, 1.0, started, exited or {}, shown)


def _of(state: SecondsAccount, now_s: float, worker: int = 0) -> dict[str, float]:
    spent = totals(state, now_s)[worker]
    return {f"{bucket.value} {cause}": round(length_s, 6) for (bucket, cause), length_s in spent.items()}


def test_what_is_lost_is_charged_to_the_round_whose_end_cost_it() -> None:
    """The tail of a failed round, the wait behind it, and the next start and repetition, until a step is new."""
    state = goodput.begin(0.0)
    for event in (
        Moved(0.5, Bucket.NODES, gone=True),
        _seen(10.0, 1, Shown(began_s=4.0, useful_s=5.0)),
        RoundEnded(10.5, 1, "failure", "boom", "node-b:7"),
        _seen(11.0, 1, Shown(began_s=4.0, useful_s=5.0), exited={0: (11.0, 1)}),
        Moved(11.5, Bucket.RE_FORMING, cause=1, gone=True),
    ):
        state = goodput.step(state, event)
    again = WorkersSeen(20.0, 2, 1, 0, 12.0, {0: 12.5}, {}, (Shown(began_s=14.0, repeated_s=3.0, useful_s=2.0),))
    state = goodput.step(state, again)
    assert _of(state, 20.0) == {
        "starting 0": 1.5, "waiting for nodes 0": 0.5, "importing 0": 2.0, "useful steps 0": 8.0,
        "re-forming 1": 3.0, "starting 1": 0.5, "importing 1": 1.5, "steps repeated 1": 3.0,
    }  # fmt: skip
    assert state.ends[1].node == "node-b:7"


def test_workers_whose_exit_was_not_seen_lose_what_followed_their_last_step() -> None:
    """The nursery died, and the workers with it: nothing after the last step they showed was of use."""
    state = goodput.begin(0.0)
    state = goodput.step(state, _seen(10.0, 1, Shown(began_s=4.0, useful_s=5.0)))
    state = goodput.step(state, Moved(12.0, Bucket.RE_FORMING, cause=1, gone=True))
    assert _of(state, 13.0)["useful steps 0"] == 5.0
    assert _of(state, 13.0)["re-forming 1"] == 4.0


def test_a_node_that_gets_room_for_more_workers_keeps_the_sum() -> None:
    """A worker that was not there before has waited for nodes as long."""
    state = goodput.step(goodput.begin(0.0), _seen(3.0, 1, Shown(), exited={0: (3.0, 1)}))
    state = goodput.step(state, Moved(4.0, Bucket.RE_FORMING, cause=1, gone=True))
    state = goodput.step(state, WorkersSeen(6.0, 2, 2, 0, 5.0, {0: 6.0, 1: 6.0}, {}, (Shown(), Shown())))
    assert [sum(spent.values()) for spent in totals(state, 7.0)] == [7.0, 7.0]
    assert _of(state, 7.0, 1)["waiting for nodes 0"] == 4.0


def test_without_the_worker_library_nothing_is_called_useful() -> None:
    """Nobody knows what such a worker does; with it, the time before its Run is its imports."""
    plain = goodput.step(goodput.begin(0.0), _seen(9.0, 1, Shown()))
    assert _of(plain, 9.0) == {"starting 0": 2.0, "not measured 0": 7.0}
    other = goodput.step(goodput.begin(0.0), _seen(9.0, 1, Shown(began_s=8.0), Shown()))
    assert _of(other, 9.0, 1) == {"starting 0": 2.0, "importing 0": 7.0}
