"""--startup-window and the ready file, in a whole job: a failure in start-up is reported as one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
if sys.argv[1] == "ready":
    open(os.environ["ELASTIC_AGENT_READY_FILE"], "w").close()
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("flags", "how", "startup"),
    [
        ((), "early", True),
        ((), "ready", False),
        (("--startup-window", "0"), "early", False),
    ],
)
def test_the_summary_marks_a_failure_in_start_up(
    tmp_path: Path, flags: tuple[str, ...], how: str, startup: bool
) -> None:
    """In its block and in the last line, unless the script had reported that it is ready or --startup-window is 0."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "elastic_agent", "--standalone", "--log-dir", str(tmp_path / "logs"), *flags]
    done = subprocess.run([*command, str(script), how], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert ("\n  stage     : start-up\n" in done.stderr) is startup
    assert ("exit code 3 in its start-up" in done.stderr.splitlines()[-1]) is startup
