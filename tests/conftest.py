"""What every test gets: the checkout as `elastic_agent`, here and in its child processes, and a leak check.

A test that leaves a process, thread, descriptor or another signal handler behind fails, even where all it asserted
held: an agent that leaks is broken, and the next test would pay for it. `@pytest.mark.leaves_behind("why")` excuses
one.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from support.consoles import Console
from support.procfs import TOKEN, read, wait_exit

ROOT = Path(__file__).resolve().parent.parent
LINKS = ROOT / ".typing"

SETTLE_S = 5.0
"""How long what a test started may take to end by itself after the test. Only a test about to fail waits so long."""

SPARE_FILES = 2
"""Ordinary files that a test may leave open: libraries keep some from their first use. Sockets, pipes, pidfds: none."""

STANDING_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""Processes that the standard library starts once, by design, and ends with the interpreter."""

FAILED = pytest.StashKey[bool]()
"""Whether the test's own body failed."""

UV_PIPES: set[str] = set()
"""libuv, on which torch's store runs, keeps one pipe for its signals from its first use to the end of the process."""


def pytest_configure(config: pytest.Config) -> None:
    """Make this checkout importable as `elastic_agent`, by tests and by the processes that they start."""
    LINKS.mkdir(exist_ok=True)
    link = LINKS / "elastic_agent"
    if not link.is_symlink():
        try:
            link.symlink_to("..")
        except FileExistsError:
            pass  # another pytest worker made it at the same moment
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(LINKS)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(LINKS), *inherited])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if a process, thread or descriptor that it started is still there when all else is torn down."""
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    os.environ[TOKEN] = token  # not by monkeypatch: what a test patched must be undone before this looks
    threads, descriptors, children = set(threading.enumerate()), _descriptors(), _child_pids()
    handlers = _handlers()
    yield
    if request.node.get_closest_marker("leaves_behind"):
        return
    failed = request.node.stash.get(FAILED, False)
    deadline = time.monotonic() + (0 if failed else SETTLE_S)
    leaks = [
        *_leaked_processes(lambda: (_child_pids() - children) | _marked_pids(token), deadline),
        *_leaked_threads(threads, deadline),
        *_leaked_descriptors(descriptors, deadline),
        *_changed_handlers(handlers),
    ]
    if leaks and not failed:  # a failed test's traceback keeps alive what the test had in hand
        pytest.fail("left behind by this test:\n  " + "\n  ".join(leaks), pytrace=False)


def _leaked_processes(find: Callable[[], set[int]], deadline: float) -> list[str]:
    """Describe those that are still there at the deadline, and kill them so that they spoil no other test."""
    pids = find()
    if pids:
        gc.collect()  # a Popen that nobody holds reaps its dead child when it goes
        for pid in pids:
            wait_exit(pid, deadline)
        pids = find()
    leaks = [f"process {pid}: {_command(pid)}" for pid in sorted(pids)]
    for pid in pids:
        _kill(pid)
    return leaks


def _leaked_threads(before: set[threading.Thread], deadline: float) -> list[str]:
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, deadline - time.monotonic()))
    return sorted(f"thread {thread.name}" for thread in set(threading.enumerate()) - before)


def _leaked_descriptors(before: dict[int, str], deadline: float) -> list[str]:
    """Those still there at the deadline. gRPC closes its own on threads of its own, after the last channel is gone,
    and nothing tells when."""
    while (leaks := _open_descriptors(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return leaks


def _open_descriptors(before: dict[int, str]) -> list[str]:
    """New descriptors, after a garbage collection, that are not among the ordinary files one may leave."""
    leaked = _new_descriptors(before)
    if leaked:
        gc.collect()
        leaked = _new_descriptors(before)
    for target in leaked.values():
        if not UV_PIPES and "torch" in sys.modules and list(leaked.values()).count(target) == 2:
            UV_PIPES.add(target)
    leaked = {fd: target for fd, target in leaked.items() if target not in UV_PIPES}
    files = [fd for fd, target in leaked.items() if target.startswith("/")]
    if len(files) <= SPARE_FILES:
        leaked = {fd: target for fd, target in leaked.items() if fd not in files}
    return [f"descriptor {fd}: {target}" for fd, target in sorted(leaked.items())]


def _handlers() -> dict[signal.Signals, object]:
    """What this process does on each signal. What it ignores, every process that a later test starts ignores too."""
    return {signum: signal.getsignal(signum) for signum in signal.Signals}


def _changed_handlers(before: dict[signal.Signals, object]) -> list[str]:
    """Describe the signals that are handled in another way than before the test."""
    now = _handlers()
    return [f"handling of {s.name}: {now[s]}, was {before[s]}" for s in before if now[s] != before[s]]


def _new_descriptors(before: dict[int, str]) -> dict[int, str]:
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    standing = getattr(tracker, "_fd", None)  # see STANDING_HELPERS
    return {fd: target for fd, target in _descriptors().items() if before.get(fd) != target and fd != standing}


def _descriptors() -> dict[int, str]:
    """This process's open descriptors and what each stands for."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass  # the listing's own descriptor, or another thread's
    return found


def _child_pids() -> set[int]:
    """Children of this process, zombies too: a test that does not reap is a test that leaks."""
    pids: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            pids.update(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
        except FileNotFoundError:
            pass  # the thread has ended; its children are listed under another
    return {pid for pid in pids if not _is_standing_helper(pid)}


def _marked_pids(token: str) -> set[int]:
    """Processes anywhere that were started under this test's token. A zombie has no environment and is not seen."""
    mark = f"{TOKEN}={token}\0".encode()
    pids = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and mark in read(f"/proc/{name}/environ") and not _is_standing_helper(int(name)):
            pids.add(int(name))
    return pids


def _is_standing_helper(pid: int) -> bool:
    command = read(f"/proc/{pid}/cmdline")
    return any(helper in command for helper in STANDING_HELPERS)


def _command(pid: int) -> str:
    return read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip() or "(zombie, not reaped)"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass  # gone at last


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """In the place of the agent's own."""
    console = Console(tmp_path)
    yield console
    console.close()
