"""When a trainer looks for resources, and what it then asks for: `program/resources.py`, with a clock of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from elastic_agent.agent.errors import HostFailed, UsageError
from elastic_agent.trainer.program import resources
from elastic_agent.trainer.program.resources import Room


class Waits(threading.Event):
    """Passes each wait at once, and keeps how long it would have been."""

    def __init__(self, then: Callable[[int], None] = lambda number: None) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._then = then

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        self._then(len(self.waited))
        return self.is_set()


def test_a_node_has_at_most_its_share() -> None:
    for found, wanted in ((0, 0), (-1, 0), (1, 1), (3, 2)):
        made = Room(2, lambda found=found: found)  # type: ignore[misc]
        assert (made.take(), made.used) == (wanted, wanted)
    whole = Room(2, None)
    assert (whole.look(), whole.used, whole.changes) == (2, 2, False)


def test_each_look_of_a_node_without_resources_comes_after_twice_the_time() -> None:
    looks = iter([0, 0, 0, 0, 1])
    made = Room(2, lambda: next(looks))
    made._closed = waits = Waits()
    made.wait()
    assert waits.waited == [1.0, 2.0, 4.0, 8.0]


def test_a_node_that_gets_no_resources_says_how_long_it_waited() -> None:
    made = Room(2, lambda: 0)
    made._closed = waits = Waits()
    with pytest.raises(HostFailed, match=r"had resources for no worker in 1023 s; free a device"):
        made.wait()
    assert sum(waits.waited) == 1023


def test_a_shutdown_ends_the_wait_for_resources() -> None:
    made = Room(2, lambda: 0)
    made._closed = waits = Waits(lambda number: waits.set() if number == 3 else None)
    made.wait()
    assert len(waits.waited) == 3


def test_what_a_function_gave_that_is_no_number_is_named() -> None:
    def broken() -> int:
        raise OSError("no driver")

    with pytest.raises(UsageError, match=r"resources\(\) raised OSError: no driver"):
        Room(2, broken).look()
    for wrong in ("two", True, 1.5, None):
        with pytest.raises(UsageError, match=r"resources\(\) returned .*, and must return a number of workers"):
            Room(2, lambda wrong=wrong: wrong).look()  # type: ignore[misc]


def test_more_workers_are_asked_for_once_there_are_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the function fails in between; and for nothing while all workers are there, or none."""
    monkeypatch.setattr(resources, "FIRST_S", 0.001)
    answers: list[int | Exception] = [1, 1, OSError("not now"), 1, 2]
    asked: list[tuple[int, int]] = []
    done = threading.Event()

    def count() -> int:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(used: int, found: int) -> None:
        asked.append((used, found))
        made.take()
        done.set()

    made = Room(2, count)
    watch = threading.Thread(target=made.watch, args=(ask,))
    watch.start()
    assert made.take() == 1
    assert done.wait(60)
    made.close()
    watch.join(60)
    assert (asked, made.used) == ([(1, 2)], 2)
