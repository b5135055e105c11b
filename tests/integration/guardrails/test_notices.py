"""Notices of clouds that they take a spot host back, from metadata services that refuse, hang and recover."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from elastic_agent.launcher.preemption import notices
from elastic_agent.launcher.preemption.notices import URL, Notices
from support.desk import Desk
from support.harness import ProcessNode
from support.network import free_port

BOUND_S = 20.0
WORKER = Path(__file__).parents[2] / "support" / "workers" / "obedient.py"

AWS = {"action": "terminate", "time": "2026-11-22T17:02:00Z"}
AZURE = {"Events": [{"EventType": "Preempt", "NotBefore": "Sun, 22 Nov 2026 17:02:00 GMT", "Resources": ["vm1"]}]}
QUIET = {"aws": (404, ""), "gcp": (200, "FALSE"), "azure": (200, json.dumps({"Events": []}))}
LOUD = {"aws": (200, json.dumps(AWS)), "gcp": (200, "TRUE"), "azure": (200, json.dumps(AZURE))}
SAYS = {
    "aws": "AWS will terminate this host at 2026-11-22T17:02:00Z",
    "gcp": "GCP takes this host back within 30 s",
    "azure": "Azure takes this host back, not before Sun, 22 Nov 2026 17:02:00 GMT",
}


class Service:
    """A metadata service on this host, which asks for the headers that the real ones ask for."""

    def __init__(self, port: int = 0) -> None:
        self.answer: tuple[int, str] = (503, "")
        self.hangs = threading.Event()
        self.asked = threading.Semaphore(0)
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                right = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
                self._send((200, "secret") if right else (400, ""))

            def do_GET(self) -> None:
                service.asked.release()
                if service.hangs.is_set():
                    self.rfile.read(1)  # until the client gives up
                    return
                paths = {
                    "/latest/meta-data/spot/instance-action": ("X-aws-ec2-metadata-token", "secret"),
                    "/computeMetadata/v1/instance/preempted": ("Metadata-Flavor", "Google"),
                    "/metadata/scheduledevents?api-version=2020-07-01": ("Metadata", "true"),
                }
                header, value = paths[self.path]
                self._send(service.answer if self.headers.get(header) == value else (403, ""))

            def _send(self, answer: tuple[int, str]) -> None:
                self.send_response(answer[0])
                self.end_headers()
                self.wfile.write(answer[1].encode())

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def wait_asked(self) -> None:
        assert self.asked.acquire(timeout=BOUND_S), "nobody asked"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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
