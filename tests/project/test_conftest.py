"""tests/conftest.py: what the test run itself promises, however it was started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
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

TEST_THAT_HANGS = """\
import signal
import threading

import pytest


@pytest.fixture
def hung():
    yield
    {before}
    threading.Event().wait()


def test_first(hung):
    threading.Event().wait()


def test_second():
    pass
"""


def run_pytest(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """On the tests of a folder, with this project's conftest, as a shell starts it in the background."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    pytest_run = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", *flags]
    return subprocess.run(
        ["/bin/sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh", *pytest_run, str(folder)],
        env={**outside, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=folder, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("flags", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_signals_ignored_by_the_starter_are_not_ignored_by_what_tests_start(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    """As `make test &` and `nohup make test` start it: children get the default action, and Ctrl-C ends the run."""
    (tmp_path / "test_a_child.py").write_text(TEST_OF_A_CHILD)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = run_pytest(tmp_path, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.fixture
def run_of_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """What a run does where the body and the tear-down of a test hang, the latter after this statement."""

    def run(before: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("TEAR_DOWN_S", "2.5")
        (tmp_path / "test_that_hangs.py").write_text(TEST_THAT_HANGS.format(before=before))
        (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 2.5\n")
        return run_pytest(tmp_path, "-n", "1", "--dist", "loadfile", "--max-worker-restart", "0")

    return run


def test_a_tear_down_that_hangs_is_interrupted_and_the_others_run(
    run_of_a_hang: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    """The timeout ends the test's body only; the run went on for as long as it was let."""
    done = run_of_a_hang("pass")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed, 1 error" in done.stdout


def test_a_tear_down_that_no_signal_interrupts_ends_the_run_with_its_name_and_stack(
    run_of_a_hang: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    """As one that waits in the kernel."""
    done = run_of_a_hang("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])")
    assert done.returncode == 1, done.stdout + done.stderr
    assert 'test_that_hangs.py", line 11 in hung' in done.stderr
    assert "crashed while running 'test_that_hangs.py::test_first'" in done.stdout
