"""The end of a rank that failed: at once, and with its cause where the launcher reads it."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

Log = Any
"""A logging.Logger, or an adapter of one."""


@contextmanager
def fail_together(log: Log, rank: int) -> Iterator[None]:
    """An exception inside ends this process with status 1, without waiting for threads, children or process groups."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, this rank ends
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
        self._before, self._log, self._rank = before, log, rank

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            _end(self._log, self._rank, error)
        self._before(kind, error, trace)


def _end(log: Log, rank: int, error: Exception) -> None:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    log.error("rank %d failed: %s", rank, text)
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    try:
        # torch's `record`, where the script uses it, has written the file already.
        if path and not (os.path.exists(path) and os.path.getsize(path)):
            Path(path).write_text(json.dumps(_error_file(error, text)))
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as unwritten:  # the disk is full, or nobody reads any more
        log.error("rank %d cannot write why it failed: %s", rank, unwritten)
    finally:
        os._exit(1)


def _error_file(error: Exception, text: str) -> dict[str, object]:
    """The form that torchrun's `record` writes (torch 2.13, `ErrorHandler.record_exception`)."""
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    return {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
