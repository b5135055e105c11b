"""Switches on a file system that does not answer: the job is not held up by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_agent.agent.spec import GuardSpec
from elastic_agent.agent.steps.switches import Switches
from elastic_agent.rendezvous.agreements import Act
from support.harness import ProcessNode
from support.outside.mounts import dead_mount
from support.rigs.asked import Asked

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


def test_a_dead_kill_switch_does_not_hold_the_save_switch_up(tmp_path: Path) -> None:
    """Each has a thread of its own."""
    asked, save = Asked(), tmp_path / "save"
    with dead_mount(tmp_path / "nfs") as mount:
        switches = Switches(GuardSpec(str(mount / "kill"), str(save)), "here", asked.ask, asked.warn)
        save.write_text("still here\n")
        asked.wait(lambda: bool(asked.acts))
    switches.close()
    assert [(act, label) for act, _, label in asked.acts] == [(Act.SAVE, "still here")]
