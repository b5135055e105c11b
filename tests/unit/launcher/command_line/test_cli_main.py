"""The command line in a program: what main returns and raises, and running a script by its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from elastic_agent.agent.errors import AgentError, Preempted, UsageError, WorkersFailed
from elastic_agent.launcher import cli
from elastic_agent.launcher.cli import Invocation, parse
from elastic_agent.launcher.config.config import LaunchConfig
from elastic_agent.launcher.reporting.printing import Printing


class Api:
    """Replaces `launcher.command`, whose `run_command` runs the job."""

    def __init__(self, error: AgentError | None) -> None:
        self.error = error
        self.calls: list[Invocation] = []

    def run_command(
        self, config: LaunchConfig, argv: tuple[str, ...], title: str, *, as_program: bool, printing: Printing
    ) -> None:
        assert isinstance(as_program, bool)
        self.calls.append(Invocation(config, argv, title, printing))
        if self.error is not None:
            raise self.error


Job = Callable[[AgentError | None], Api]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    def install(error: AgentError | None) -> Api:
        api = Api(error)
        monkeypatch.setitem(sys.modules, "elastic_agent.launcher.command", cast("ModuleType", api))
        return api

    return install


def failed(*, told: bool) -> WorkersFailed:
    error = WorkersFailed("rank 0 failed", cause=None)
    error.reported = told
    return error


def test_main_returns_none_on_success(job: Job, script: str) -> None:
    """`main(args)` runs the job that the arguments ask for and returns None, as torch's does."""
    api = job(None)
    assert cli.main(["--nnodes=1", script, "x"]) is None  # type: ignore[func-returns-value]
    assert api.calls == [parse(["--nnodes=1", script, "x"], {})]


@pytest.mark.parametrize("told", [False, True])
def test_main_raises_as_a_library(job: Job, script: str, told: bool) -> None:
    """`main(args)` raises the very error of the job, and does not exit."""
    error = failed(told=told)
    job(error)
    with pytest.raises(WorkersFailed) as caught:
        cli.main([script])
    assert caught.value is error


def test_main_raises_usage_errors_as_a_library() -> None:
    """A bad argument is an exception too."""
    with pytest.raises(UsageError, match="no script"):
        cli.main([])


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (None, 0, ""),
        (failed(told=True), 1, ""),
        (failed(told=False), 1, "elastic-agent: exit 1: rank 0 failed\n"),
        (Preempted("drained"), 75, "elastic-agent: exit 75: drained\n"),
        (UsageError("beat is 5"), 2, "elastic-agent: exit 2: beat is 5 (see elastic-agent --help)\n"),
    ],
)
def test_the_program_exits_with_the_jobs_status(
    job: Job,
    script: str,
    error: AgentError | None,
    status: int,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`entry` reads this process's arguments, exits with the job's status, and prints an error not printed before."""
    job(error)
    monkeypatch.setattr(sys, "argv", ["elastic-agent", script])
    with pytest.raises(SystemExit) as caught:
        cli.entry()
    assert caught.value.code == status
    assert capsys.readouterr().err == printed


# -- run-path ------------------------------------------------------------------------------------------------------


def run_path(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-u", "-m", "elastic_agent.launcher.in_worker.run_path", *args]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=False, text=True, timeout=60)


def test_run_path_runs_a_script_as_main(tmp_path: Path) -> None:
    """The script is `__main__` and has its own name and arguments; its status is the worker's."""
    path = tmp_path / "s.py"
    path.write_text("import sys; print(__name__, sys.argv, __file__); raise SystemExit(7)")
    done = run_path(str(path), "--x", "y")
    assert (done.returncode, done.stdout) == (7, f"__main__ {[str(path), '--x', 'y']} {path}\n")


def test_run_path_records_an_exception(tmp_path: Path) -> None:
    """The worker exits 1, and the exception is in the error file, in the format of torch's @record."""
    path, error = tmp_path / "s.py", tmp_path / "error.json"
    path.write_text("raise ValueError('boom')")
    done = run_path(str(path), TORCHELASTIC_ERROR_FILE=str(error))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: boom")
    message = json.loads(error.read_text())["message"]
    assert message["message"] == "ValueError: boom"
    assert message["extraInfo"]["py_callstack"].startswith("Traceback")
    assert int(message["extraInfo"]["timestamp"]) > 0
    assert sorted(os.listdir(tmp_path)) == ["error.json", "s.py"]


def test_run_path_shows_the_scripts_exception_even_where_no_file_can_be_written(tmp_path: Path) -> None:
    """stderr has the exception, and a line that the error file cannot be written."""
    path = tmp_path / "s.py"
    path.write_text("raise ValueError('boom')")
    done = run_path(str(path), TORCHELASTIC_ERROR_FILE=str(tmp_path / "no" / "error.json"))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: boom")
    assert "cannot write the error file" in done.stderr
