"""--startup-window and the ready file, in a whole job: what is reported as a failure in start-up, and what is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = "import os, broken_module\n"
SCRIPT = "import os, sys\nprint('at work', flush=True)\nsys.exit(3)\n"
READY = """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    open(os.environ["ELASTIC_AGENT_READY_FILE"], "w").close()
sys.exit(3)
"""


def last_lines(tmp_path: Path, script: str, *flags: str) -> tuple[str, str]:
    """All that a job with this failing script writes to stderr, and the last line of it."""
    (tmp_path / "broken_module.py").write_text("raise ValueError('no such device')\n")
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "-m", "elastic_agent", "--standalone", "--log-dir", str(tmp_path / "logs"), *flags]
    done = subprocess.run(
        [*command, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    return done.stderr, done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("flags", "startup"), [((), True), (("--startup-window", "0"), False)])
def test_the_summary_marks_a_failure_in_start_up(tmp_path: Path, flags: tuple[str, ...], startup: bool) -> None:
    """In its block and in the last line, where a worker came no further than its imports."""
    err, last = last_lines(tmp_path, BROKEN, *flags)
    assert ("\n  stage     : start-up\n" in err) is startup
    assert ("exit code 1 in its start-up" in last) is startup
    assert "no such device" in err


def test_a_worker_that_has_worked_did_not_fail_in_its_start_up(tmp_path: Path) -> None:
    """The last line has how long after its start it failed, however early that was."""
    err, last = last_lines(tmp_path, SCRIPT)
    assert "start-up" not in err
    assert re.search(r"exit code 3, [\d.]+ s after its start", last)


def test_where_workers_report_that_they_are_ready_one_that_did_not_failed_in_its_start_up(tmp_path: Path) -> None:
    """The first one fails after it was ready, the second before."""
    err, last = last_lines(tmp_path, READY, "--max-restarts", "1")
    assert re.search(r"round 1 is over|worker failed: .* exit code 3, [\d.]+ s after its start", err)
    assert "exit code 3 in its start-up" in last
    assert err.count("stage     : start-up") == 1
