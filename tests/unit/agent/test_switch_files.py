"""Switches that are no plain files, or that nobody can look at: what is asked of the job, and what is said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elastic_agent.agent.errors import KillSwitch
from elastic_agent.agent.spec import GuardSpec
from elastic_agent.agent.steps.switches import LOOK_S, Switches, in_time, killed_by, look_first, until_next_look_s
from elastic_agent.rendezvous.agreements import Act
from support.rigs.asked import Asked

LOOKS = (
    "import os, sys\n"
    "from pwd import getpwuid\n"
    "from elastic_agent.agent.errors import KillSwitch\n"
    "from elastic_agent.agent.steps.switches import look_first\n"
    "if os.geteuid() == 0: os.setuid(65534)\n"
    "try: look_first(sys.argv[1], 'here', lambda text, routine: print(text))\n"
    "except KillSwitch as error: print('KILLED', error)\n"
)
"""The look at the start of a job, of a user whom modes of files concern."""


def first_look(folder: Path, switch: str) -> str:
    """In this working directory: those above it may not be searched."""
    folder.chmod(0o755)
    command = [sys.executable, "-c", LOOKS, switch]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_a_kill_switch_that_may_not_be_read_is_one(tmp_path: Path) -> None:
    """It is there; whoever made it keeps what is in it for others."""
    (tmp_path / "kill").touch(0o000)
    assert first_look(tmp_path, "kill").startswith("KILLED the kill switch kill, made by ")


def test_a_directory_that_may_not_be_searched_holds_no_kill_switch_and_is_told(tmp_path: Path) -> None:
    """Such as on a file server for which this user's ticket is over: no job ends because of that."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private").chmod(0o000)
    try:
        told = first_look(tmp_path, "private/kill")
    finally:
        (tmp_path / "private").chmod(0o700)
    assert told == "the kill switch private/kill cannot be looked at: Permission denied; the job starts"


def test_a_switch_that_cannot_be_looked_at_is_told_once_and_looked_at_on(tmp_path: Path) -> None:
    """At the start and later: a loop of links, until somebody mends it."""
    asked, kill = Asked(), tmp_path / "kill"
    kill.symlink_to(kill)
    look_first(str(kill), "here", asked.tell)
    assert asked.told == [
        f"the kill switch {kill} cannot be looked at: Too many levels of symbolic links; the job starts"
    ]
    switches = Switches(GuardSpec(str(kill), str(tmp_path / "save")), "here", asked.ask, asked.warn)
    try:
        asked.wait(lambda: len(asked.told) > 1)
        for _ in range(2):  # more looks, and no more words
            (tmp_path / "save").write_text("kept\n")
            asked.wait(lambda: len(asked.acts) > 0)
            assert asked.acts.pop()[::2] == (Act.SAVE, "kept")
        (tmp_path / "mended").write_text("mended\n")
        (tmp_path / "mended").rename(kill)
        asked.wait(lambda: len(asked.acts) > 0)
    finally:
        switches.close()
    act, because, _ = asked.acts.pop()
    assert (act, because.endswith(": mended")) == (Act.KILL, True)
    assert asked.told[1:] == [
        f"the kill switch {kill} cannot be looked at: Too many levels of symbolic links; looking on"
    ]


@pytest.mark.parametrize("kind", ["pipe", "directory", "link to nothing"])
def test_what_is_no_plain_file_is_looked_at_without_a_wait(kind: str, tmp_path: Path) -> None:
    """A pipe without a writer would hold up a thread for ever; a link to nothing is no file."""
    switch = tmp_path / "kill"
    {"pipe": os.mkfifo, "directory": os.mkdir, "link to nothing": lambda path: path.symlink_to("nothing")}[kind](switch)
    found = in_time(lambda: killed_by(str(switch)), 10.0)
    assert found is not None, "it waits"
    assert found.startswith(f"the kill switch {switch}, made by ") is (kind != "link to nothing")
    if found:
        with pytest.raises(KillSwitch):
            look_first(str(switch), "here", None)


def test_looks_of_both_switches_are_together_four_times_a_second_and_never_right_behind_each_other() -> None:
    """Whenever a thread is ready to wait, however long its look took: at the next or next but one common moment."""
    for now_s in (0.0, 7.01, 7.12, 7.13, 7.2, 1234567.249):
        wait_s = until_next_look_s(now_s)
        assert LOOK_S / 2 <= wait_s < 1.5 * LOOK_S
        looks = (now_s + wait_s) / LOOK_S
        assert looks == pytest.approx(round(looks), abs=1e-5)
    assert until_next_look_s(8.0) == LOOK_S


@pytest.mark.parametrize(("save", "threads"), [("save", 1), ("other/save", 2)])
def test_switches_share_a_thread_where_one_file_server_answers_for_both(
    save: str, threads: int, tmp_path: Path
) -> None:
    """In one directory; another one may be of a server that is dead."""
    asked = Asked()
    switches = Switches(GuardSpec(str(tmp_path / "kill"), str(tmp_path / save)), "here", asked.ask, asked.warn)
    try:
        assert [thread.name for thread in threading.enumerate()].count("elastic-agent-switches") == threads
    finally:
        switches.close()


def test_the_end_of_both_looks_is_waited_for_and_may_be_asked_for_twice(tmp_path: Path) -> None:
    asked = Asked()
    switches = Switches(GuardSpec(str(tmp_path / "kill"), str(tmp_path / "save")), "here", asked.ask, asked.warn)
    switches.close()
    switches.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "elastic-agent-switches"]
