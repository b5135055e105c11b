"""Virtual environments beside the one that runs the tests. make creates each when first used, which takes a minute."""

from __future__ import annotations

import fcntl
import subprocess
import sys

import pytest

from support.source_tree import ROOT

NEWEST_PYTHON = (3, 12)
"""The newest Python for which their old packages have wheels."""
BUILD_S = 600
"""Bound on creating one, in seconds; a test that uses one needs a time-out above it."""


def side_python(name: str) -> str:
    """The Python of the environment that `make NAME/.ready` makes; skips the test where this Python is too new."""
    if sys.version_info[:2] > NEWEST_PYTHON:
        pytest.skip(f"NOT TESTED with this Python: the packages of {name} have no wheels for it")
    python = ROOT / name / "bin" / "python"
    with open(ROOT / ".typing" / f"{name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of this test run may be creating it
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
