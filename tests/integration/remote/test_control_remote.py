"""The control service on TCP: the contract by gRPC, with TLS, to those who have a token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.control.ctl.remote import as_fields, in_words
from elastic_agent.control.remote.awaited import AWAITED_MAX
from elastic_agent.control.remote.server import CALLS_MAX
from elastic_agent.control.remote.tokens import Tokens
from elastic_agent.control.service.connection import TAKEN_S
from support.harness import Cluster, ProcessNode
from support.network import free_port
from support.outside.asking import Asking
from support.outside.remote import READS, WRITES, Door, ask, headers, health, health_changes, stream, wait_working
from support.procfs import open_files, slowed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ECHOING = str(Path(__file__).parents[2] / "support" / "workers" / "echoing.py")
UNKNOWN, SERVING, NOT_SERVING = 0, 1, 2


class Host:
    """An agent that answers on TCP too, and runs a worker."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.asking = Asking()
        self.door = Door(folder / "door")
        self.address = self.door.address()
        self.cluster = Cluster("c10d", folder, env=self.asking.env)
        flags = self.door.flags(self.address)
        self.agent: ProcessNode = self.cluster.start("one", nnodes="1", flags=flags, **changes)
        self.channel = self.door.channel(self.address)
        if not changes:
            self.cluster.desk.wait_world(1, bound_s=150)
        wait_working(self.channel)
        self.path = self.asking.path(self.agent.process.pid)

    def descriptors(self) -> int:
        return open_files(self.agent.process.pid)

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.agent.process.pid}/task"))

    def close(self) -> None:
        self.channel.close()
        self.cluster.close()
        self.asking.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def refused(call: Any, *args: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **options)
    error: Any = caught.value
    return error.code(), error.details()


def test_the_answers_are_those_of_the_unix_socket(host: Host) -> None:
    """Field for field, but for ages and what is counted between the two."""
    moving = {"announcedAgeS", "roundAgeS", "ageS", "lastEvent"}
    for method in ("Status", "Job", "Workers"):
        over_tcp = as_fields(ask(host.channel, method, READS))
        here = host.asking.ask(host.path, method)
        for found in (over_tcp, here):
            for each in (found, *found.get("workers", ()), *found.get("nodes", ())):
                for name in (*moving, "cpuS", "rssBytes"):
                    each.pop(name, None)
        assert over_tcp == here
    stacks = ask(host.channel, "Stacks", READS)
    assert [list(group.ranks) for group in stacks.groups] == [[0]]


def test_a_call_without_a_token_is_refused_and_one_that_may_read_changes_nothing(host: Host) -> None:
    """Each method of the contract; health alone asks for none."""
    for method in ("Status", "Job", "Workers", "Stacks", "Drain", "Stop", "RestartRound", "Save", "SetWatch"):
        for token in ("", "a-token-of-nobody-here", READS[:-1]):
            assert refused(ask, host.channel, method, token)[0] is grpc.StatusCode.UNAUTHENTICATED
    for method in ("Events", "Logs"):
        assert refused(list, stream(host.channel, method, ""))[0] is grpc.StatusCode.UNAUTHENTICATED
    for method in ("Drain", "Stop", "RestartRound", "Save", "SetWatch"):
        found = refused(ask, host.channel, method, READS)
        assert found == (
            grpc.StatusCode.PERMISSION_DENIED,
            f"the token grafana is for reading; {method} needs one for `write`",
        )
    assert ask(host.channel, "Status").phase == "working"
    assert health(host.channel) == SERVING


def test_a_token_that_may_write_steers_the_job_and_is_named_in_its_log(host: Host) -> None:
    events = stream(host.channel, "Events", READS, follow=True)
    said = ask(host.channel, "Drain", WRITES, reason="its disk")
    assert "was asked to leave" in said.text
    assert host.agent.wait() == 75
    assert "drained by token oncall (ipv4:127.0.0.1:" in host.agent.last_line()
    assert ": its disk" in host.agent.last_line()
    assert [(each.what, each.exit_code) for each in events][-1] == ("concluded", 75)


