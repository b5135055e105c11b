"""What tests of workers' output share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_agent.agent.output.log_dirs import JobLogs
from elastic_agent.agent.spec import LogSpec
from support.consoles import Console
from support.rigs.relays import Troubles
from support.rigs.round_logs import Begin


@pytest.fixture
def troubles() -> Troubles:
    return Troubles()


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """A console that is a pipe, [read end, write end]; a test may take an end out and close it itself."""
    ends = list(os.pipe())
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.fixture
def begin(tmp_path: Path, console: Console) -> Iterator[Begin]:
    """Makes job logs below `tmp_path/logs`, with `console` as their console."""
    made: list[JobLogs] = []

    def _begin(run_id: str = "job", **kwargs: object) -> JobLogs:
        spec = LogSpec(**({"base_dir": str(tmp_path / "logs")} | kwargs))  # type: ignore[arg-type]
        logs = JobLogs(spec, run_id, stdout_fd=console.fds[0], stderr_fd=console.fds[1])
        made.append(logs)
        return logs

    yield _begin
    for logs in made:
        logs.close()
