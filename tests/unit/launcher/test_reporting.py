"""The last line and the lines before it: the status, the reason once, and a long error cut where it can be read."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_agent.agent.errors import StoreLost, UsageError
from elastic_agent.agent.lifecycle import events
from elastic_agent.agent.lifecycle.state import Node, Phase, Verdict
from elastic_agent.agent.report import Report, is_routine
from elastic_agent.launcher.reporting import last_line
from elastic_agent.rendezvous.failures import WorkerFailure
from elastic_agent.rendezvous.records import Outcome

RUN_S = 60
STOPPED = "the agent was stopped by signal 15"


def failed(message: str) -> Report:
    cause = WorkerFailure("here:7", "here", 3, 1, 9, 1, message)
    because = f"the job failed: worker failed: {cause}; no restarts are left there"
    return Report(Verdict(1, because, Outcome.FAILED, cause))


def test_the_last_line_keeps_all_but_the_end_of_a_long_error() -> None:
    """Which worker failed, where, and what follows from it are there whatever the worker wrote."""
    line = last_line.of_report(failed("ValueError: " + "much too long, " * 60))
    assert line.startswith(
        "elastic-agent: exit 1: the job failed: worker failed: rank 3 (local rank 1, pid 9) on here:7"
    )
    assert line.endswith("much too long, ...; no restarts are left there")
    assert len(line) < 600
    assert "ValueError: short; no restarts" in last_line.of_report(failed("ValueError: short"))


def test_an_error_before_the_job_is_a_last_line_too() -> None:
    """Only a mistake of the user's is sent to --help."""
    assert last_line.of_error(StoreLost("no store")) == "elastic-agent: exit 80: no store"
    assert last_line.of_error(UsageError("beat is 5")).endswith("exit 2: beat is 5 (see elastic-agent --help)")


WORKING = Node(Phase.WORKING)


def test_the_sentence_of_the_verdict_is_routine() -> None:
    """Every other sentence about a node that stops is not."""
    event = events.SignalReceived(15)
    stopping = Node(Phase.STOPPING, because=STOPPED, verdict=Verdict(143, STOPPED))
    assert is_routine(event, WORKING, stopping)
    assert not is_routine(
        event, WORKING, Node(Phase.STOPPING, because="workers are killed now", verdict=Verdict(143, STOPPED))
    )
    assert not is_routine(event, WORKING, Node(Phase.STOPPING, because=STOPPED))


def test_a_stopped_agent_gives_its_reason_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last line, and not in a status line before it too."""
    (tmp_path / "script.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    monkeypatch.delenv("LOGLEVEL", raising=False)
    process = subprocess.Popen(
        [sys.executable, "-m", "elastic_agent", str(tmp_path / "script.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=RUN_S)
    assert process.returncode == 143
    assert "stopping this node's workers; SIGKILL after 30 s" in err
    assert err.count(STOPPED) == 1
    assert err.endswith(f"elastic-agent: exit 143: {STOPPED}\n")


@pytest.mark.parametrize("repeats", [1, 50])
def test_an_error_is_in_the_last_line_once(repeats: int, tmp_path: Path) -> None:
    """The worker's error file and the evidence for the cause have the same error, shortened there if it is long."""
    (tmp_path / "script.py").write_text(f"raise ValueError('boom' + ' again' * {repeats - 1})")
    command = [sys.executable, "-m", "elastic_agent", "--run-path", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.count("ValueError: boom") == 1
    assert last.endswith(
        "boom; no restarts are left there" if repeats == 1 else "again ...; no restarts are left there"
    )
