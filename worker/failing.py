"""The end of a rank that failed: at once, and with its cause where the launcher reads it."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def fail_together(log: logging.Logger, rank: int) -> Iterator[None]:
    """An exception inside ends this process with status 1, without waiting for threads, children or process groups."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, this rank ends
        text = traceback.format_exc()
        log.error("rank %d failed: %s", rank, text)
        if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
            Path(path).write_text(json.dumps(_error_file(error, text)))
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _error_file(error: Exception, text: str) -> dict[str, object]:
    """The form that torchrun's `record` writes (torch 2.13, `ErrorHandler.record_exception`)."""
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    return {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
