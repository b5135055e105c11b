"""Stacks of processes that stand still: by py-spy, by the worker library, by signal."""

from __future__ import annotations

import os
import re
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastic_agent.control.actions import stacks
from elastic_agent.control.actions.stacks import ProcessStack, dump, py_spy, stacks_of
from support.rigs.watched import child


def test_stacks_name_the_odd_rank_first(tmp_path: Path) -> None:
    """Three of four wait at one place; the fourth comes first, and the file holds all stacks."""
    if not py_spy():
        pytest.skip("py-spy is not installed")
    body = "print('up', flush=True); time.sleep(60)"
    waits = f"def all_reduce(): {body}\ndef load_data(): {body}\n"
    codes = [f"{waits}{'load_data' if rank == 2 else 'all_reduce'}()" for rank in range(4)]
    with ExitStack() as stack:
        processes = [stack.enter_context(child(code, "r", RANK=str(rank))) for rank, code in enumerate(codes)]
        line = dump([process.pid for process in processes], str(tmp_path / "stacks"))
    [file] = (tmp_path / "stacks").iterdir()
    assert line.startswith(f"stacks in {file}: rank 2 (pid {processes[2].pid}) in load_data (<string>:"), line
    assert "; rank 0 (pid" in line
    text = file.read_text()
    assert text.count("Thread ") == 4 + 2
    assert text.count(", with native frames\n") == 2
    assert re.search(r"\(libc[^)]*\)", text.partition("with native frames")[2])


@pytest.mark.parametrize("refused", [False, True], ids=["two", "no thread"])
def test_stacks_are_taken_of_as_many_processes_at_a_time_as_there_are_processors(
    monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    """And one after another where this host refuses a thread."""
    met = threading.Barrier(1 if refused else 2)

    def take(pid: int, *_: str) -> ProcessStack:
        met.wait(30)
        return ProcessStack(f"pid {pid}", "", "here", "here", pid)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(stacks, "take", take)
    if refused:
        monkeypatch.setattr(threading.Thread, "start", start)
    [group] = stacks_of([3, 4, 5, 6]).groups
    assert [each.pid for each in group] == [3, 4, 5, 6]


def test_without_py_spy_the_worker_library_answers_with_its_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By faulthandler, in a thread of its own: the main thread waits in C."""
    monkeypatch.setattr("elastic_agent.control.actions.stacks.py_spy", lambda: "")
    path = str(tmp_path / "ask")
    code = f"from elastic_agent.worker.loop.answers import answer\nanswer({path!r})\n"
    code += "def waits(): print('up', flush=True); time.sleep(60)\nwaits()"
    with child(code, "library", RANK="3") as process:
        found = stacks_of([process.pid], "", {process.pid: path})
        assert process.poll() is None
    assert re.fullmatch(r"rank 3 \(pid \d+\) in waits \(<string>:4\)", found.summary), found.summary


def test_without_py_spy_the_process_is_asked_by_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """faulthandler writes the stack where the script said, and the process goes on."""
    monkeypatch.setattr("elastic_agent.control.actions.stacks.py_spy", lambda: "")
    code = "import faulthandler, signal; faulthandler.register(signal.SIGUSR2)\nprint('up', flush=True)\n"
    code += "def waits():\n    while True: time.sleep(0.05)\nwaits()"
    with child(code, "registered") as process:
        line = dump([process.pid], str(tmp_path), "SIGUSR2")
        assert process.stderr is not None
        assert "most recent call first" in process.stderr.readline()
        assert process.poll() is None
    assert line.endswith("in its own log, by SIGUSR2")


def test_a_signal_that_would_end_the_process_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process without a handler is described by the kernel, and is alive afterwards."""
    monkeypatch.setattr("elastic_agent.control.actions.stacks.py_spy", lambda: "")
    with child("print('up', flush=True); time.sleep(60)", "bare") as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        line = dump([process.pid], str(tmp_path), "SIGUSR2")
        assert process.poll() is None
    assert f"pid {process.pid} in status: T (stopped)" in line
