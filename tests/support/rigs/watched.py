"""Processes that watches look at, and how long a test waits for one to fire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from elastic_agent.control.decisions.watches import Reading, ReadingResult
from elastic_agent.control.readings.reader import Reader
from elastic_agent.control.table.parse import parse_table
from elastic_agent.control.table.watch import Watch
from support.procfs import kill_and_read

LOOK_S = 0.02
WAIT_S = 60.0
"""Only a failing test waits so long. A store of c10d is there once its host has imported torch."""


def watch(what: str, **keys: object) -> Watch:
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in {"what": what, **keys}.items())
    return parse_table(f"[[watch]]\n{text}", "w.toml").watches[0]


@contextmanager
def child(code: str, name: str, *more: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process whose command line holds `name`, once it has printed a line. Killed at the end."""
    head = "import os, sys, time, mmap, tempfile\n"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{head}{code}", name, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    try:
        yield process
    finally:
        kill_and_read(process)


def until(reader: Reader, wanted: ReadingResult) -> Reading:
    """Look on and on until a reading is the wanted one."""
    deadline = time.monotonic() + WAIT_S
    while (reading := reader.read(time.monotonic())).verdict is not wanted:
        assert time.monotonic() < deadline, reading
        time.sleep(LOOK_S)
    return reading
