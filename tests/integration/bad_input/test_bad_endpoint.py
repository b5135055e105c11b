"""Endpoints that refuse, do not resolve or are not ours: given up after the timeout, with one line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.harness import ProcessNode
from support.network import free_port
from support.procfs import slowed
from support.rigs.command_line import CONNECT_S, assert_one_line, at, elastic_agent
from support.rigs.torch_store import TorchStore


def test_an_endpoint_that_refuses_is_given_up_after_its_timeout(script: str, tmp_path: Path) -> None:
    """No process listens: status 80 once read_timeout is over, with the endpoint."""
    port = free_port()
    done = elastic_agent(*at(port, is_host=0), script, cwd=tmp_path)
    assert_one_line(done, 80, f"127.0.0.1:{port}", "connection refused", "--rdzv-endpoint", within_s=CONNECT_S + 3.0)


def test_an_endpoint_that_does_not_resolve_is_given_up_after_its_timeout(script: str, tmp_path: Path) -> None:
    """A name that does not resolve may do so later, so it is tried until read_timeout is over."""
    done = elastic_agent(*at(29400, "no-such-host.invalid"), script, cwd=tmp_path)
    assert_one_line(done, 80, "no-such-host.invalid", "does not resolve")


def listener(answer: bytes | None) -> tuple[int, Callable[[], None]]:
    """A server that sends `answer` to each client that has sent something, or never answers: its port, and a function
    that closes it."""
    server = socket.create_server(("127.0.0.1", 0))
    links: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                link, _ = server.accept()
                links.append(link)
                if answer is not None:
                    link.recv(1)
                    link.sendall(answer)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in (*links, server):
            each.close()

    return int(server.getsockname()[1]), end


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "sends nothing"),
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "is not a TCPStore: it answered b'HTTP/1.0'"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "is not a TCPStore: it answered b'SSH-2.0-'"),
    ],
    ids=["silent", "http", "ssh"],
)
def test_a_foreign_server_at_the_endpoint_is_recognised(
    answer: bytes | None, message: str, script: str, tmp_path: Path
) -> None:
    """A listener that never answers, and servers of other kinds; the line has what came from them."""
    port, end = listener(answer)
    try:
        done = elastic_agent(*at(port), script, cwd=tmp_path)
    finally:
        end()
    assert_one_line(done, 80, f"127.0.0.1:{port}", message, "choose another port")


def test_a_tcpstore_without_an_agent_is_recognised(foreign: TorchStore, script: str, tmp_path: Path) -> None:
    """For another program's TCPStore the line says that no elastic-agent hosts a job there."""
    port = free_port()
    foreign.host(port)
    try:
        done = elastic_agent(*at(port), script, cwd=tmp_path)
    finally:
        foreign.leave()
    assert_one_line(done, 80, f"127.0.0.1:{port}", "no elastic-agent hosts a job there", "choose another port")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_for_an_endpoint_at_once(signum: signal.Signals, script: str, tmp_path: Path) -> None:
    """An agent that waits for a store exits 128+n within 2 s, and nothing is left."""
    flags = at(free_port(), is_host=0, read_timeout=60)
    node = ProcessNode("n", [*flags, script], {**os.environ, "OMP_NUM_THREADS": "1"}, tmp_path)
    try:
        node.wait_text("waiting for 127.0.0.1")
        began = time.monotonic()
        node.terminate(signum)
        assert node.wait() == 128 + signum
        assert time.monotonic() - began < slowed(2.0)
        assert node.text().splitlines()[-1].startswith(f"elastic-agent: exit {128 + signum}: ")
    finally:
        node.end()


def test_sigterm_at_any_moment_of_the_start_leaves_no_process(tmp_path: Path) -> None:
    """From the first milliseconds on the signal ends the agent, by its handler or before it has one, without a
    traceback."""
    (tmp_path / "long.py").write_text("import time; time.sleep(1000)\n")
    for wait_s in [step * 0.02 for step in range(16)]:
        node = ProcessNode("n", ["long.py"], dict(os.environ), tmp_path)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                node.process.wait(wait_s)
            began = time.monotonic()
            node.terminate()
            assert node.wait() in (-signal.SIGTERM, 128 + signal.SIGTERM)
            assert time.monotonic() - began < slowed(2.0)
            assert "Traceback" not in node.text()
        finally:
            node.end()
