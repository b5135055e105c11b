"""The zygote as a process: killed, stopped, slow or in disk wait, it holds up and leaves behind nothing."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_agent.agent.lifecycle.events import NurseryLost, WorkersGone
from elastic_agent.agent.processes.protocol import (
    Exited,
    Preloaded,
    SpawnFailed,
    Started,
)
from support.procfs import settled_files, slowed
from support.rigs.preloaded import CHEAP, Job, children, make, zygote_of

SLEEPER = "import os, time\nprint('up', os.getppid())\ntime.sleep(1000)\n"
SLOW = "import select\nselect.select([], [], [])\n"
"""A module whose import never ends."""


def test_a_killed_zygote_is_replaced(jobs: list[Job], tmp_path: Path) -> None:
    """Running workers go on, and the next ones are forked from another zygote."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    job.start(2)
    pids = [fact.pid for fact in job.until(Started, 2) if isinstance(fact, Started)]
    first = zygote_of(job)
    os.kill(first, signal.SIGKILL)
    job.until(Preloaded)
    assert zygote_of(job) != first
    assert set(pids) <= set(children(job.supervisor._nursery))
    job.supervisor.kill()
    assert [fact.exit_code for fact in job.until(WorkersGone) if isinstance(fact, Exited)] == [-9, -9]
    job.start()
    job.until(Started)
    assert job.forked()


def test_workers_of_a_round_are_forked_at_the_same_time(jobs: list[Job], tmp_path: Path) -> None:
    """Each fork is long with torch in memory: none waits until the one before is there."""
    (tmp_path / "slow_fork.py").write_text(
        "import os, time\n"
        "def note():\n"
        f"    with open({str(tmp_path / 'forks')!r}, 'a') as file:\n"
        "        print(os.getpid(), flush=True, file=file)\n"
        "        time.sleep(2)\n"
        "        print(os.getpid(), flush=True, file=file)\n"
        "os.register_at_fork(after_in_child=note)\n"
    )
    (tmp_path / "script.py").write_text("")
    job = make(jobs, tmp_path, ["script.py"], ("slow_fork",), PYTHONPATH=str(tmp_path))
    job.until(Preloaded)
    assert job.run(2) == [0, 0]
    assert job.forked(), job.reasons()
    # Twice the pid of each: one after the other, they would come in pairs.
    pids = (tmp_path / "forks").read_text().split()
    assert pids[::2] != pids[1::2]


KILLS_ITS_ZYGOTE = """
import os, select
zygote, nursery = os.getpid(), os.getppid()
def kill():
    between = os.getppid()
    if between == zygote:
        return
    os.kill(zygote, 9)
    for pid in {zygote, between} - {nursery}:
        try:
            select.select([os.pidfd_open(pid)], [], [])
        except ProcessLookupError:
            pass
os.register_at_fork(after_in_child=kill)
"""


