"""When a job is said to stand still: learned from its own times, by section, and never because of its jitter."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_agent.control.decisions.hang import FEW, LimitBounds, Mark, Standing, judge, limit_s, look, named
from elastic_agent.control.decisions.watches import ReadingResult
from elastic_agent.control.readings.progress import Stillness
from elastic_agent.control.table.parse import parse_table
from elastic_agent.proto.durations import Durations

QUICK = LimitBounds(least_s=0.0, unknown_s=1800.0)


def learned(*times_s: float) -> Durations:
    """What was learned from these times."""
    found = Durations()
    for each in times_s:
        found = found.with_one(each)
    return found


def jittery(kind: str, seed: int) -> list[float]:
    """1,000 steps whose longest is 20 times as long as their shortest."""
    draw = random.Random(seed)
    if kind == "uniform":
        return [draw.uniform(1.0, 20.0) for _ in range(1000)]
    if kind == "skewed":
        return [20.0 ** draw.random() for _ in range(1000)]
    return [20.0 if draw.random() < 0.05 else 1.0 for _ in range(1000)]


@pytest.mark.parametrize("kind", ["uniform", "skewed", "now and then"])
@pytest.mark.parametrize("seed", range(10))
def test_no_alarm_in_1000_steps_of_a_job_with_a_20_fold_jitter(kind: str, seed: int) -> None:
    """Each step is looked at when it is about to end, with what was learned from those before it."""
    known, now = Durations(), 0.0
    standing: dict[int, Standing] = {}
    for number, step_s in enumerate(jittery(kind, seed)):
        standing = look(standing, {0: Mark("step", number)}, now, most_s=100.0)
        now += step_s
        at_end = look(standing, {0: Mark("step", number)}, now, most_s=100.0)
        assert not judge(at_end, {"step": known}, QUICK).stands, (number, step_s)
        known = known.with_one(step_s)


@pytest.mark.parametrize("kind", ["uniform", "skewed", "now and then"])
def test_a_stop_is_found_within_3_times_the_99th_percentile_of_its_section(kind: str) -> None:
    """Once two hundred steps are known."""
    times = jittery(kind, 1)
    p99_s = sorted(times)[989]
    assert limit_s(learned(*times), QUICK) <= 3 * p99_s
    assert limit_s(learned(*times[:FEW]), QUICK) <= 3 * sorted(times[:FEW])[FEW * 99 // 100 - 1]


def test_each_section_has_a_limit_of_its_own() -> None:
    """A save of a minute is no hang in a job whose steps take a second; a step of a minute is one."""
    sections = {"step": learned(*[1.0] * 200), "save": learned(*[60.0] * FEW)}
    for section, still in (("save", False), ("step", True)):
        standing = {0: Standing(Mark(section, 7), 60.0, 60.0)}
        assert bool(judge(standing, sections, QUICK).stands) is still


def test_what_never_ended_yet_is_given_its_long_limit() -> None:
    """The warm-up, which compiles, and the first evaluation."""
    standing = {0: Standing(Mark("warm-up", 0), 1799.0, 0.0)}
    assert not judge(standing, {}, QUICK).stands
    standing = {0: Standing(Mark("warm-up", 0), 1800.0, 0.0)}
    finding = judge(standing, {}, QUICK)
    assert finding.stands == (0,)
    assert "too few times are known" in finding.because


def test_few_times_are_not_believed_as_much_as_many() -> None:
    """The limit becomes tighter as more is known, and is never beyond that of an unknown section."""
    limits = [limit_s(learned(*[2.0] * number), QUICK) for number in (1, 5, 20, FEW)]
    assert limits == sorted(limits, reverse=True)
    assert limit_s(learned(500.0), QUICK) == QUICK.unknown_s
    assert limit_s(learned(*[1000.0] * FEW), QUICK) == 2400.0


def test_a_limit_has_a_least_value() -> None:
    """A job of 5 ms a step is not said to hang because of a pause of the network. By default it is 10 s."""
    [usual] = parse_table('[[watch]]\nwhat = "hang"\n', "w.toml", inside=True).watches
    assert usual.least_s == LimitBounds().least_s == 10.0
    assert limit_s(learned(*[0.005] * 500), LimitBounds()) == 10.0


def test_one_step_of_60_s_among_1000_of_1_s_makes_the_limit_75_s() -> None:
    """What was waited for once may come again: 1.25 times the longest, which is more than 3 times the percentile."""
    assert limit_s(learned(*[1.0] * 500, 60.0, *[1.0] * 500), LimitBounds()) == pytest.approx(75.0)


def test_ranks_that_wait_for_one_in_another_section_do_not_hang() -> None:
    """Rank 0 evaluates alone, and may; the others are over the limit of a step."""
    sections = {"step": learned(*[1.0] * 200)}
    standing = {
        0: Standing(Mark("evaluation", 3), 30.0, 30.0),
        1: Standing(Mark("step", 3), 30.0, 30.0),
    }
    finding = judge(standing, sections, QUICK)
    assert not finding.stands
    assert "may wait for rank 0, which has been in evaluation" in finding.because


def test_one_rank_that_stands_while_the_others_go_on_is_found() -> None:
    """As in a job whose ranks do not wait for each other."""
    standing = {0: Standing(Mark("step", 9), 0.1, 9.0), 1: Standing(Mark("step", 3), 30.0, 9.0)}
    assert judge(standing, {"step": learned(*[1.0] * 200)}, QUICK).stands == (1,)


def test_the_rank_that_came_least_far_is_named_first() -> None:
    """The others wait for it."""
    standing = {rank: Standing(Mark("step", 9 - (rank == 2)), 30.0, 9.0) for rank in range(4)}
    finding = judge(standing, {"step": learned(*[1.0] * 200)}, QUICK)
    assert finding.stands == (2, 0, 1, 3)
    assert finding.because.startswith("ranks 0-3: no progress for 30 s in step (limit 2.4 s: of 200 so far 99 % took")


def test_time_in_which_nobody_looked_does_not_count_against_the_job() -> None:
    """The whole host was stopped for an hour, and whoever looks with it."""
    standing = look({}, {0: Mark("step", 1, age_s=5000.0)}, 0.0, most_s=2.0)
    assert standing[0].still_s == 2.0
    standing = look(standing, {0: Mark("step", 1)}, 3600.0, most_s=2.0)
    assert standing[0].still_s == 4.0


def test_any_sign_of_life_begins_the_time_anew() -> None:
    """A mark, and also another section."""
    standing = look({}, {0: Mark("step", 1)}, 0.0, most_s=100.0)
    for mark in (Mark("step", 2), Mark("save", 1)):
        assert look(standing, {0: mark}, 50.0, most_s=100.0)[0].still_s == 0.0


def test_ranks_are_named_in_ranges() -> None:
    """For one line."""
    assert [named([3]), named([0, 1, 2, 5])] == ["rank 3", "ranks 0-2, 5"]


class Script:
    """A worker without the library, and its watch."""

    def __init__(self, threshold: str = "") -> None:
        self.job: Any = SimpleNamespace(round=1, nodes=1, workers=lambda: {0: 99}, progress=dict)
        [watch] = parse_table(f'[[watch]]\nwhat = "hang"\n{threshold}', "w.toml", inside=True).watches
        self._reader, self._now, self._printed = Stillness(watch, self.job), 0, 0
        self.job.written = lambda: {0: self._printed}

    def begins_again(self) -> None:
        """In a new round, in which it has printed nothing yet."""
        self.job.round, self._printed = 2, 0

    def first_alarm(self, silent_s: int, *, printing_s: int = 0) -> int | None:
        """It prints every second for `printing_s`, and is then silent for `silent_s`: after how many of these it is
        said to hang; None: not at all."""
        for _ in range(printing_s):
            self._now, self._printed = self._now + 1, self._printed + 1
            self._reader.read(float(self._now))
        for passed in range(silent_s):
            if self._reader.read(float(self._now + passed)).verdict is ReadingResult.OVER:
                return passed
        self._now += silent_s
        return None


def test_a_first_silent_evaluation_of_a_script_that_prints_steadily_is_no_hang() -> None:
    """Nothing in its output says that it will come. A script that prints nothing any more is found."""
    script = Script()
    assert script.first_alarm(500, printing_s=7200) is None
    assert script.first_alarm(5000, printing_s=7200) in range(600, 1000)


def test_a_restarted_script_may_load_as_silently_as_at_its_first_start() -> None:
    """What it prints while it trains does not tell how long it loads before."""
    script = Script()
    assert script.first_alarm(1000) is None
    assert script.first_alarm(0, printing_s=7200) is None
    script.begins_again()
    assert script.first_alarm(1000) is None
    assert script.first_alarm(5000) is not None


def test_a_limit_that_is_given_holds_for_a_script_without_the_library_too() -> None:
    """Also before it has printed."""
    assert Script('threshold = "20 s"').first_alarm(100) == 20
    assert Script('threshold = "20 s"').first_alarm(100, printing_s=300) in (20, 21)
