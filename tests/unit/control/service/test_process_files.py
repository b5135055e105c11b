"""What the kernel says of processes, by files that stay open."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_agent.control.service.process_files import GONE, ProcessFiles


@pytest.fixture
def files() -> Iterator[ProcessFiles]:
    made = ProcessFiles()
    yield made
    made.close()


def opened() -> set[str]:
    """The files of /proc that this process has open."""
    links = (os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd"))
    return {os.readlink(link) for link in links if os.path.islink(link) and os.readlink(link).endswith("/stat")}


def test_a_process_is_read_again_by_the_same_file_until_nobody_asks_of_it(files: ProcessFiles) -> None:
    """Memory is what the kernel says elsewhere, too."""
    before = opened()
    own = os.getpid()
    rss, cpu_s, state = files.read([own])[own]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert rss == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE"), rel=0.2)
    assert state == "running"
    assert files.read([own])[own][1] >= cpu_s
    assert opened() - before == {f"/proc/{own}/stat"}
    assert files.read([]) == {}
    assert opened() == before


def test_a_process_that_is_stopped_or_gone_is_said_to_be_so(files: ProcessFiles) -> None:
    """Also one that was not there at the first look."""
    before = opened()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert files.read([child.pid])[child.pid][2] == "running"
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert files.read([child.pid])[child.pid][2] == "stopped"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert files.read([child.pid])[child.pid][2] == "zombie"
    for _ in range(2):
        assert files.read([child.pid]) == {child.pid: GONE}
    assert opened() == before


def test_another_process_with_the_id_of_one_that_is_gone_is_read(files: ProcessFiles) -> None:
    """A kernel hands ids out again: the file of the old process says nothing of the new one."""
    with subprocess.Popen(["sleep", "60"]) as old:
        files.read([old.pid])
        old.kill()
    own = os.getpid()
    files._files[own] = files._files.pop(old.pid)
    assert files.read([own])[own][2] == "running"


def test_nothing_is_opened_any_more_once_they_are_closed(files: ProcessFiles) -> None:
    before = opened()
    own = os.getpid()
    files.read([own])
    files.close()
    assert opened() == before
    assert files.read([own]) == {own: GONE}
    assert opened() == before
