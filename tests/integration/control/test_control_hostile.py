"""What strangers, slow readers and floods do to the control socket of a running agent: nothing."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_agent.control.control_socket import SOCKET
from support.harness import Cluster, ProcessNode
from support.network import free_port
from support.outside.asking import Asking
from support.procfs import open_files, rss_kib, slowed

pytestmark = pytest.mark.slow
ECHOING = str(Path(__file__).parents[2] / "support" / "workers" / "echoing.py")
GET = b"GET /Status HTTP/1.1\r\n\r\n"


class Host:
    """An agent that runs a worker, and its socket."""

    def __init__(self, folder: Path) -> None:
        self.asking = Asking()
        self.cluster = Cluster("c10d", folder, env=self.asking.env)
        self.agent: ProcessNode = self.cluster.start("one", nnodes="1")
        self.cluster.desk.wait_world(1)
        self.path = self.asking.path(self.agent.process.pid)

    def connect(self, path: str = "") -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(path or self.path)  # with a time limit, one behind a full backlog would fail
        made.settimeout(20)
        return made

    def rss_mib(self) -> float:
        return rss_kib(self.agent.process.pid) / 1024

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.agent.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        return open_files(self.agent.process.pid)

    def wait_descriptors(self, most: int) -> None:
        """Until it has no more."""
        deadline = time.monotonic() + 30
        while self.descriptors() > most:
            assert time.monotonic() < deadline, self.descriptors()
            time.sleep(0.05)

    def close(self) -> None:
        self.cluster.close()
        self.asking.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    # Whatever was done to it: it answers, and its job ends as ever.
    assert made.asking.ask(made.path, "Status")["phase"] == "working"
    made.cluster.finish()
    assert made.agent.wait() == 0
    made.close()


def answer(link: socket.socket) -> bytes:
    """All until the other side closes."""
    parts = []
    while part := link.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_nonsense_gets_an_answer_and_a_close(host: Host) -> None:
    for text, status in ((b"\r\n\r\n", 400), (b"x" * 9000, 431), (b"PUT /Drain HTTP/1.1\r\n\r\n", 405)):
        with host.connect() as link:
            link.sendall(text)
            assert answer(link).startswith(b"HTTP/1.1 %d " % status)


def test_random_requests_leave_memory_and_descriptors_as_they_were(host: Host) -> None:
    """3,000 mutations of requests; the agent neither grows nor stops, and nothing is asked of the job."""
    chance = random.Random(15)
    pieces = [
        GET,
        b"POST /Workers HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"\r\n",
        b"{}",
        b"GET /Job HTTP/1.0\r\n\r\n",
    ]
    before, descriptors = 0.0, 0
    for number in range(3000):
        text = bytearray(b"".join(chance.choices(pieces, k=chance.randint(1, 4))))
        for _ in range(chance.randint(0, 3)):
            text[chance.randrange(len(text))] = chance.randrange(256)
        with host.connect() as link:
            link.sendall(text)
            link.shutdown(socket.SHUT_WR)
            assert b"500 Internal" not in answer(link)
        if number == 500:
            before = host.rss_mib()
            descriptors = host.descriptors()
    assert host.rss_mib() - before < 1.0
    assert host.descriptors() <= descriptors
    assert "please report" not in host.agent.text()


def test_a_half_sent_request_is_closed_in_time_and_holds_nobody_up(host: Host) -> None:
    """It gets 408 after 5 s; others are answered meanwhile."""
    with host.connect() as link:
        link.sendall(GET[:-3])
        began = time.monotonic()
        assert host.asking.ask(host.path, "Status")["phase"] == "working"
        assert time.monotonic() - began < slowed(4.0)
        assert answer(link).startswith(b"HTTP/1.1 408 ")
        assert 4 < time.monotonic() - began < slowed(15.0)


def test_ten_thousand_connections_do_no_harm(host: Host) -> None:
    """Those above the limit are told so and closed; no descriptor is left open for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    links: list[socket.socket] = []
    rss_mib = host.rss_mib()
    refused, before = 0, host.descriptors() + 1  # the one that stands for all
    try:
        for _ in range(10_000):
            link = host.connect()
            links.append(link)
            if len(links) > 1000:
                oldest = links.pop(300)
                refused += answer(oldest).startswith(b"HTTP/1.1 503 ")
                oldest.close()
        assert refused > 8_000
        assert host.descriptors() < 400
        assert host.rss_mib() - rss_mib < 8
    finally:
        for link in links:
            link.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    host.wait_descriptors(before)


