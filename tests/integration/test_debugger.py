"""Under a debugger that follows child processes, the workers stop at their breakpoints and nothing else is debugged.

With debugpy, whose protocol is the Debug Adapter Protocol (microsoft.github.io/debug-adapter-protocol).
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.network import free_port
from support.procfs import kill_and_read

BOUND_S = 100.0
SCRIPT = """import os
rank = int(os.environ["RANK"])
os.write(1, f"rank {rank}\\n".encode())  # line 3, in one call: lines of two workers would mix
"""


class Session:
    """One process that is debugged, as an editor sees it."""

    def __init__(self, address: tuple[str, int], arguments: dict[str, Any], breakpoints: dict[str, Any]) -> None:
        self.socket = socket.create_connection(address, timeout=BOUND_S)
        self._arguments = arguments
        self._breakpoints = breakpoints
        self._received = b""
        self._seq = 0
        self.request("initialize", adapterID="debugpy", pathFormat="path", linesStartAt1=True)

    def request(self, command: str, **arguments: Any) -> None:
        self._seq += 1
        body = json.dumps({"seq": self._seq, "type": "request", "command": command, "arguments": arguments}).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def messages(self) -> Iterator[dict[str, Any]]:
        """What has arrived; answers what every session answers alike."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            yield {"event": "closed"}
            return
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, rest = self._received.partition(b"\r\n\r\n")
            size = int(head.partition(b"Content-Length: ")[2].split()[0])
            if len(rest) < size:
                return
            self._received = rest[size:]
            message = json.loads(rest[:size])
            if message.get("command") == "initialize":
                self.request("attach", **self._arguments)
            elif message.get("event") == "initialized":
                self.request("setBreakpoints", **self._breakpoints)
                self.request("configurationDone")
            yield message


@pytest.fixture
def agents() -> Iterator[list[subprocess.Popen[str]]]:
    """The agents that the test starts, killed at its end."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        kill_and_read(process)


def start(folder: Path, *flags: str) -> tuple[subprocess.Popen[str], int]:
    """An agent with two workers that waits for an editor on this port."""
    port = free_port()
    command = [sys.executable, "-Xfrozen_modules=off", "-m", "debugpy", "--listen", f"127.0.0.1:{port}"]
    command += ["--wait-for-client", "-m", "elastic_agent", "--standalone", "--nproc-per-node", "2", *flags, "train.py"]
    env = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True), port


def wait_debugged(process: subprocess.Popen[str]) -> None:
    """Wait until the process has connected to its debugger's adapter.

    An editor whose session begins before that gets none for the child processes: debugpy 1.8.22 opens another port for
    them then, which it does not pass on.
    """
    until = time.monotonic() + BOUND_S
    while True:
        tcp = psutil.net_connections("tcp")
        listening = {each.laddr.port for each in tcp if each.laddr and each.status == psutil.CONN_LISTEN}
        if any(each.pid == process.pid and each.raddr and each.raddr.port in listening for each in tcp):
            return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "debugpy does not start"


@pytest.mark.slow
@pytest.mark.parametrize("preload", [(), ("--preload", "json")], ids=["plain", "preload"])
def test_workers_stop_at_their_breakpoints_and_the_helpers_are_not_debugged(
    preload: tuple[str, ...], tmp_path: Path, agents: list[subprocess.Popen[str]]
) -> None:
    """Each of two workers is a session that stops; guardian and nursery are none; the job then ends with 0."""
    (tmp_path / "train.py").write_text(SCRIPT)
    process, port = start(tmp_path, *preload)
    agents.append(process)
    breakpoints = {"source": {"path": str(tmp_path / "train.py")}, "breakpoints": [{"line": 3}]}
    sessions = selectors.DefaultSelector()
    wait_debugged(process)
    first = Session(("127.0.0.1", port), {"subProcess": True, "justMyCode": False}, breakpoints)
    sessions.register(first.socket, selectors.EVENT_READ, first)
    followed: list[int] = []
    stopped: list[Session] = []
    until = time.monotonic() + BOUND_S
    while sessions.get_map():
        ready = sessions.select(max(0.0, until - time.monotonic()))
        assert ready, f"no end after {BOUND_S} s: {len(followed)} processes debugged, {len(stopped)} stopped"
        for key, _ in ready:
            session: Session = key.data
            for message in session.messages():
                body = message.get("body") or {}
                if message.get("event") == "debugpyAttach":
                    followed.append(body["subProcessId"])
                    address = (body["connect"]["host"], body["connect"]["port"])
                    child = Session(address, body, breakpoints)
                    sessions.register(child.socket, selectors.EVENT_READ, child)
                elif message.get("event") == "stopped":
                    stopped.append(session)
                    session.request("continue", threadId=body["threadId"])
                elif message.get("event") in ("terminated", "closed") and session.socket.fileno() >= 0:
                    sessions.unregister(session.socket)
                    session.socket.close()
    out, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, err
    assert sorted(line for line in out.splitlines() if "rank" in line) == ["rank 0", "rank 1"]
    assert len(followed) == len(set(map(id, stopped))) == 2
    assert first not in stopped
    assert ("a debugger follows the workers" in err) == bool(preload)
