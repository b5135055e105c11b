"""What every test gets: the checkout as `elastic_agent`, default signals for its child processes, and a leak check.

A test that leaves a process, thread or descriptor behind, or changes how a signal is handled, fails even where all its
assertions held: an agent that leaks is broken, and the next test would be disturbed.
`@pytest.mark.leaves_behind("why")` excuses a test.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import FrameType

import pytest

from support.consoles import Console
from support.procfs import TOKEN, kill, marked, outlast, read

ROOT = Path(__file__).resolve().parent.parent
LINKS = ROOT / ".typing"

SETTLE_S = 20.0
"""How long processes and threads may take to end by themselves after the test, on a busy host too. Only a failing test
waits so long."""

SPARE_FILES = 2
"""Ordinary files that a test may leave open: libraries keep some from their first use. Sockets, pipes, pidfds: none."""

STANDING_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""Processes that the standard library starts once, by design, and ends with the interpreter."""

TEAR_DOWN_S = float(os.environ.get("TEAR_DOWN_S", "60"))
"""How long the tear-down of a test may take."""

OVERTIME_S = TEAR_DOWN_S
"""How long a test may take beyond its timeout and that of its tear-down, before the process ends."""

FAILED = pytest.StashKey[bool]()
"""Whether the test's own body failed."""

STDERR = pytest.StashKey[int]()
"""The run's own stderr, which pytest puts aside while a test runs."""

UV_PIPES: set[str] = set()
"""libuv, on which torch's store runs, keeps one pipe for its signals from its first use to the end of the process."""


def pytest_configure(config: pytest.Config) -> None:
    """Prepare this process, the controller or a worker of pytest-xdist, for the processes that tests start."""
    config.stash[STDERR] = os.dup(2)
    _import_the_checkout()
    _stop_ignoring_signals()


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import and collect without looks for garbage, and leave what stays to the end out of all later ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Bound the tear-down: pytest-timeout interrupts nothing after the first failure of a test."""
    before = signal.signal(signal.SIGALRM, _interrupt_the_tear_down)
    signal.setitimer(signal.ITIMER_REAL, TEAR_DOWN_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _interrupt_the_tear_down(signum: int, frame: FrameType | None) -> None:
    pytest.fail(f"the tear-down did not end within {TEAR_DOWN_S:g} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """End the process, with the stacks of all its threads, where a test waits in the kernel after all its timeouts.

    pytest-xdist names the test, starts another process, and plays the tests of that file again. Not by faulthandler's
    own timer: a process that a test forks could not use it (its thread is awaited there for ever).
    """
    marker = item.get_closest_marker("timeout")
    timeout_s = float(marker.args[0] if marker else item.config.getini("timeout") or 0)
    timer = threading.Timer(timeout_s + TEAR_DOWN_S + OVERTIME_S, _end_process, [item.config.stash[STDERR]])
    timer.daemon = True
    if timeout_s:
        timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()
        if timeout_s:
            timer.join()


def _end_process(stderr: int) -> None:
    faulthandler.dump_traceback(stderr)
    os._exit(1)


def _import_the_checkout() -> None:
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


def _stop_ignoring_signals() -> None:
    """Start every process of every test with the default action of SIGINT, SIGQUIT and SIGHUP.

    A shell ignores the first two in what it starts in the background, nohup ignores the third, and an ignored signal
    stays ignored in every process below: agents and workers under test would not react to it.
    """
    ignored = {signum for signum in signal.Signals if signal.getsignal(signum) is signal.SIG_IGN}
    if signal.SIGINT in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C ends the test run, its reports written
    if signal.SIGQUIT in ignored:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.SIGHUP in ignored or "PYTEST_XDIST_WORKER" in os.environ:  # whose controller may run under nohup
        signal.signal(signal.SIGHUP, _survive_a_hangup)


def _survive_a_hangup(signum: int, frame: FrameType | None) -> None:
    """Handle SIGHUP by doing nothing: exec gives a child the default action in place of a handler."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if a process, thread or descriptor that it started is still there when all else is torn down."""
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    os.environ[TOKEN] = token  # not by monkeypatch: a test's patches must be undone before this fixture checks
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
    if leaks and not failed:  # a failed test's traceback keeps its local variables alive
        pytest.fail("left behind by this test:\n  " + "\n  ".join(leaks), pytrace=False)


def _leaked_processes(find: Callable[[], set[int]], deadline: float) -> list[str]:
    """Describe the processes still alive at the deadline, and kill them so that they disturb no other test."""
    pids = find()
    if pids:
        gc.collect()  # an unreferenced Popen reaps its child when it is collected
        pids = outlast(find, deadline)
    leaks = [f"process {pid}: {_command(pid)}" for pid in sorted(pids)]
    for pid in pids:
        kill(pid)
    return leaks


def _leaked_threads(before: set[threading.Thread], deadline: float) -> list[str]:
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, deadline - time.monotonic()))
    return sorted(f"thread {thread.name}" for thread in set(threading.enumerate()) - before)


def _leaked_descriptors(before: dict[int, str], deadline: float) -> list[str]:
    """Descriptors still open at the deadline. gRPC closes some on its own threads, at an unknown time after the last
    channel was closed."""
    while (leaks := _open_descriptors(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return leaks


def _open_descriptors(before: dict[int, str]) -> list[str]:
    """New descriptors, after a garbage collection, less the ordinary files that a test may leave open."""
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
    """What this process does on each signal. A signal it ignores is ignored by every process that a test starts.

    SIGALRM is the timeouts' own, of the test and of its tear-down.
    """
    return {signum: signal.getsignal(signum) for signum in signal.Signals if signum != signal.SIGALRM}


def _changed_handlers(before: dict[signal.Signals, object]) -> list[str]:
    """Describe the signals that are handled in another way than before the test."""
    now = _handlers()
    return [f"handling of {s.name}: {now[s]}, was {before[s]}" for s in before if now[s] != before[s]]


def _new_descriptors(before: dict[int, str]) -> dict[int, str]:
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    standing = getattr(tracker, "_fd", None)  # see STANDING_HELPERS
    return {fd: target for fd, target in _descriptors().items() if before.get(fd) != target and fd != standing}


def _descriptors() -> dict[int, str]:
    """This process's open descriptors and what each refers to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass  # the listing's own descriptor, or another thread's
    return found


def _child_pids() -> set[int]:
    """Children of this process, zombies included: a child that is not reaped is a leak."""
    pids: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            pids.update(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
        except FileNotFoundError:
            pass  # the thread has ended; its children are listed under another thread
    return {pid for pid in pids if not _is_standing_helper(pid)}


def _marked_pids(token: str) -> set[int]:
    """Processes of this host with this test's token in their environment."""
    return {pid for pid in marked(token) if not _is_standing_helper(pid)}


def _is_standing_helper(pid: int) -> bool:
    command = read(f"/proc/{pid}/cmdline")
    return any(helper in command for helper in STANDING_HELPERS)


def _command(pid: int) -> str:
    return read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip() or "(zombie, not reaped)"


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """Files that stand in for the agent's stdout and stderr."""
    console = Console(tmp_path)
    yield console
    console.close()