def test_a_hundred_followers_are_cheap_and_one_that_reads_nothing_is_dropped(host: Host) -> None:
    """100 followers of events cost at most 4 MiB. One that never reads is closed, and the loop never waits for it."""
    host.asking.ask(host.path, "Status")
    before = host.rss_mib()
    links = [host.connect() for _ in range(100)]
    for link in links:
        link.sendall(b'POST /Events HTTP/1.1\r\nContent-Length: 15\r\n\r\n{"follow":true}')
        assert link.recv(100).startswith(b"HTTP/1.1 200 ")
    assert host.rss_mib() - before <= 4.0

    asked = b"GET /Workers HTTP/1.1\r\n\r\n"
    stuck = host.connect()
    stuck.settimeout(0.5)
    sent = 0
    try:
        while sent < 1 << 22:
            sent += stuck.send(asked * 512)
    except TimeoutError:
        pass
    held = host.descriptors()
    began = time.monotonic()
    assert host.asking.ask(host.path, "Status")["phase"] == "working"
    assert time.monotonic() - began < slowed(4.0)
    assert host.rss_mib() - before <= 12.0
    host.wait_descriptors(held - 1)
    assert time.monotonic() - began > 5
    stuck.close()
    for link in links:
        link.close()


def test_a_reader_of_logs_that_stands_still_is_dropped_and_workers_never_wait(host: Host, tmp_path: Path) -> None:
    """One that reads gets all, or is told how much it missed."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    env = host.asking.env
    other = host.cluster.start("two", nnodes="1", hosts=True, endpoint=f"127.0.0.1:{free_port()}", worker=ECHOING,
                               args=(str(pipe),), redirects="1", env=env)  # fmt: skip
    path = host.asking.path(other.process.pid)
    host.asking.wait(path, "Status", "phase", "working")
    stuck = host.connect(path)
    stuck.sendall(b'POST /Logs HTTP/1.1\r\nContent-Length: 15\r\n\r\n{"follow":true}')
    reading = host.asking.stream(path, "Logs", follow=True)
    text = "".join(f"{number:09d}\n" for number in range(400_000))
    began = time.monotonic()
    writer = threading.Thread(target=pipe.write_text, args=(text + "last\n",))
    writer.start()
    found, missed, end = 0, 0, ""
    for part in reading:
        missed += int(part["missedBytes"])
        found += len(part["text"])
        end = (end + part["text"])[-5:]
        if end == "last\n":
            break
    writer.join()
    assert found + missed == len("begun\n") + len(text) + len("last\n")
    del reading
    deadline = time.monotonic() + 30
    poll = select.poll()
    poll.register(stuck, select.POLLHUP)
    assert poll.poll(1000 * (deadline - time.monotonic())), "the reader that stands still was not dropped"
    assert time.monotonic() - began > 5
    stuck.close()
    pipe.write_text("end\n")
    assert other.wait() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_another_user_is_refused(host: Host) -> None:
    """By the directory; and where somebody has opened that and the socket, by the uid that the kernel tells."""
    program = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX)\n"
        "s.connect(sys.argv[1])\n"
        "try: s.sendall(b'POST /Stop HTTP/1.1\\r\\nContent-Length: 2\\r\\n\\r\\n{}')\n"
        "except BrokenPipeError: pass  # it is refused before it has sent anything\n"
        "print(s.recv(1000).decode())\n"
    )
    argv = [sys.executable, "-S", "-c", program, host.path]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert "PermissionError" in done.stderr
    for path, mode in ((host.path, 0o666), (os.path.dirname(host.path), 0o755), (f"{host.asking.folder}/run", 0o755)):
        os.chmod(path, mode)
    os.chmod(host.asking.folder, 0o755)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.startswith("HTTP/1.1 403 Forbidden"), done.stderr
    message = "uid 65534 has no access to the agent of uid 0; run elasticctl as that user or as root"
    assert json.loads(done.stdout.splitlines()[-1])["message"] == message


def test_an_agent_without_descriptors_answers_again_later_and_does_not_spin(tmp_path: Path) -> None:
    """accept(2) fails while none is left: the agent waits with the next connection, and its job goes on."""
    asking = Asking()
    limited = ("prlimit", "--nofile=64:64")
    cluster = Cluster("c10d", tmp_path, env=asking.env)
    try:
        agent = cluster.start("one", nnodes="1", within=limited)
        cluster.desk.wait_world(1)
        path = asking.path(agent.process.pid)
        links = []
        for _ in range(80):
            link = socket.socket(socket.AF_UNIX)
            link.connect(path)
            links.append(link)
        agent.wait_text("the control socket cannot accept a connection")
        fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
        before = int(fields[11]) + int(fields[12])
        time.sleep(1.0)
        fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
        assert int(fields[11]) + int(fields[12]) - before < 30  # of 100 ticks
        for link in links:
            link.close()
        assert asking.ask(path, "Status")["phase"] == "working"
        cluster.finish()
        assert agent.wait() == 0
    finally:
        cluster.close()
        asking.close()


def test_who_finds_the_socket_is_never_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections before it has its name."""
    named: list[str] = []
    rename = os.rename

    def rename_and_connect(here: str, there: str) -> None:
        if there.endswith(SOCKET):
            assert not os.path.exists(there)
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(here)
            named.append(there)
        rename(here, there)

    asking = Asking()
    monkeypatch.setenv("ELASTIC_AGENT_RUN_DIR", asking.env["ELASTIC_AGENT_RUN_DIR"])
    monkeypatch.setattr(os, "rename", rename_and_connect)
    cluster = Cluster("memory", tmp_path)
    try:
        node = cluster.start("one", nnodes="1")
        cluster.desk.wait_world(1)
        assert named == [asking.path(os.getpid())]
        assert os.listdir(os.path.dirname(named[0])) == [SOCKET]
        assert asking.ask(named[0], "Status")["phase"] == "working"
        cluster.finish()
        assert node.wait() == 0
    finally:
        cluster.close()
        asking.close()


