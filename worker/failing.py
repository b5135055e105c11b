"""The end of a rank that failed: at once, and with its cause where the launcher reads it."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

Log = Any
"""A logging.Logger, or an adapter of one."""

_INTERRUPTED = 128 + 2
"""The exit status of a process that SIGINT has ended, as shells say it."""
_TELL_S = 5.0
"""A console that takes nothing, a pipe that nobody reads for example, holds the end up no longer."""


@contextmanager
def fail_together(log: Log, rank: int) -> Iterator[None]:
    """An exception inside ends this process at once, without waiting for threads, children or process groups: with
    status 1, with 130 for KeyboardInterrupt, and with that of `sys.exit` where it is not 0."""
    try:
        yield
    except SystemExit as end:
        if end.code:
            _end(log, rank, end)
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is, this rank ends
        _end(log, rank, error)


def end_when_uncaught(log: Log, rank: int, size: int) -> None:
    """The same for an exception that nobody catches, from now on, where there are other ranks.

    A generator cannot see it: it is closed by an exception of the loop's body as it is by a `break`, and while it is
    closed, `sys.exc_info` is empty. Nor should it, as the script may catch the exception. So the interpreter's hook
    does it, before the interpreter waits for threads and loader processes; `finally` clauses have run by then.
    """
    before = sys.excepthook
    if size == 1 or isinstance(before, _Hook):
        return
    sys.excepthook = _Hook(before, log, rank)


class _Hook:
    """In the place of `sys.excepthook`."""

    def __init__(self, before: Callable[..., Any], log: Log, rank: int) -> None:
        self._before, self._log, self._rank, self._pid = before, log, rank, os.getpid()

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # A process that the script forks is no rank, and its end is not the rank's.
        if isinstance(error, (Exception, KeyboardInterrupt)) and os.getpid() == self._pid:
            _end(self._log, self._rank, error)
        self._before(kind, error, trace)


def _end(log: Log, rank: int, error: BaseException) -> None:
    def tell() -> None:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        # torch's `record`, where the script uses it, has written the file already.
        if not (os.path.exists(path) and os.path.getsize(path)):
            write_cause(log, rank, f"{type(error).__name__}: {error}", text)
        log.error("rank %d failed: %s", rank, text)

    end_process(_status(error), tell)


def end_process(status: int, tell: Callable[[], None]) -> NoReturn:
    """Ends this process with this status once `tell` has said why, and waits for nothing else: no thread, child or
    process group, and no console that takes nothing."""
    try:
        at_the_latest = threading.Timer(_TELL_S, os._exit, (status,))
        at_the_latest.daemon = True
        at_the_latest.start()
        tell()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _status(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code & 0xFF or 1  # 256 must not look like success
    return 1


def write_cause(log: Log, rank: int, message: str, text: str) -> None:
    """Into the launcher's error file, where it names one, in the form that torchrun's `record` writes (torch 2.13,
    `ErrorHandler.record_exception`). text: the traceback."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    try:
        if path:
            Path(path).write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))
    except OSError as unwritten:  # the disk is full
        log.error("rank %d cannot write why it ends: %s", rank, unwritten)
