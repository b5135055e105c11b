"""Notices of clouds that they take a spot host back, from metadata services that refuse, hang and recover."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_agent.launcher.preemption import notices
from elastic_agent.launcher.preemption.notices import URL, Notices
from support.desk import Desk
from support.harness import ProcessNode
from support.network import free_port
from support.outside.metadata import BOUND_S, LOUD, QUIET, Service

WORKER = Path(__file__).parents[2] / "support" / "workers" / "obedient.py"

SAYS = {
    "aws": "AWS will terminate this host at 2026-11-22T17:02:00Z",
    "gcp": "GCP takes this host back within 30 s",
    "azure": "Azure takes this host back, not before Sun, 22 Nov 2026 17:02:00 GMT",
}


@pytest.fixture
def service() -> Iterator[Service]:
    with closing(Service()) as made:
        yield made


class Told:
    """What was announced, and what was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.notices: list[str] = []
        self._changed = threading.Condition()

    def announce(self, because: str) -> None:
        with self._changed:
            self.notices.append(because)
            self._changed.notify_all()

    def tell(self, text: str, routine: bool) -> None:
        with self._changed:
            self.lines.append(text)
            self._changed.notify_all()

    def wait(self, until: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(until, BOUND_S), (self.notices, self.lines)


def asking(cloud: str, url: str, told: Told) -> closing[Notices]:
    return closing(Notices(cloud, {URL: url}, told.announce, told.tell, every_s=0.02))


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_a_notice_is_announced_once_when_it_comes(cloud: str, service: Service) -> None:
    told = Told()
    service.answer = QUIET[cloud]
    with asking(cloud, service.url, told):
        service.wait_asked()
        service.wait_asked()
        assert told.notices == []
        service.answer = LOUD[cloud]
        told.wait(lambda: told.notices)
    assert (told.notices, told.lines) == ([SAYS[cloud]], [])


def test_a_service_that_refuses_is_said_once_and_asked_on_until_it_recovers() -> None:
    told, port = Told(), free_port()
    with asking("gcp", f"http://127.0.0.1:{port}", told):
        told.wait(lambda: told.lines)
        with closing(Service(port)) as service:
            service.answer = (500, "")
            service.wait_asked()
            service.answer = QUIET["gcp"]
            told.wait(lambda: len(told.lines) > 1)
            service.answer = LOUD["gcp"]
            told.wait(lambda: told.notices)
    assert "no notice of a spot host can be read" in told.lines[0]
    assert told.lines[1:] == [f"http://127.0.0.1:{port} answers again (--spot-notices)"]


def test_a_service_that_hangs_is_given_up_each_time_and_its_notice_still_comes(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "ANSWER_S", 0.1)
    told = Told()
    service.hangs.set()
    with asking("azure", service.url, told):
        told.wait(lambda: told.lines)
        service.answer = LOUD["azure"]
        service.hangs.clear()
        told.wait(lambda: told.notices)
    assert told.notices == [SAYS["azure"]]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Events": 3}', '{"Events": [4]}'])
def test_an_answer_that_means_nothing_is_no_notice(text: str, service: Service) -> None:
    told = Told()
    service.answer = (200, text)
    with asking("azure", service.url, told):
        service.wait_asked()
        service.answer = LOUD["azure"]
        told.wait(lambda: told.notices)


def test_an_answer_that_is_no_http_is_said_and_asked_on(service: Service) -> None:
    """As of another program at that port, or of a service that is just being started."""
    told = Told()
    service.answer = (0, "220 ready\r\n")
    with asking("gcp", service.url, told):
        told.wait(lambda: told.lines)
        service.answer = LOUD["gcp"]
        told.wait(lambda: told.notices)
    assert told.lines[0].startswith(f"no notice of a spot host can be read at {service.url}: 220 ready; asking on")
    assert told.notices == [SAYS["gcp"]]


def test_a_node_whose_host_is_taken_back_leaves_the_job(service: Service, tmp_path: Path) -> None:
    """The agent as a process: it ends with 75, and the sentence names the cloud's notice."""
    service.answer = QUIET["aws"]
    with closing(Desk(tmp_path)) as desk:
        env = {**os.environ, URL: service.url, "TEST_NODE": "one", "TEST_DESK": desk.path}
        flags = ["--standalone", "--log-dir", os.devnull, "--spot-notices", "aws", str(WORKER)]
        agent = ProcessNode("one", flags, env, tmp_path)
        try:
            desk.wait_world(1)
            service.answer = LOUD["aws"]
            assert agent.wait() == 75
            assert SAYS["aws"] in agent.last_line()
        finally:
            agent.end()
