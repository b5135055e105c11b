"""`--leftovers keep` where the workers have a cgroup: what is kept must leave it, or a later agent kills it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_agent.agent.nursery import cgroups

pytestmark = pytest.mark.skipif(not cgroups.delegated(), reason="this host does not let us make cgroups")

LEAVES = """\
import subprocess
child = subprocess.Popen(["sleep", "1000"], stdin=-3, stdout=-3, stderr=-3, start_new_session=True)
print(child.pid, open(f"/proc/{child.pid}/cgroup").read().rpartition("0::")[2].strip(), flush=True)
"""


def cgroup_of(pid: int) -> str:
    """The path of this process's cgroup v2, below the hierarchy's top."""
    return Path(f"/proc/{pid}/cgroup").read_text().rpartition("0::")[2].strip()


def run_agent(folder: Path, *flags: str) -> str:
    """What the worker of an agent that ended with 0 printed."""
    command = [sys.executable, "-m", "elastic_agent", "--standalone", *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """A process that a finished worker left, and the cgroup in which it was while its agent ran."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    pid, inside = run_agent(tmp_path, "--leftovers", "keep", "leaves.py").split()
    yield int(pid), inside
    os.kill(int(pid), signal.SIGKILL)


def test_a_kept_process_moves_to_the_cgroup_above_which_the_agent_was_started_in(kept: tuple[int, str]) -> None:
    """The workers' own cgroup is removed."""
    pid, inside = kept
    assert inside.rpartition("/")[2].startswith(cgroups.PREFIX)
    assert cgroup_of(pid) == cgroup_of(os.getpid())
    assert not Path(cgroups.own_cgroup(), inside.rpartition("/")[2]).exists()


def test_a_later_agent_does_not_kill_what_an_earlier_one_kept(kept: tuple[int, str], tmp_path: Path) -> None:
    """It clears the cgroups that killed agents have left."""
    pid, _ = kept
    run_agent(tmp_path, "--no-python", "true")
    assert "sleep" in Path(f"/proc/{pid}/cmdline").read_text()
