"""Signals to an agent that still imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.network import free_port

BLOCKING_TYPING = """\
import os, sys
print("importing", flush=True)
sys.stdin.readline()
sys.path.remove(os.path.dirname(__file__))
del sys.modules["typing"]
import typing
"""
"""A module `typing`, which the agent needs, whose import waits for a line on stdin, and then imports the real one."""


@pytest.fixture
def importing(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """An agent in the midst of its imports."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "typing.py").write_text(BLOCKING_TYPING)
    (tmp_path / "job.py").write_text("print('trained', flush=True)\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path / 'slow'}{os.pathsep}{os.environ['PYTHONPATH']}"}
    flags = ["--standalone", "--log-dir", os.devnull, "--forward-signals", "usr1"]
    with subprocess.Popen(
        [sys.executable, "-m", "elastic_agent", *flags, str(tmp_path / "job.py")], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as agent:  # fmt: skip
        assert agent.stdout is not None
        assert agent.stdout.readline() == "importing\n"
        yield agent
        agent.kill()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_during_the_imports_ends_in_the_documented_way(
    importing: subprocess.Popen[str], signum: signal.Signals
) -> None:
    """Handlers are installed from the first line on: the agent prints one line and exits with 128+n at once."""
    importing.send_signal(signum)
    out, err = importing.communicate(timeout=20)
    assert importing.returncode == 128 + signum
    because = f"the agent was stopped by signal {signum} before it started anything"
    assert err == f"elastic-agent: exit {128 + signum}: {because}\n"
    assert out == ""


def test_a_forwarded_signal_during_the_imports_ends_nothing(importing: subprocess.Popen[str]) -> None:
    """SIGUSR1, which is meant for the workers, does not end an agent that has not read its flags yet."""
    importing.send_signal(signal.SIGUSR1)
    out, err = importing.communicate("go on\n", timeout=20)
    assert importing.returncode == 0, err
    assert out == "trained\n"
    assert "signal 10 arrived while no worker of this node ran; it was dropped" in err


SIGNAL_BETWEEN_HANDLERS = """\
import os, signal, sys
from elastic_agent.agent import signals
install = signal.signal
def install_and_send(*args):
    install(*args)
    os.kill(os.getpid(), int(sys.argv[1]))
signal.signal = install_and_send
signals.begin()
print("begun", flush=True)
"""
"""A program that begins as the agent does, and gets a signal after each handler that it installs."""


@pytest.mark.parametrize(
    ("signum", "status", "words"),
    [
        (signal.SIGQUIT, 128 + signal.SIGQUIT, "elastic-agent: exit 131: the agent was stopped by signal 3 before"),
        (signal.SIGUSR1, 0, "begun"),
    ],
)
def test_a_signal_between_two_handlers_is_as_one_after_the_last(
    signum: signal.Signals, status: int, words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL_BETWEEN_HANDLERS, str(int(signum))],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == status
    assert words in done.stdout + done.stderr


BLOCKING_TORCH = """\
import atexit, sys
atexit.register(print, "Python was finalized", flush=True)
print("importing", flush=True)
sys.stdin.readline()
"""


def test_a_signal_during_the_import_of_torch_ends_with_its_status(tmp_path: Path) -> None:
    """The host of a c10d store imports it on a thread. Finalizing Python aborts a process with a thread within C++."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(BLOCKING_TORCH)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    flags = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--no-python"]
    with subprocess.Popen(
        [sys.executable, "-m", "elastic_agent", *flags, "true"], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as agent:  # fmt: skip
        assert agent.stdout is not None
        assert agent.stdout.readline() == "importing\n"
        agent.send_signal(signal.SIGTERM)
        agent.wait(20)  # with its stdin open, on which the import waits
        out, err = agent.communicate()
    assert (agent.returncode, out) == (128 + signal.SIGTERM, ""), err
    assert err.endswith("elastic-agent: exit 143: the agent was stopped by signal 15\n")
