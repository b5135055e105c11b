"""tests/conftest.py: what the test run itself promises, however it was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TEST_OF_A_CHILD = """\
import signal
import subprocess


def test_child():
    status = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, check=True)
    ignored = int(status.stdout.split()[1], 16)
    assert [s.name for s in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT) if ignored & 1 << s - 1] == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


@pytest.mark.parametrize("flags", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_signals_ignored_by_the_starter_are_not_ignored_by_what_tests_start(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    """As `make test &` and `nohup make test` start it: children get the default action, and Ctrl-C ends the run."""
    (tmp_path / "test_a_child.py").write_text(TEST_OF_A_CHILD)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    pytest_run = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", *flags]
    done = subprocess.run(
        ["/bin/sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh", *pytest_run, str(tmp_path)],
        env={**outside, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
