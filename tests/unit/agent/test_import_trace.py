"""The finder that records what a worker imports."""

from __future__ import annotations

import mmap
import os
import sys

import pytest

from elastic_agent.agent.zygote import import_trace
from elastic_agent.agent.zygote.import_trace import ROOM_BYTES, Recorder


@pytest.fixture
def recorder() -> Recorder:
    """One that has not begun."""
    return Recorder(mmap.mmap(-1, ROOM_BYTES), ("/installed/",))


def test_no_trace_of_the_recorder_is_left_after_its_time(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first import after that takes it out of `sys.meta_path`, and leaves `os.environ` as it was."""
    monkeypatch.setattr(import_trace, "LONGEST_S", -1.0)
    finders, methods = list(sys.meta_path), (os._Environ.__setitem__, os._Environ.__delitem__)
    recorder.install()
    assert sys.meta_path[0] is recorder
    assert (os._Environ.__setitem__, os._Environ.__delitem__) != methods
    with pytest.raises(ImportError):
        __import__("no_such_module")
    assert sys.meta_path == finders
    assert (os._Environ.__setitem__, os._Environ.__delitem__) == methods
