"""Reading /proc, and waiting for processes, when a process may exit at any moment."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import AnyStr

ESTABLISHED = b"01"
"""As /proc/net/tcp has it: TCP_ESTABLISHED of the kernel's net/tcp_states.h."""
TOKEN = "ELASTIC_AGENT_TEST"
"""Environment variable that marks a test's processes, so that they are found also after their parents exited."""


def slowed(limit_s: float) -> float:
    """A promise in seconds, which is one of an idle host, on this one as it is now. Where more processes want a
    processor than there are, each takes as much longer, and what goes from one to the next takes twice that."""
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    wanted = max(os.getloadavg()[0], running) / len(os.sched_getaffinity(0))
    return limit_s * (2.0 * wanted if wanted > 1.0 else 1.0)


def read(path: str) -> bytes:
    """The file's content; empty where its process is gone or another user's."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def parent_of(pid: int) -> int:
    """The pid of its parent."""
    return int(read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])


def open_files(pid: int) -> int:
    """How many descriptors it has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def settled_files(pid: int, bound_s: float = 20.0) -> int:
    """How many descriptors a process has open that waits for something to happen, at the latest after the bound: one
    that looks at /proc has another open for a moment."""
    deadline = time.monotonic() + bound_s
    while True:
        before = turns(pid)
        found = open_files(pid)
        if before[0] == b"S" and turns(pid) == before:
            return found
        assert time.monotonic() < deadline, f"process {pid} does not come to rest"
        time.sleep(0.001)


def turns(pid: int) -> tuple[bytes, bytes]:
    """The state of a process, or of a thread by its native id, and how often it has waited."""
    status = read(f"/proc/{pid}/status")
    return status.partition(b"State:\t")[2][:1], status.partition(b"\nvoluntary_ctxt_switches:\t")[2].split()[0]


def connections(pid: int) -> set[tuple[int, int]]:
    """The ports of its established TCP connections: its own, and the other end's."""
    held: set[bytes] = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            held.add(os.readlink(os.fsencode(fd)))
    found = set()
    for line in (read(f"/proc/{pid}/net/tcp") + read(f"/proc/{pid}/net/tcp6")).splitlines():
        words = line.split()
        if words[3] == ESTABLISHED and b"socket:[%s]" % words[9] in held:
            found.add((int(words[1].rpartition(b":")[2], 16), int(words[2].rpartition(b":")[2], 16)))
    return found


def rss_kib(pid: int) -> int:
    """Its resident memory."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


def wait_exit(pid: int, deadline: float) -> None:
    """Wait until a process exits, or until `deadline` on the monotonic clock."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    finally:
        os.close(pidfd)


def outlast(find: Callable[[], set[int]], deadline: float) -> set[int]:
    """What `find` still finds at the deadline, also of what has come meanwhile: what a process forks as it ends, and
    what is handed to this one."""
    found = find()
    while found and time.monotonic() < deadline:
        for pid in found:
            wait_exit(pid, deadline)
        before, found = found, find()
        if found and found == before:
            time.sleep(0.02)  # zombies of ours, which another thread may reap yet
    return found


def kill_and_read(
    process: subprocess.Popen[AnyStr], value: str | None = None, name: str = TOKEN, bound_s: float = 20.0
) -> tuple[AnyStr, AnyStr]:
    """Kill a process, and return what it has written to its two pipes.

    What it started may hold the pipes open for ever, such as a debugger's adapter: after the bound, all processes with
    this variable in their environment, by default this test's token, are killed as well.
    """
    process.kill()
    try:
        return process.communicate(timeout=bound_s)
    except subprocess.TimeoutExpired:
        for pid in marked(os.environ[name] if value is None else value, name):
            kill(pid)
        return process.communicate(timeout=bound_s)


def marked(value: str, name: str = TOKEN) -> set[int]:
    """Processes of this host with this variable in their environment. Zombies have none and are not found."""
    mark = f"{name}={value}\0".encode()
    return {int(pid) for pid in os.listdir("/proc") if pid.isdigit() and mark in read(f"/proc/{pid}/environ")}


def kill(pid: int) -> None:
    """Send SIGKILL, also to a process that may have ended meanwhile."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
