"""Environments beside the one that runs the tests, made by make when they are first needed, which takes a minute."""

from __future__ import annotations

import fcntl
import subprocess
import sys

import pytest

from support.source_tree import ROOT

NEWEST_PYTHON = (3, 12)
"""The newest that the old packages in them have wheels for."""
BUILD_S = 600
"""Bound on making one; a test that asks for one needs a time-out above it."""


def side_python(name: str) -> str:
    """The Python of the environment that `make NAME/.ready` makes; skips the test where this Python is too new."""
    if sys.version_info[:2] > NEWEST_PYTHON:
        pytest.skip(f"NOTHING KNOWN HERE of what {name} is for: its packages have no wheels for this Python")
    python = ROOT / name / "bin" / "python"
    with open(ROOT / ".typing" / f"{name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of this test run may be at it
        made = subprocess.run(
            ["make", "--silent", f"{name}/.ready", f"PYTHON={sys.executable}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
    assert made.returncode == 0, f"make {name}/.ready ended with {made.returncode}:\n{made.stdout}\n{made.stderr}"
    return str(python)