def test_a_worker_whose_zygote_is_killed_as_it_is_forked_ends_silently(
    jobs: list[Job], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The one that is started in its place runs; of the other there was a traceback on the agent's stderr."""
    (tmp_path / "mod.py").write_text(KILLS_ITS_ZYGOTE)
    (tmp_path / "script.py").write_text("print('ran')\n")
    job = make(jobs, tmp_path, ["script.py"], ["mod"], PYTHONPATH=str(tmp_path))
    job.until(Preloaded)
    assert job.run() == [0]
    assert job.output() == ("ran\n", "")
    assert job.reasons() == ["the process that preloads was killed by signal 9"]
    job.supervisor.close()  # and all that it started has ended
    assert capfd.readouterr().err == ""


def test_a_stopped_zygote_does_not_delay_kill(jobs: list[Job], tmp_path: Path) -> None:
    """kill() ends workers that were requested from a zygote that does not answer."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    job.until(Preloaded)
    os.kill(zygote_of(job), signal.SIGSTOP)
    job.start(2)
    job.supervisor.kill()
    assert [fact.exit_code for fact in job.until(WorkersGone) if isinstance(fact, Exited)] == [-9, -9]


@pytest.fixture
def hold() -> Iterator[Callable[[int], None]]:
    """A function that keeps a process from being reaped by its parent when it is killed, until the end of the test.

    By ptrace(2), PTRACE_SEIZE: a traced process that was killed is its parent's to wait for only after its tracer has
    waited. To the parent that is what disk wait is: SIGKILL was sent, and the process stays.
    """
    libc, held = ctypes.CDLL(None, use_errno=True), []
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def seize(pid: int) -> None:
        if libc.ptrace(0x4206, pid, None, None) != 0:
            pytest.skip(f"this host forbids ptrace: {os.strerror(ctypes.get_errno())}")
        held.append(pid)

    yield seize
    for pid in held:
        os.kill(pid, signal.SIGKILL)
        while not os.WIFEXITED(status := os.waitpid(pid, 0x40000000)[1]) and not os.WIFSIGNALED(status):
            libc.ptrace(7, pid, None, None)


def test_a_zygote_in_disk_wait_does_not_stall_the_nursery(
    jobs: list[Job], tmp_path: Path, hold: Callable[[int], None]
) -> None:
    """Workers that were requested from it are killed, and the next are started, although SIGKILL does not end it."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    job.until(Preloaded)
    zygote = zygote_of(job)
    hold(zygote)
    os.kill(zygote, signal.SIGSTOP)
    job.start(2)
    job.supervisor.kill()
    assert [fact.exit_code for fact in job.until(WorkersGone) if isinstance(fact, Exited)] == [-9, -9]
    assert zygote in children(job.supervisor._nursery), "it was to be there still"
    job.start()
    job.until(Started)


@pytest.mark.parametrize("how", ["signal", "kill"])
def test_a_worker_that_waits_for_a_slow_import_can_be_stopped(how: str, jobs: list[Job], tmp_path: Path) -> None:
    """An order to stop does not wait for the import: the worker is started plainly, and gets the signal."""
    (tmp_path / "script.py").write_text(SLEEPER)
    (tmp_path / "slow.py").write_text(SLOW)
    job = make(jobs, tmp_path, ["script.py"], ["slow"])
    job.start(2)
    if how == "signal":
        job.supervisor.signal(signal.SIGTERM)
    else:
        job.supervisor.kill()
    exits = [fact.exit_code for fact in job.until(WorkersGone) if isinstance(fact, Exited)]
    assert exits == [-15, -15] if how == "signal" else [-9, -9]


def test_orders_given_while_workers_are_forked_reach_them(jobs: list[Job], tmp_path: Path) -> None:
    """SIGTERM right behind the start ends each of a hundred workers, however far its start has come."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    job.until(Preloaded)
    for at in range(50):
        job.start(2)
        if at % 2:
            job.until(Started, at % 3)
        job.supervisor.signal(signal.SIGTERM)
        exits = [fact.exit_code for fact in job.until(WorkersGone) if isinstance(fact, Exited)]
        assert exits == [-15, -15]
    assert job.forked()


def test_a_forked_worker_that_cannot_start_is_reported_with_the_reason(jobs: list[Job], tmp_path: Path) -> None:
    """If the working directory was removed meanwhile, SpawnFailed gives the reason, as after a plain start."""
    (tmp_path / "script.py").write_text(SLEEPER)
    here = tmp_path / "here"
    here.mkdir()
    job = make(jobs, here, [str(tmp_path / "script.py")], CHEAP)
    job.until(Preloaded)
    here.rmdir()
    job.supervisor.start([job.launch(0, {"RANK": "0"})])
    facts = job.until(WorkersGone)
    assert [type(fact) for fact in facts] == [SpawnFailed, WorkersGone]
    assert "No such file or directory" in str(facts[0])


@pytest.mark.parametrize("victim", ["nursery", "agent"])
def test_nothing_outlives_the_nursery(victim: str, jobs: list[Job], tmp_path: Path) -> None:
    """The zygote and the workers forked from it end with the nursery, whether it is killed or closed."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    job.start(2)
    pids = [fact.pid for fact in job.until(Started, 2) if isinstance(fact, Started)] + [zygote_of(job)]
    watched = [os.pidfd_open(pid) for pid in pids]
    if victim == "nursery":
        os.kill(job.supervisor._nursery, signal.SIGKILL)
        job.until(NurseryLost)
    else:
        job.supervisor.close()
    until = time.monotonic() + slowed(1.0)
    for fd in watched:
        assert select.select([fd], [], [], max(0.0, until - time.monotonic()))[0], "alive after a second"
        os.close(fd)


def test_restarts_leave_no_descriptor_and_no_process_behind(jobs: list[Job], tmp_path: Path) -> None:
    """After 100 rounds nursery and zygote have as many descriptors and children as after the first."""
    (tmp_path / "script.py").write_text("")
    job = make(jobs, tmp_path, ["script.py"], CHEAP)
    counts = []
    for _ in range(100):
        assert job.run(2) == [0, 0]
        pids = (job.supervisor._nursery, zygote_of(job))
        counts.append([settled_files(pid) for pid in pids])
    assert counts[0] == counts[-1]
    assert children(job.supervisor._nursery) == [zygote_of(job)]
    assert children(zygote_of(job)) == []
    assert job.forked()


def test_without_preload_there_is_no_zygote(jobs: list[Job], tmp_path: Path) -> None:
    """Then the worker is the nursery's only child."""
    (tmp_path / "script.py").write_text(SLEEPER)
    job = make(jobs, tmp_path, ["script.py"])
    job.start()
    [started] = [fact.pid for fact in job.until(Started) if isinstance(fact, Started)]
    assert children(job.supervisor._nursery) == [started]