def test_a_mistake_of_ours_costs_a_connection_and_not_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that cannot be written, a method that fails, and one who watches events and fails: each is said, and
    the agent goes on."""
    from elastic_agent.control.service.methods import METHODS

    class Failing:
        def begin(self, agent: object, loop: object) -> None: ...
        def close(self) -> None: ...
        def happened(self, what: object) -> None:
            raise KeyError("moon")

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    asking = Asking()
    monkeypatch.setenv("ELASTIC_AGENT_RUN_DIR", asking.env["ELASTIC_AGENT_RUN_DIR"])
    monkeypatch.setitem(METHODS, "Job", METHODS["Job"]._replace(call=lambda *_: object()))
    monkeypatch.setitem(METHODS, "Workers", METHODS["Workers"]._replace(call=fail))
    cluster = Cluster("memory", tmp_path)
    try:
        node = cluster.start("one", nnodes="1", max_restarts=0)
        node.agent._service.companions.append(Failing())
        cluster.desk.wait_world(1)
        path = asking.path(os.getpid())
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(20)
            link.connect(path)
            link.sendall(b"GET /Job HTTP/1.1\r\n\r\n")
            assert answer(link) == b""
        assert asking.answer(path, "Workers")[0] == 500
        assert asking.ask(path, "Status")["phase"] == "working"
        cluster.finish()
        assert node.wait() == 0
        for said in (
            "the control socket failed: AttributeError",
            "ZeroDivisionError",
            "Failing failed: KeyError: 'moon'",
        ):
            assert said in node.text()
    finally:
        cluster.close()
        asking.close()
