"""Switches on a file system that does not answer: the job is not held up by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.harness import ProcessNode
from support.outside.mounts import dead_mount

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("flag", ["--kill-switch", "--save-switch"])
def test_a_switch_on_a_dead_file_system_holds_no_job_up(flag: str, tmp_path: Path) -> None:
    """It starts some seconds later, says why for the kill switch, and ends as ever."""
    (tmp_path / "train.py").write_text("print('trained')\n")
    with dead_mount(tmp_path / "nfs") as mount:
        flags = ["--standalone", "--log-dir", os.devnull, flag, str(mount / "switch"), str(tmp_path / "train.py")]
        agent = ProcessNode("one", flags, dict(os.environ), tmp_path)
        try:
            assert agent.wait(40) == 0
        finally:
            agent.end()
    said = f"the file system of the kill switch {mount / 'switch'} gave no answer in 5 s; the job starts"
    assert (said in agent.text()) is (flag == "--kill-switch")
