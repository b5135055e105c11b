"""Taking a variable out of a process's environment, so that the kernel does not show it either."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_agent.launcher import secret_variable

SECRET = "s3cret-ü-of-the-trainer"
BOUND_S = 60.0


def run(code: str, *arguments: str, **variables: str) -> str:
    """What a Python program with these variables prints."""
    env = {**os.environ, "PYTHONIOENCODING": "utf-8", **variables}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_variable_that_was_taken_is_shown_nowhere() -> None:
    """Not by `os.environ`, not by the C library, not by the kernel, not in a child; all others stay as they were."""
    look = """
import os, subprocess, sys
from elastic_agent.launcher.secret_variable import take
secret = os.environ["A_SECRET"]
value, why_shown = take("A_SECRET")
assert (value, why_shown) == (secret, ""), why_shown
assert "A_SECRET" not in os.environ
shown = open("/proc/self/environ", "rb").read()
assert os.fsencode(secret) not in shown.replace(b"B_SECRET=" + os.fsencode(secret), b"")
assert b"\\0B_SECRET=" + os.fsencode(secret) + b"\\0" in b"\\0" + shown, "another variable is gone"
assert b"\\0A_SECRET_2=2\\0" in b"\\0" + shown
child = subprocess.run(["/usr/bin/env"], capture_output=True, check=True).stdout
assert b"\\nA_SECRET=" not in b"\\n" + child
assert b"\\nA_SECRET_2=2\\n" in b"\\n" + child
assert take("A_SECRET") == (None, "")
print("done")
"""
    assert run(look, A_SECRET=SECRET, A_SECRET_2="2", B_SECRET=SECRET) == "done\n"


def test_a_variable_that_cannot_be_overwritten_is_still_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is returned, for a warning."""

    def refuse(begin: bytes) -> None:
        raise PermissionError(13, "Permission denied", "/proc/self/mem")

    monkeypatch.setattr(secret_variable, "_overwrite", refuse)
    monkeypatch.setenv("A_SECRET", SECRET)
    assert secret_variable.take("A_SECRET") == (SECRET, "/proc/self/mem: Permission denied")
    assert "A_SECRET" not in os.environ


def test_guardian_and_nursery_of_a_program_do_not_inherit_the_password(tmp_path: Path) -> None:
    """A program that calls `launch` keeps its own environment, and nothing that the agent starts has the password."""
    (tmp_path / "worker.py").write_text(
        """
import os
pid = os.getpid()
while (name := open(f"/proc/{pid}/comm").read().strip()) not in ("elastic-guard", "systemd"):
    print(name, b"s3cret" in open(f"/proc/{pid}/environ", "rb").read(), flush=True)
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
print(name, b"s3cret" in open(f"/proc/{pid}/environ", "rb").read(), flush=True)
"""
    )
    launch = """
import os, sys
from elastic_agent import LaunchConfig, launch
launch(LaunchConfig(log_dir=os.devnull), sys.argv[1])
print("kept", os.environ["ELASTIC_AGENT_ETCD_PASSWORD"])
"""
    printed = run(launch, str(tmp_path / "worker.py"), ELASTIC_AGENT_ETCD_PASSWORD="s3cret").splitlines()
    assert printed[1:] == ["elastic-nursery False", "elastic-guard False", "kept s3cret"]
    assert printed[0].endswith(" False")
