"""The events that an agent keeps, read from another thread while there are more."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.control import control_socket
from elastic_agent.control.control_socket import KEPT, VARIABLE, Service
from elastic_agent.control.service.followers import EventFollower
from elastic_agent.control.service.messages import EventsRequest
from elastic_agent.control.stream import Entry


def told(text: str, routine: bool) -> None:
    raise AssertionError(text)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return Service("job", told, lambda *_: pytest.fail("nobody connects"))


def test_one_that_follows_from_another_thread_gets_each_event_once(service: Service) -> None:
    """More events than are kept; a look at any moment finds neither one that is not there yet nor skips one unsaid."""
    follower = EventFollower(service, EventsRequest(since=1, follow=True))
    numbers: list[int] = []
    missed = 0
    over = threading.Event()
    failed: list[BaseException] = []

    def send(message: object) -> bool:
        nonlocal missed
        event: Any = message
        missed += event.missed
        numbers.append(event.number)
        return True

    def follow() -> None:
        try:
            while not over.is_set():
                follower.pump(send)
            follower.pump(send)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failed.append(error)

    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    reader = threading.Thread(target=follow)
    reader.start()
    try:
        for _ in range(3 * KEPT):
            service.alarmed("disk", "fired", "it is full")
            service._record(service._stream.alarm("disk", "fired", "it is full"))
    finally:
        sys.setswitchinterval(usual_s)
        over.set()
        reader.join(30)
        service.close()
    assert not failed
    assert numbers == sorted(set(numbers))
    assert len(numbers) + missed == service.number == 3 * KEPT


def test_what_cannot_be_recorded_costs_no_job(service: Service) -> None:
    """One line says so."""
    said: list[str] = []
    service._tell = lambda text, routine: said.append(text)

    def fails(entry: Entry) -> None:
        raise ZeroDivisionError(entry.number)

    service.recorders.append(fails)
    service._record(service._stream.deadline(1.0))
    assert said == ["an event was not recorded: ZeroDivisionError: 1; please report it"]
    assert service.number == 1
    service.close()


@pytest.mark.parametrize("chosen", [False, True])
def test_a_directory_for_the_socket_that_somebody_chose_is_not_left_out_in_silence(
    chosen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have none, which nobody needs to be told."""
    said: list[tuple[str, bool]] = []
    monkeypatch.setattr(control_socket, "bases", lambda: [str(tmp_path / "not" / "there")])
    monkeypatch.delenv(VARIABLE, raising=False)
    if chosen:
        monkeypatch.setenv(VARIABLE, str(tmp_path / "not" / "there"))
    Service("job", lambda text, routine: said.append((text, routine)), lambda *_: pytest.fail("nobody connects"))
    [(text, routine)] = said
    assert text.startswith(f"elasticctl cannot reach this agent: {tmp_path}/not/there: No such file or directory; set")
    assert routine is not chosen