def test_mistakes_of_a_caller_are_told_by_their_code(host: Host) -> None:
    """A wrong value, a method that is not there, a request that is too long."""
    code, text = refused(ask, host.channel, "SetWatch", names="moon")
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "'moon' is no usual watch" in text
    call: Any = host.channel.unary_unary("/elastic.control.v1.Control/Moon")
    assert refused(call, b"", timeout=20)[0] is grpc.StatusCode.UNIMPLEMENTED
    reflects: Any = host.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    assert refused(lambda: list(reflects(iter([b""]), timeout=20)))[0] is grpc.StatusCode.UNIMPLEMENTED
    assert refused(ask, host.channel, "Save", label="x" * 100_000)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    call = host.channel.unary_unary("/elastic.control.v1.Control/Save")
    assert refused(call, b"\xff\xff", timeout=20)[0] is grpc.StatusCode.UNAUTHENTICATED
    code, text = refused(call, b"\xff\xff", metadata=headers(WRITES), timeout=20)
    assert (code, "no message of this method" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert ask(host.channel, "Status").phase == "working"


def test_nothing_is_answered_without_tls_or_to_one_who_trusts_another(host: Host, tmp_path: Path) -> None:
    with grpc.insecure_channel(host.address) as channel:
        call: Any = channel.unary_unary("/elastic.control.v1.Control/Status")
        assert refused(call, b"", timeout=60)[0] is grpc.StatusCode.UNAVAILABLE
    other = Door(tmp_path / "other")
    with other.channel(host.address) as channel:
        call = channel.unary_unary("/elastic.control.v1.Control/Status")
        code, told = refused(call, b"", timeout=60)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert in_words(told) == "its certificate is signed by nobody whom this host trusts; give --ca-file"
    with grpc.secure_channel(f"127.0.0.1:{free_port()}", grpc.ssl_channel_credentials()) as channel:
        call = channel.unary_unary("/elastic.control.v1.Control/Status")
        assert in_words(refused(call, b"", timeout=60)[1]).startswith("nothing listens there; give the address of")
    for told in ("errors resolving node9:9500: [field:hostname lookup]", "DNS resolution failed for node9:9500"):
        assert in_words(told) == "no host of that name is found; give another --address"


def test_the_health_service_says_whether_the_agent_serves_and_whether_its_workers_run(host: Host) -> None:
    """`ready` changes as workers end, and each change is told to one who watches."""
    assert [health(host.channel, name) for name in ("", "elastic.control.v1.Control", "ready")] == [SERVING] * 3
    assert refused(health, host.channel, "moon")[0] is grpc.StatusCode.NOT_FOUND
    changes = health_changes(host.channel, "ready")
    assert next(changes) == SERVING
    host.cluster.finish()
    assert next(changes) == NOT_SERVING
    assert host.agent.wait() == 0


def test_a_follower_that_leaves_takes_its_thread_with_it(host: Host) -> None:
    """40 one after the other, of which 32 could be open at once."""
    before = host.threads() + 8  # gRPC's own, of which it starts some more
    for _ in range(40):
        events = stream(host.channel, "Events", READS, follow=True)
        assert next(events).number == 1
        events.cancel()
    deadline = time.monotonic() + 20
    while host.threads() > before:
        assert time.monotonic() < deadline, host.threads()
    assert ask(host.channel, "Status").phase == "working"


def test_a_reader_of_logs_that_stands_still_is_dropped_and_workers_never_wait(tmp_path: Path) -> None:
    """Its stream is cancelled after 10 s; the worker has long written all."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    host = Host(tmp_path, worker=ECHOING, args=(str(pipe),), redirects="1")
    try:
        small = (("grpc.http2.lookahead_bytes", 65536), ("grpc.http2.bdp_probe", 0))
        with host.door.channel(host.address, *small) as channel:
            stuck = stream(channel, "Logs", READS, follow=True)
            text = ""
            while text != "begun\n":  # the worker, started with -u, writes a line in two pieces
                text += next(stuck).text
            began = time.monotonic()
            pipe.write_text(("x" * 999 + "\n") * 20_000)
            assert time.monotonic() - began < slowed(10.0)
            assert ask(host.channel, "Status").phase == "working"
            host.agent.wait_text("1 reader over TCP took nothing for 10 s; the stream is ended")
            with pytest.raises(grpc.RpcError):
                list(stuck)
            assert time.monotonic() - began > 5
        pipe.write_text("end\n")
        assert host.agent.wait() == 0
    finally:
        host.close()


def test_ten_thousand_connections_and_half_sent_requests_do_no_harm(host: Host) -> None:
    """Raw TCP, nothing or half a handshake sent: descriptors stay bounded, and both doors answer."""
    where = ("127.0.0.1", int(host.address.rpartition(":")[2]))
    links: list[socket.socket] = []
    most = 0
    try:
        for number in range(10_000):
            link = socket.socket()
            link.settimeout(20)
            link.connect(where)
            if number % 2:
                try:
                    link.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01")  # the begin of a TLS handshake
                except OSError:
                    pass  # it was refused at once
            links.append(link)
            if len(links) > 500:
                links.pop(0).close()
            if number % 500 == 0:
                most = max(most, host.descriptors())
                assert host.asking.ask(host.path, "Status")["phase"] == "working"
        assert most < 300
    finally:
        for link in links:
            link.close()
    with host.door.channel(host.address) as channel:
        assert ask(channel, "Status").phase == "working"
    host.cluster.finish()
    assert host.agent.wait() == 0


def test_calls_that_hold_their_message_back_close_the_port_to_nobody(host: Host) -> None:
    """Of strangers, who are refused at once; of the health service, which asks for no token; of those who have one."""
    over, held = threading.Event(), list[Any]()

    def nothing() -> Iterator[bytes]:
        over.wait(120)
        yield from ()

    try:
        with host.door.channel(host.address) as channel:
            for path, token in (
                ("/elastic.control.v1.Control/Status", ""),
                ("/grpc.health.v1.Health/Check", ""),
                ("/elastic.control.v1.Control/Status", READS),
            ):
                call: Any = channel.stream_stream(path)
                held = [call(nothing(), metadata=headers(token), timeout=60) for _ in range(CALLS_MAX)]
                for each in held[:-AWAITED_MAX] if token or "health" in path else held:
                    refused(next, each)
                assert ask(host.channel, "Status", READS).phase == "working"
                assert health(host.channel) == SERVING
            began = time.monotonic()
            refused(next, held[-1])
            assert time.monotonic() - began < slowed(3 * TAKEN_S)
    finally:
        over.set()


def test_calls_whose_messages_come_late_are_all_answered(host: Host) -> None:
    """As when they come at once and the agent gets no processor between a call and its message."""
    begun = threading.Event()

    def nothing() -> Iterator[bytes]:
        begun.wait(60)
        yield b""

    call: Any = host.channel.stream_unary("/elastic.control.v1.Control/Status")
    asked = [call.future(nothing(), metadata=headers(READS), timeout=60) for _ in range(AWAITED_MAX - 1)]
    assert ask(host.channel, "Status", WRITES).phase == "working"
    begun.set()
    assert all(each.result() for each in asked)


def test_threads_of_calls_share_memory_and_have_no_arenas_of_their_own(host: Host) -> None:
    """glibc gives up to 8 for each processor, which a million mutated calls filled with 70 MiB."""
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(lambda _: ask(host.channel, "Job", READS), range(200)):
            pass
    assert arenas(host.agent.process.pid) <= 2  # of threads from before the port was opened


def arenas(pid: int) -> int:
    """Further arenas of malloc in a process: 64 MiB of addresses each, at a multiple of that, of which the first part
    is in use."""
    size, found = 64 << 20, 0
    spans = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    for here, after in pairwise(spans):
        begin, middle = (int(each, 16) for each in here[0].split("-"))
        also, end = (int(each, 16) for each in after[0].split("-"))
        found += (
            middle == also and end - begin == size and begin % size == 0 and (here[1], after[1]) == ("rw-p", "---p")
        )
    return found


def test_a_port_that_is_taken_costs_no_job(tmp_path: Path) -> None:
    """One line says so; and two agents never share a port."""
    asking, door = Asking(), Door(tmp_path / "door")
    cluster = Cluster("c10d", tmp_path, env=asking.env)
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            node = cluster.start("one", nnodes="1", flags=door.flags(address))
            cluster.desk.wait_world(1)
            node.wait_text(f"cannot serve on TCP: {address} is taken")
            cluster.finish()
            assert node.wait() == 0
    finally:
        cluster.close()
        asking.close()


def test_an_agent_without_the_flag_loads_neither_grpc_nor_this_room(tmp_path: Path) -> None:
    """Nor does one whose socket is asked."""
    asking = Asking()
    cluster = Cluster("c10d", tmp_path, env=asking.env)
    try:
        node = cluster.start("one", nnodes="1")
        cluster.desk.wait_world(1)
        asking.ask(asking.path(node.process.pid), "Job")
        maps = Path(f"/proc/{node.process.pid}/maps").read_text()
        assert "cygrpc" not in maps
        cluster.finish()
        assert node.wait() == 0
    finally:
        cluster.close()
        asking.close()
    program = "import sys, elastic_agent.launcher.watched; print([n for n in sys.modules if 'control.remote' in n])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("text", "mode", "error"),
    [
        ("", 0o600, "has no token"),
        ("a read 0123456789012345\n", 0o604, "others may read it"),
        ("a read short\n", 0o600, "line 1: the token of a needs 16 characters"),
        ("a admin 0123456789012345\n", 0o600, "line 1 is not `NAME read|write TOKEN`"),
        ("a read 0123456789012345\nb write 0123456789012345\n", 0o600, "line 2: b has the token of another line"),
    ],
)
def test_a_file_of_tokens_that_cannot_be_used_is_refused(tmp_path: Path, text: str, mode: int, error: str) -> None:
    """In one line, in which no token stands."""
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(UsageError, match=error.replace("|", r"\|")) as caught:
        Tokens(str(path))
    assert "0123456789012345" not in str(caught.value)
