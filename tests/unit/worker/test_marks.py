"""What a worker shows of its progress, as its agent reads it."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from elastic_agent.proto import progress
from elastic_agent.proto.durations import FIRST_S, UPPER_S, Durations
from elastic_agent.proto.progress import Progress
from elastic_agent.worker.loop import marks as module
from elastic_agent.worker.loop.marks import (
    EVALUATION,
    SAVE,
    SHORT_S,
    SHOWN_S,
    STEP,
    WARM_STEPS,
    WARM_UP,
    Marks,
    marks_of,
)


class Clock:
    """Stands for the clocks of the marks, and there only: whatever else runs in this process has true ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = 100.0
        monkeypatch.setattr(module, "monotonic", self.monotonic)
        monkeypatch.setattr(module, "thread_time", self.thread_time)

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.cpu

    def compute(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def shown(memory: bytearray) -> Progress:
    found = progress.read(memory, memory)
    assert found is not None
    return found


def warm(marks: Marks, clock: Clock) -> None:
    for _ in range(WARM_STEPS):
        clock.compute(5.0)
        marks.step()


def test_sections_are_told_apart(clock: Clock) -> None:
    """Warm-up, steps, evaluation and saves have times of their own, and a step's does not hold those in its midst."""
    memory = bytearray(progress.SIZE)
    marks = Marks(memory)
    warm(marks, clock)
    for _ in range(4):
        clock.compute(1.0)
        marks.step()
    clock.compute(0.25)
    for _ in range(3):
        marks.got(evaluates=True)
        clock.compute(2.0)
    marks.got(evaluates=False)
    with marks.section(SAVE):
        clock.wait(30.0)
    clock.compute(0.75)
    marks.step()
    found = shown(memory)
    assert found.section == STEP
    assert found.steps == WARM_STEPS + 5
    told = {name: [each.count, each.total_s, each.longest_s] for name, each in found.sections.items()}
    assert set(told) == {WARM_UP, STEP, EVALUATION, SAVE}
    assert told[WARM_UP] == pytest.approx([3, 15.0, 5.0])
    assert told[STEP] == pytest.approx([5, 5.0, 1.0])
    assert told[EVALUATION] == pytest.approx([3, 6.0, 2.0])
    assert told[SAVE] == pytest.approx([1, 30.0, 30.0])


def test_the_section_that_goes_on_is_shown(clock: Clock) -> None:
    """From its first moment."""
    memory = bytearray(progress.SIZE)
    marks = Marks(memory)
    assert shown(memory).section == WARM_UP
    warm(marks, clock)
    assert shown(memory).section == STEP
    with marks.section("evaluation of the teacher"):
        assert shown(memory).section == "evaluation of the teacher"
    assert shown(memory).section == STEP


def test_own_time_is_what_a_rank_computes_and_waits_for_data(clock: Clock) -> None:
    """Not what it waits for others in a collective, and not a save."""
    memory = bytearray(progress.SIZE)
    marks = Marks(memory)
    warm(marks, clock)
    marks.asked()
    clock.wait(0.5)
    marks.got(evaluates=False)
    clock.compute(1.0)
    clock.wait(2.0)  # in a collective
    with marks.section(SAVE):
        clock.compute(7.0)
    marks.step()
    found = shown(memory)
    assert [found.stepped_s, found.own_s] == pytest.approx([3.5, 1.5])


def test_what_is_being_written_is_not_read(clock: Clock) -> None:
    """A reader comes again."""
    memory = bytearray(progress.SIZE)
    marks = Marks(memory)
    marks._count(progress.section_at(0), (1.0,))
    assert progress.read(memory, memory) is None
    assert progress.read(bytearray(progress.SIZE), bytearray(progress.SIZE)) is None


def test_what_was_written_while_it_was_read_is_not_believed(clock: Clock) -> None:
    """As its parts may be of two moments."""
    memory = bytearray(progress.SIZE)
    marks = Marks(memory)
    before = bytes(memory)
    marks.step()
    assert progress.read(before, memory) is None
    assert progress.read(memory, memory) is not None


def test_more_sections_than_there_is_room_for_are_counted_as_the_last(clock: Clock) -> None:
    """And nothing is written beyond the memory."""
    memory = bytearray(progress.SIZE)
    marks = Marks(memory)
    for number in range(20):
        with marks.section(f"section {number}"):
            clock.wait(1.0)
    assert len(shown(memory).sections) == progress.SECTIONS


def test_nothing_is_shown_where_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, and where the directory is gone."""
    monkeypatch.delenv(progress.DIRECTORY, raising=False)
    for _ in range(2):
        marks = marks_of(0, "")
        marks.step()
        with marks.section("x"):
            marks.got(evaluates=True)
        monkeypatch.setenv(progress.DIRECTORY, str(tmp_path / "gone"))
    assert list(tmp_path.iterdir()) == []


def test_times_of_a_section_are_its_own_whatever_evaluates_in_it(clock: Clock) -> None:
    """A loader that is not trained on may be looped over in it."""
    memory = bytearray(progress.SIZE)
    marks = Marks(memory)
    with marks.section("report"):
        clock.wait(1.0)
        marks.got(evaluates=True)
        clock.wait(2.0)
    assert shown(memory).sections["report"].total_s == 3.0


def test_a_step_reads_its_processor_time_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a system call, unlike the time: the begin of a wait for data, and its end where it was short, need none."""
    reads = Mock(side_effect=clock.thread_time)
    monkeypatch.setattr(module, "thread_time", reads)
    marks = Marks(bytearray(progress.SIZE))
    reads.reset_mock()
    for _ in range(10):
        clock.compute(1.0)
        marks.step()
        clock.wait(SHORT_S / 4)
        marks.asked()
        clock.wait(SHORT_S / 2)
        marks.got(evaluates=False)
    assert reads.call_count == 10


def test_short_steps_are_shown_at_once_and_counted_together(clock: Clock) -> None:
    """An agent sees each of them, and when it ended; its length is counted within SHOWN_S, or before a section."""
    memory = bytearray(progress.SIZE)
    marks = Marks(memory)
    warm(marks, clock)
    counted = set()
    for number in range(1, 19):
        clock.compute(SHOWN_S / 10)
        marks.step()
        found = shown(memory)
        assert (found.steps, found.at_s, found.section) == (WARM_STEPS + number, clock.now, STEP)
        counted.add(found.sections[STEP].count if STEP in found.sections else 0)
    assert len(counted) == 2
    with marks.section(SAVE):
        found = shown(memory)
    assert found.sections[STEP].count == 18
    assert found.sections[STEP].total_s == pytest.approx(18 * SHOWN_S / 10)
    assert found.sections[STEP].longest_s == pytest.approx(SHOWN_S / 10)
    clock.compute(1.0)
    marks.step()
    found = shown(memory)
    assert [found.stepped_s, found.own_s] == pytest.approx([1.8 * SHOWN_S + 1.0] * 2)


def test_short_steps_share_one_reading_of_their_processor_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twenty steps in the time of one SHOWN_S, two: for all steps, and for the wait behind the first."""
    marks = Marks(bytearray(progress.SIZE))
    warm(marks, clock)
    reads = Mock(side_effect=clock.thread_time)
    monkeypatch.setattr(module, "thread_time", reads)
    for _ in range(40):
        marks.asked()
        clock.compute(SHOWN_S / 80)
        marks.got(evaluates=False)
        clock.compute(SHOWN_S / 80 * 3)
        marks.step()
    assert 2 <= reads.call_count <= 5


def test_waits_for_data_of_short_steps_are_taken_for_what_the_first_was(clock: Clock) -> None:
    """Each step waits 2 ms for its data, of which it computes for a half, computes 1 ms, and waits for others."""
    memory = bytearray(progress.SIZE)
    marks = Marks(memory)
    warm(marks, clock)
    for _ in range(100):
        marks.asked()
        clock.wait(0.001)
        clock.compute(0.001)
        marks.got(evaluates=False)
        clock.compute(0.001)
        clock.wait(0.002)
        marks.step()
    with marks.section(SAVE):
        pass
    clock.compute(1.0)
    marks.step()
    found = shown(memory)
    assert [found.stepped_s, found.own_s] == pytest.approx([1.5, 1.3])


def test_a_mark_costs_microseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 us at most with warm caches, on a shared machine; 0.5 us were measured."""
    monkeypatch.setenv(progress.DIRECTORY, str(tmp_path))
    monkeypatch.setattr("elastic_agent.worker.loop.marks.answer", lambda path: None)
    marks = marks_of(3, "")
    best_s = min(_timed(marks) for _ in range(20))
    assert best_s < 5e-6
    assert (tmp_path / "0-3").stat().st_size == progress.SIZE


def _timed(marks: Marks) -> float:
    begun = time.perf_counter()
    for _ in range(100):
        marks.asked()
        marks.got(evaluates=False)
        marks.step()
    return (time.perf_counter() - begun) / 100


@pytest.mark.parametrize("seconds", [1e-5, 1e-4, 0.0033, 1.0, 59.9, 86400.0])
def test_a_percentile_is_never_too_little_and_at_most_a_fifth_too_much(seconds: float) -> None:
    """As the buckets are a quarter octave wide."""
    found = Durations().with_one(seconds).with_one(10 * seconds).percentile(50)
    assert found == UPPER_S[0] if seconds < FIRST_S else seconds <= found <= 1.19 * seconds
