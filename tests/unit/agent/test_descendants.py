"""What the nursery finds below it, with real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from ctypes import CDLL

import pytest

from elastic_agent.agent.nursery.descendants import Descendants


@pytest.fixture
def alive() -> Iterator[int]:
    """A child that runs until it is killed."""
    if not (pid := os.fork()):
        while True:
            signal.pause()
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_what_a_child_leaves_as_it_exits_is_not_overlooked(alive: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is in the list, and exits before it is reaped: its own child, ours by then, is in the next list."""
    if not (parent := os.fork()):
        os._exit(0)
    os.waitid(os.P_PID, parent, os.WEXITED | os.WNOWAIT)
    found = Descendants(CDLL(None))
    lists = iter([[parent], [alive]])
    monkeypatch.setattr(found, "children", lambda: next(lists, [alive]))
    assert found.reap(kept=()) is True
    with pytest.raises(ChildProcessError):
        os.waitpid(parent, os.WNOHANG)


def test_kept_children_stay_zombies(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (kept := os.fork()):
        os._exit(3)
    os.waitid(os.P_PID, kept, os.WEXITED | os.WNOWAIT)
    found = Descendants(CDLL(None))
    monkeypatch.setattr(found, "children", lambda: [kept])
    assert found.reap(kept={kept}) is False
    assert os.waitstatus_to_exitcode(os.waitpid(kept, 0)[1]) == 3
