"""What the kernel reports: OOM kills, core dumps, suspended processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic_agent.agent.failures.kernel import OomWatch, core_note, is_suspended, oom_note


@pytest.mark.parametrize(
    ("cgroup", "path"),
    [
        ("0::/jobs/7\n", "jobs/7/memory.events"),
        ("0::/host/only\n", "memory.events"),
        ("4:memory:/jobs/7\n0::/\n", "memory/jobs/7/memory.oom_control"),
    ],
)
def test_an_oom_kill_is_claimed_only_if_the_counter_rose(tmp_path: Path, cgroup: str, path: str) -> None:
    """Both versions of cgroups, and a container in which only its own part of the tree is visible."""
    own = tmp_path / "own"
    own.write_text(cgroup)
    counter = tmp_path / path
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text("oom 9\noom_kill 5\n")
    watch = OomWatch(str(tmp_path), str(own))
    assert watch.kills() == 0
    watch.begin()
    assert watch.kills() == 0
    counter.write_text("oom 9\noom_kill 7\n")
    assert watch.kills() == 2
    counter.unlink()
    assert watch.kills() == 0


def test_without_evidence_there_is_no_oom_kill(tmp_path: Path) -> None:
    """A process killed by hand, no counter, no kernel log: the note is empty."""
    assert oom_note(1, 0, time.monotonic(), str(tmp_path / "none")) == ""
    assert "2 processes" in oom_note(1, 2, time.monotonic(), str(tmp_path / "none"))


def test_the_line_of_the_kernels_log_names_the_process(tmp_path: Path) -> None:
    """The kernel's log is read record by record; an older kill of another process with this number does not count."""
    log = tmp_path / "kmsg"
    now_us = int(time.monotonic() * 1e6)
    log.write_text(f"3,1,{now_us - 10**9},-;Out of memory: Killed process 77 (old)\n")
    assert oom_note(77, 0, time.monotonic(), str(log)) == ""
    log.write_text(f"3,1,{now_us},-;Memory cgroup out of memory: Killed process 77 (python) total-vm:9kB\n")
    assert "Killed process 77 (python)" in oom_note(77, 0, time.monotonic(), str(log))
    assert oom_note(7, 0, time.monotonic(), str(log)) == ""


@pytest.mark.parametrize(
    ("pattern", "place"), [("core.%p", "core.%p"), ("|/usr/bin/catch %P", "/usr/bin/catch"), ("|", "?")]
)
def test_the_note_of_a_core_names_its_place(tmp_path: Path, pattern: str, place: str) -> None:
    """The pattern of the file's name, or the program to which the kernel pipes the core."""
    path = tmp_path / "core_pattern"
    path.write_text(pattern)
    assert place in core_note(str(path))


def test_a_process_stopped_by_a_signal_is_suspended() -> None:
    """SIGSTOP is visible from outside; a process that has exited is not suspended."""
    process = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert is_suspended(process.pid)
    finally:
        process.kill()
        process.wait()
    assert not is_suspended(process.pid)
    assert not is_suspended(os.getpid())
