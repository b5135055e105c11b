"""ELASTIC_AGENT_EVENTS: the file of an agent's events, one JSON object a line."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.agent.lifecycle.state import Phase, Verdict
from elastic_agent.agent.report import AgentEvent
from elastic_agent.control.decisions.watches import Change
from elastic_agent.control.event_lines import events_in, files_of_events
from elastic_agent.control.service.messages import Goodput, SpentTime
from elastic_agent.control.stream import VERSION, Alarm, Checkpoint, Deadline, Entry, Stage
from elastic_agent.launcher.reporting.event_file import KEPT_ASIDE, WAITING_MAX, EventFile
from elastic_agent.rendezvous.failures import Ending, EndKind, WorkerFailure
from elastic_agent.rendezvous.records import Member, Outcome, Round, RoundPhase
from support.source_tree import ROOT

RUN_S = 60
MEMBER = Member("ab12", "here:7", 0, 0, 2)
FAILURE = WorkerFailure("here:7", "here", 0, 0, 9, 3)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def events_of(path: Path, note: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """As a reader has them: of the file, and of those that were put aside for it."""
    return [event for each in files_of_events(str(path)) for event in events_in(each, note)]


def agent(folder: Path, script: str, *flags: str, events: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "elastic_agent", "--log-dir", str(folder / "logs"), *flags, str(folder / "script.py")],
        env={**os.environ, "ELASTIC_AGENT_EVENTS": events}, capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip


def test_the_file_has_the_whole_job(tmp_path: Path) -> None:
    """A worker fails once: events, announcements with the charge, and the end, in order and by one clock."""
    marker = tmp_path / "once"
    script = f"import pathlib, sys\nmark = pathlib.Path({str(marker)!r})\n"
    script += "if not mark.exists():\n    mark.touch()\n    sys.exit(3)\n"
    path = tmp_path / "events"
    done = agent(tmp_path, script, "--max-restarts", "1", events=str(path))
    assert done.returncode == 0, done.stderr
    written = lines(path)
    assert [line["at_s"] for line in written] == sorted(line["at_s"] for line in written)
    rounds = [(line["number"], line["phase"]) for line in written if line["what"] == "announced"]
    assert (rounds[0], rounds[-1]) == ((1, "gathering"), (2, "closed"))
    running = next(line for line in written if line["what"] == "announced" and line["phase"] == "running")
    closed = [line for line in written if line["what"] == "announced"][-1]
    assert (closed["ended"]["charged"], closed["outcome"]) == (running["members"][0]["node"], "succeeded")
    failed = [line for line in written if "failure" in line]
    assert "exit code 3" in failed[0]["failure"]
    assert (written[-1]["what"], written[-1]["exit_code"]) == ("concluded", 0)
    assert written[-1]["because"] in done.stderr


def test_without_the_variable_there_is_no_file(tmp_path: Path) -> None:
    """An empty value is as no variable."""
    assert agent(tmp_path, "pass", events="").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", "logs"}


def test_a_path_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    """A user who asks for events that cannot be written gets an error before a worker starts."""
    done = agent(tmp_path, "print('it ran')", events=str(tmp_path / "no" / "events"))
    assert done.returncode == 2
    assert "ELASTIC_AGENT_EVENTS" in done.stderr.splitlines()[-1]
    assert "No such file or directory" in done.stderr.splitlines()[-1]
    assert "it ran" not in done.stdout


def entry(what: object, number: int = 1, cause: str = "") -> Entry:
    return Entry(number, 1000.0 + number, float(number), what, f"ab12/{number}", cause)


def moved(number: int, because: str = "so") -> Entry:
    return entry(AgentEvent("here:7", Phase.WORKING, because, number, "RoundSeen", 1.0), number)


def test_a_disk_that_is_full_delays_events_and_not_the_job(tmp_path: Path) -> None:
    """One line on stderr says so, another how many were lost, and the job goes on."""
    done = agent(tmp_path, "pass", events="/dev/full")
    assert done.returncode == 0
    assert done.stderr.count("cannot write events to /dev/full (ELASTIC_AGENT_EVENTS): No space left") == 1
    assert "events are missing from /dev/full (ELASTIC_AGENT_EVENTS): the disk refused them" in done.stderr


@pytest.mark.parametrize(("script", "end"), [("pass", "elastic-agent: exit 0: "), ("1 / 0", "elastic-agent: exit 1: ")])
def test_what_is_missing_from_the_file_is_said_before_the_last_line(tmp_path: Path, script: str, end: str) -> None:
    """The last line has the status, whatever a full disk takes from the file of events."""
    said = agent(tmp_path, script, events="/dev/full").stderr
    assert "events are missing from /dev/full" in said
    assert said.splitlines()[-1].startswith(end)


def test_events_that_found_the_disk_full_are_written_once_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, a line that was cut off whole again; of more than are kept, the oldest are missing."""
    told: list[str] = []
    path = tmp_path / "events"
    file = EventFile(str(path), lambda text, routine: told.append(text))
    room, write = [100], os.write

    def limited(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(fd, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr("elastic_agent.launcher.reporting.event_file.os.write", limited)
    for number in range(WAITING_MAX + 11):
        file.record(moved(number))
    room[0] = 1 << 30
    file.record(moved(WAITING_MAX + 11))
    file.close()
    assert [line["round"] for line in lines(path)] == [0, *range(13, WAITING_MAX + 12)]
    assert [text.split(" ")[0:2] for text in told] == [["cannot", "write"], ["events", "are"]]
    assert "12 were dropped" in told[1]


def test_lines_go_where_the_files_name_is(tmp_path: Path) -> None:
    """Renamed, as logrotate does, or deleted, while the job runs; and back, once its directory is."""
    told: list[str] = []
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "events"
    file = EventFile(str(path), lambda text, routine: told.append(text))
    file.record(moved(1))
    path.rename(folder / "older")
    file.record(moved(2))
    assert [each["round"] for name in ("older", "events") for each in lines(folder / name)] == [1, 2]
    path.unlink()
    file.record(moved(3))
    assert [line["round"] for line in lines(path)] == [3]
    folder.rename(tmp_path / "moved")
    for number in (4, 5):
        file.record(moved(number))
    assert [line["round"] for line in lines(tmp_path / "moved" / "events")] == [3, 4, 5]
    assert [text.partition(": ")[0] for text in told] == [
        f"{path} (ELASTIC_AGENT_EVENTS) is gone, and cannot be made again"
    ]
    folder.mkdir()
    file.record(moved(6))
    file.close()
    assert [line["round"] for line in lines(path)] == [6]


def test_a_large_file_is_put_aside_and_the_oldest_go(tmp_path: Path) -> None:
    """Four files aside, numbered as they came; no line is torn or lost but with the oldest files."""
    path = tmp_path / "events"
    files = [EventFile(str(path), lambda text, routine: None, limit_bytes=4000) for _ in range(2)]
    for number in range(200):
        files[number % 2].record(moved(number, "x" * 500))
    for file in files:
        file.close()
    aside = sorted(tmp_path.glob("events.*"), key=lambda each: int(each.suffix[1:]))
    assert len(aside) == KEPT_ASIDE
    rounds = [line["round"] for each in [*aside, path] for line in lines(each)]
    assert rounds == list(range(rounds[0], 200))
    assert all(each.stat().st_size < 5000 for each in aside)
    assert events_of(path)[0]["round"] == rounds[0]


def test_a_line_that_a_lost_host_left_half_written_takes_no_other_along(tmp_path: Path) -> None:
    """What comes later begins a line of its own, and readers leave out what is damaged, and say so."""
    path = tmp_path / "events"
    for number in (1, 2):
        file = EventFile(str(path), lambda text, routine: None)
        file.name = "here:7"
        file.record(moved(number, "every place is taken"))
        file.close()
        with path.open("ab") as torn:
            torn.write(b'{"what": "event", "at_s": 7.' + bytes(100 * number))
    file = EventFile(str(path), lambda text, routine: None)
    file.name = "here:7"
    file.record(moved(3, "every place is taken"))
    file.close()
    told: list[str] = []
    assert [event["round"] for event in events_of(path, told.append)] == [1, 2, 3]
    assert told == [f"{path}: line 2 and 1 more left out: no event of an agent, or damaged"]
    path.write_text('{"what": "concluded"}\nnull\n')
    with pytest.raises(ValueError, match="line 1 is no event of an agent"):
        events_of(path)


def test_a_full_disk_takes_the_oldest_file_aside_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put aside makes room for what happens now."""
    told: list[str] = []
    path = tmp_path / "events"
    file = EventFile(str(path), lambda text, routine: told.append(text), limit_bytes=4000)
    for number in range(12):
        file.record(moved(number, "x" * 500))
    before = {each.name for each in tmp_path.glob("events.*")}
    write, refused = os.write, [True]

    def once(fd: int, data: bytes) -> int:
        if refused and refused.pop():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr("elastic_agent.launcher.reporting.event_file.os.write", once)
    file.record(moved(30, "last"))
    file.close()
    assert "events.1" in before - {each.name for each in tmp_path.glob("events.*")}
    assert lines(path)[-1]["because"] == "last"
    assert told == [f"the disk is full; deleted {path}.1, the oldest file of events"]


def test_a_file_system_without_locks_keeps_all_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file grows beyond its limit, one line says so, and no event is lost."""
    told: list[str] = []
    path = tmp_path / "events"

    def refused(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("elastic_agent.launcher.reporting.event_file.fcntl.flock", refused)
    file = EventFile(str(path), lambda text, routine: told.append(text), limit_bytes=100)
    for number in range(20):
        file.record(moved(number, "x"))
    file.close()
    assert [line["round"] for line in lines(path)] == list(range(20))
    assert len(told) == 1
    assert "grows beyond 100 bytes: Function not implemented" in told[0]


def test_a_full_disk_whose_folder_cannot_be_read_costs_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be deleted to make room; the events wait."""
    told: list[str] = []
    file = EventFile(str(tmp_path / "events"), lambda text, routine: told.append(text))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def gone(_: str) -> list[str]:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    with monkeypatch.context() as broken:
        broken.setattr("elastic_agent.launcher.reporting.event_file.os.write", full)
        broken.setattr("elastic_agent.launcher.reporting.event_file.os.listdir", gone)
        file.record(moved(1, "x"))
    file.record(moved(2, "y"))
    file.close()
    assert [line["round"] for line in lines(tmp_path / "events")] == [1, 2]


def test_agents_may_share_a_file(tmp_path: Path) -> None:
    """Each line is whole, and names its agent."""
    path = tmp_path / "events"
    files = [EventFile(str(path), lambda text, routine: None) for _ in range(2)]
    for number in range(50):
        for name, file in zip("ab", files, strict=True):
            file.name = name
            file.record(moved(number, "x" * 1000))
    for file in files:
        file.close()
        file.close()
    assert [(line["node"], line["round"]) for line in lines(path)] == [(n, i) for i in range(50) for n in "ab"]


def test_every_key_is_on_its_page(tmp_path: Path) -> None:
    """docs/configuration.md lists the keys that are written, and no others."""
    file = EventFile(str(tmp_path / "events"), lambda text, routine: None)
    file.goodput = lambda at_s: Goodput("here:7", 1.0, 1, 1.0, True, (SpentTime("saving", 1.0),))
    ended = Ending(1, EndKind.FAILURE, "so", "ab12", FAILURE)
    for what in (
        AgentEvent("here:7", Phase.WORKING, "so", 1, "RoundSeen", 1.0, FAILURE, (MEMBER,), 1),
        Round(3, 1, 2, RoundPhase.CLOSED, "so", (MEMBER,), ended=ended, outcome=Outcome.FAILED),
        Stage("agreed", 1, 1.0, 0.0),
        Checkpoint(1, 10, 1.0, 0.1),
        Deadline(1.0, 2000.0),
        Alarm(1.0, "hang", "fired", "rank 0 stands still"),
        Verdict(1, "so", Outcome.FAILED),
    ):
        file.record(entry(what))
    file.close()
    page = (ROOT / "docs" / "configuration.md").read_text().partition("## The agent's own events")[2]
    rows = [row.split("|") for row in page.partition("\n## ")[0].splitlines() if row.startswith("| `")]
    listed = {(what, key.strip(" `")) for row in rows for key in row[1].split(",") for what in _whats(row[2])}
    written = lines(tmp_path / "events")
    assert {(line["what"], key) for line in written for key in line} == listed
    assert {line["form"] for line in written} == {VERSION}
    assert f"version of this form: {VERSION}." in page
    [changes] = [row[3] for row in rows if row[1].strip(" `") == "happened"]
    assert [change.value for change in Change if f"`{change.value}`" not in changes] == []


def _whats(cell: str) -> list[str]:
    every = ["event", "announced", "concluded", "stage", "checkpoint", "deadline", "alarm", "goodput"]
    return every if cell.strip() == "all" else [what.strip(" `") for what in cell.split(",")]


def test_an_agent_that_is_stopped_has_written_its_status(tmp_path: Path) -> None:
    """The file's last line has the status that a scheduler sees."""
    path = tmp_path / "events"
    (tmp_path / "script.py").write_text("import time\nprint('up')\ntime.sleep(1000)\n")
    command = [sys.executable, "-m", "elastic_agent", "--log-dir", str(tmp_path / "logs"), str(tmp_path / "script.py")]
    env = {**os.environ, "ELASTIC_AGENT_EVENTS": str(path)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(RUN_S) == 128 + signal.SIGTERM
    assert lines(path)[-1]["exit_code"] == 128 + signal.SIGTERM
