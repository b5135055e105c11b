"""Stops one thread of another process while its other threads run, as a call on a dead file server does."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
"""Requests of ptrace(2)."""
_ALL_CHILDREN = 0x40000000
"""`__WALL` of waitpid(2): also threads."""


def _ptrace(request: int, tid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_ulong, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, tid, None, None) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace request {request:#x} for thread {tid}: {os.strerror(number)}")


@contextmanager
def main_thread_stopped(pid: int) -> Iterator[None]:
    """Within the block the main thread of the process `pid` does nothing, and its other threads run on: unlike SIGSTOP,
    ptrace stops a thread and not its process. The process may be killed within the block. Raises OSError where ptrace
    is not permitted."""
    _ptrace(_SEIZE, pid)
    _ptrace(_INTERRUPT, pid)
    os.waitpid(pid, _ALL_CHILDREN)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it was killed
            _ptrace(_DETACH, pid)


@cache
def why_unavailable() -> str:
    """Why no thread can be stopped here; empty: it can."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            with main_thread_stopped(child.pid):
                return ""
        except OSError as error:
            return f"PTRACE IS NOT PERMITTED HERE ({error}), so agents whose loop stands still are NOT TESTED"
        finally:
            child.kill()
