"""What `elasticctl` prints and refuses, of agents that are stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from elastic_agent.control.ctl import cli, find, screen, selection, views
from elastic_agent.control.ctl.checkpoints import table
from elastic_agent.control.ctl.find import Agent, NotFound
from elastic_agent.control.ctl.printing import printable
from elastic_agent.control.table.parse import parse_table

STATUS = {"name": "node0:1", "runId": "job1", "pid": 1, "coordinating": True, "hosting": True, "worldSize": 4,
          "groupRank": 0, "workerPids": {"0": 7}, "members": [{"groupRank": 0, "nproc": 1}]}  # fmt: skip


@pytest.fixture(autouse=True)
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    """The only one that runs here: rank 0 of four."""
    made = Agent("/nowhere/control.sock", STATUS)
    monkeypatch.setattr(find, "agents", lambda address="": ([made], []))
    monkeypatch.setattr(find, "ask_all", lambda paths, method: [{"nodes": []} for _ in paths])
    return made


def ctl(*words: str) -> Result:
    return CliRunner().invoke(cli.elasticctl, words)


def test_an_event_that_is_no_state_of_the_node_is_named_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"number": 7, "timeS": 0.0, "round": 1, "node": "node0:1", "what": "stage", "phase": "",
             "because": "round 1: agreed", "failure": "", "missed": 0}  # fmt: skip
    monkeypatch.setattr(views, "streams", lambda *of, **fields: iter([event]))
    assert ctl("events").output.endswith("round 1  node0:1  stage: round 1: agreed\n")


def test_text_of_a_job_steers_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no plain text is escaped in events, names and errors; of what workers write, on a terminal only."""
    event = {"number": 7, "timeS": 0.0, "round": 1, "node": "\x9bnode", "what": "stage", "phase": "",
             "because": "\x1b]0;owned\x07 \u202etxt", "failure": "", "missed": 0}  # fmt: skip
    monkeypatch.setattr(views, "streams", lambda *of, **fields: iter([event]))
    assert ctl("events").output.endswith("round 1  \\x9bnode  stage: \\x1b]0;owned\\x07 \\u202etxt\n")
    written = "\x1b[32mgreen\x1b[0m\r9 %\x1b[2J\n"
    part = {"rank": 0, "stream": "stdout", "text": written, "missedBytes": 0, "file": ""}
    monkeypatch.setattr(views, "streams", lambda *of, **fields: iter([part]))
    assert ctl("logs", "0").output == "green\r9 %\n"  # click takes colours out where there is no terminal
    assert printable(written, coloured=True) == "\x1b[32mgreen\x1b[0m\r9 %\\x1b[2J\n"


@pytest.mark.parametrize(
    "words",
    [
        ("logs", "\u00b2"),
        ("logs", "99999999999"),
        ("logs", "0", "-n", "99999999999"),
        ("events", "--since", "99999999999"),
        ("stacks", "\u0663"),
    ],
)
def test_a_number_that_no_request_can_hold_is_a_wrong_command(words: tuple[str, ...]) -> None:
    found = ctl(*words)
    assert found.exit_code == 2
    assert found.exception is None or isinstance(found.exception, SystemExit)


@pytest.mark.parametrize("words", [("--help",), ("explain", "FILE", "--json")])
def test_a_full_disk_under_stdout_is_one_line_and_a_status(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "events").write_text("")
    argv = [str(tmp_path / "events") if word == "FILE" else word for word in words]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "elastic_agent.control.ctl", *argv],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 74
    assert done.stderr == "elasticctl: cannot print or read: No space left on device; make room, or look at the file\n"


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    """`events*` also matches what was put aside for a file, which is read with it."""
    for number, name in enumerate(("events.1", "events")):
        ended = {"what": "concluded", "node": f"node{number}", "at_s": number, "because": "done"}
        (tmp_path / name).write_text(json.dumps(ended))
    for files in (["events"], ["events", "events.1"], ["events.1", "events", "events"]):
        found = json.loads(ctl("explain", "--json", *(str(tmp_path / name) for name in files)).output)
        assert found["ends"] == ["node0: exit 0: done", "node1: exit 0: done"]


def test_who_has_read_enough_gets_a_status_and_no_word(tmp_path: Path) -> None:
    """As `elasticctl explain | head -1` may; 1 would be an agent that refuses."""
    (tmp_path / "events").write_text("")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "elastic_agent.control.ctl", "explain", str(tmp_path / "events")],
        stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (74, "")


def test_what_the_terminals_encoding_has_not_is_escaped(tmp_path: Path) -> None:
    """A bar of tqdm's, or a name, on a terminal of Latin-1."""
    ended = {"what": "concluded", "node": "node0", "at_s": 1.0, "because": "caf\u00e9 \u2588"}
    (tmp_path / "events").write_text(json.dumps(ended))
    done = subprocess.run(
        [sys.executable, "-m", "elastic_agent.control.ctl", "explain", str(tmp_path / "events")],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert "caf\u00e9 \\u2588".encode("latin-1") in done.stdout


def test_a_rank_without_output_is_said_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that --local-ranks-filter leaves out, whose output goes nowhere."""
    part = {"rank": 0, "stream": "stdout", "text": "here\n", "missedBytes": 0, "file": ""}
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(views, "streams", lambda *of, **fields: iter(found))
    assert "there is no output of rank 0: it has written nothing, or --local" in ctl("logs", "0").stderr
    assert "there is no output of any rank: " in ctl("logs", "all").stderr
    found.append(part)
    assert [ctl("logs", rank).stderr for rank in ("0", "all")] == ["", ""]


def test_a_progress_bar_is_one_of_the_last_lines() -> None:
    """As it is where the agent counts them."""
    part = {"rank": 0, "stream": "stderr", "text": "begun\n 1 %\r 2 %\r 3 %\n"}
    assert [each["text"] for each in views.last_lines([part], 1)] == [" 1 %\r 2 %\r 3 %\n"]


def test_lines_are_counted_by_the_agent_where_its_output_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is not all."""
    asked: list[dict[str, Any]] = []

    def streams(found: object, method: str, **fields: Any) -> Any:
        asked.append(fields)
        return iter(())

    monkeypatch.setattr(views, "streams", streams)
    for lines in ("3", "0"):
        assert ctl("logs", "0", "-f", "-n", lines).exit_code == 0
    assert ctl("logs", "0", "-f").exit_code == 0
    assert [each.get("tailLines") for each in asked] == [3, -1, None]


def test_what_is_odd_is_in_colour_unless_the_environment_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """As https://no-color.org asks: no colour then, and nothing else changes. What is odd is in words too."""
    odd = {"name": "node1:2", "state": "lost", "nproc": 1}
    job = {"runId": "job1", "name": "node0:1", "source": "coordinator", "phase": "running", "because": "all are here",
           "round": 1, "minNodes": 1, "maxNodes": 2, "worldSize": 1, "nodes": [odd], "outcome": "", "store": "",
           "storeTrouble": "", "leaseS": 5.0, "ageS": 9.0, "checkpoints": ""}  # fmt: skip
    monkeypatch.setattr(views, "job_and_workers", lambda *of, **more: (job, [], [], []))

    def shown(**env: str) -> str:
        return CliRunner(env=env).invoke(cli.elasticctl, ["status"], color=True).output

    monkeypatch.delenv("NO_COLOR", raising=False)
    yellow = "\x1b[33m"
    assert [line.count(yellow) for line in shown().splitlines() if "node1:2" in line] == [1, 1]
    assert yellow not in shown(NO_COLOR="1")
    assert click.unstyle(shown()) == click.unstyle(shown(NO_COLOR="1"))
    assert shown(NO_COLOR="") == shown()
    assert shown(TERM="dumb") == click.unstyle(shown())
    assert [line for line in shown().splitlines() if "\x1b" in line and "node1:2" not in line] == []


def test_a_run_id_with_a_line_end_makes_no_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    line = screen.Line("job1\nnode1  LOST  running")
    monkeypatch.setattr(cli, "_status", lambda *of: ([line], []))
    assert ctl("status").output == "job1\\nnode1  LOST  running\n"


def test_a_live_table_ends_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands there last stays, and is no error."""
    here: list[list[Agent]] = [[Agent("/nowhere/control.sock", STATUS)], []]
    monkeypatch.setattr(find, "agents", lambda address="": (here.pop(0), []))
    monkeypatch.setattr(views, "together", lambda *of: ([{"name": "node0:1", "workers": []}], []))
    monkeypatch.setattr(cli, "REDRAW_S", 0.0)
    found = ctl("top", "-w")
    assert (found.exit_code, found.stdout.count("RANK")) == (0, 1)
    assert "no agent runs here" not in found.output


def test_equal_stacks_of_three_agents_are_one_group_and_the_odd_one_is_first() -> None:
    """Process ids and versions make no difference; of the rest, those that wait for others are last."""

    def answer(rank: int, at: str, *, waits: bool) -> dict[str, Any]:
        text = f"Process {rank}: python train.py\nPython v3.11.{rank}\nThread {rank} (active)\n    {at}\n"
        return {"name": f"node{rank}", "groups": [{"ranks": [rank], "at": at, "waits": waits, "text": text}]}

    waiting = "all_reduce (distributed.py:9)"
    answers = [
        answer(2, waiting, waits=True),
        answer(1, "read (disk.py:3)", waits=False),
        answer(0, waiting, waits=True),
    ]
    assert [(group["ranks"], group["at"]) for group in views.merged(answers)] == [
        ([1], "read (disk.py:3)"),
        ([0, 2], waiting),
    ]


@pytest.mark.parametrize(("size", "have"), [(4, "ranks 0 to 3"), (1, "one worker, rank 0")])
def test_a_rank_that_the_job_has_not_is_nowhere(size: int, have: str) -> None:
    """One that it has may be on another host."""
    found = [Agent("path", {**STATUS, "worldSize": size})]
    with pytest.raises(NotFound, match=f"there is no rank 9: the job has {have}"):
        find.of_ranks(found, [9])
    if size > 1:
        with pytest.raises(NotFound, match="rank 2 is not on this host"):
            find.of_ranks(found, [2])


def test_ranks_of_a_node_whose_workers_have_finished_are_still_its_own() -> None:
    """Their output is kept; it was looked for on other hosts."""
    finished = Agent("path", {**STATUS, "groupRank": 1, "workerPids": {}, "members": [
        {"groupRank": 0, "nproc": 2}, {"groupRank": 1, "nproc": 2, "rankOffset": 2},
    ]})  # fmt: skip
    assert views.having([finished], [3]) == [finished]
    assert views.having([finished], [1]) == []


def test_a_rank_of_a_job_without_a_round_is_not_on_another_host() -> None:
    """Who looks for a log before the first round would go from host to host."""
    with pytest.raises(NotFound, match="no round runs now, so no worker has rank 0; elasticctl status says"):
        find.of_ranks([Agent("path", {**STATUS, "worldSize": 0})], [0])


def test_ctrl_c_ends_what_follows_with_the_usual_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 is for an agent that refuses."""

    def interrupted(*of: object, **fields: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(views, "streams", interrupted)
    result = ctl("events", "-f")
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize(
    ("words", "method", "fields"),
    [
        (["save", "--label", "x", "-m", "why"], "Save", {"label": "x", "reason": "why"}),
        (["restart", "-m", "why"], "RestartRound", {"reason": "why"}),
        (["stop"], "Stop", {"reason": "", "job": True, "requeue": False}),
        (["stop", "--requeue"], "Stop", {"reason": "", "job": True, "requeue": True}),
        (["stop", "--node", "node0"], "Stop", {"reason": ""}),
        (["drain", "node0:1", "-m", "why"], "Drain", {"reason": "why"}),
        (["watch", "hang,disk"], "SetWatch", {"names": "hang,disk"}),
        (["watch"], "SetWatch", {"names": ""}),
    ],
)
def test_each_command_that_steers_asks_for_what_it_says(
    words: list[str], method: str, fields: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And prints the agent's answer."""
    asked: list[tuple[str, dict[str, object]]] = []

    def call(path: str, method: str, **fields: object) -> dict[str, str]:
        asked.append((method, fields))
        return {"text": "it is done"}

    monkeypatch.setattr(cli, "call", call)
    done = ctl(*words)
    assert (done.exit_code, done.output) == (0, "it is done\n")
    assert asked == [(method, fields)]


def test_a_report_that_cannot_be_written_is_a_wrong_command(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text("")
    done = ctl("report", str(events), "-o", f"{tmp_path}/none/report.html")
    assert done.exit_code == 2
    assert f"{tmp_path}/none/report.html: No such file or directory" in done.output


def test_checkpoints_are_those_of_the_job_where_no_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it has one that is seen here."""
    for found, wanted in (
        (str(tmp_path), "no checkpoints here"),
        ("", "was started without --exact-resume; give a directory"),
        (f"{tmp_path}/none", "the job's directory of checkpoints is not on this host"),
    ):
        monkeypatch.setattr(selection, "call_brief", lambda path, method, found=found: {"checkpoints": found})
        assert wanted in ctl("checkpoints").output


@pytest.mark.parametrize(
    ("length", "wanted"), [(987, "987 bytes"), (1 << 10, "1 KiB"), (1_500_000, "1.43 MiB"), (7 << 40, "7 TiB")]
)
def test_sizes_of_checkpoints_are_told_in_their_own_unit(length: int, wanted: str) -> None:
    one = {"name": "step-000001", "problem": "", "time_s": 0.0, "label": "", "round": 1, "ranks": 2, "bytes": length}
    assert table([one])[0].endswith(f"round 1, 2 ranks, {wanted}")


def test_paths_of_a_file_of_watches_are_below_its_directory_wherever_the_agent_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else reaches the agent as it was written."""
    asked: list[dict[str, Any]] = []

    def call(path: str, method: str, **fields: Any) -> dict[str, str]:
        asked.append(fields)
        return {"text": "done"}

    monkeypatch.setattr(cli, "call", call)
    watch = '[[watch]]\nwhat = "disk"\npath = "out"\nthreshold = "9 % used"\ndo = ["save"]\n'
    text = f'dumps = "d"\njob = "\\u0007\u00e9"\n{watch}'
    (tmp_path / "w.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert ctl("watch", "w.toml").exit_code == 0
    found = parse_table(asked[0]["table"], "/elsewhere/x", inside=True)
    here = parse_table(text, str(tmp_path / "w.toml"), inside=True)
    assert (found.dumps, found.job) == (here.dumps, here.job)
    assert [each.path for each in (*found.watches, *here.watches)] == [str(tmp_path / "out")] * 2
    (tmp_path / "w.toml").write_text("no table")
    assert ctl("watch", "w.toml").exit_code == 0
    assert asked[1]["table"] == "no table"


@pytest.mark.parametrize("what", ["none.toml", "watches/none"])
def test_a_file_of_watches_that_is_not_there_is_called_a_file(what: str) -> None:
    """The agent said that it is no usual watch."""
    done = ctl("watch", what)
    assert done.exit_code == 2
    assert f"there is no file {what!r}; give one, or names of usual watches" in done.output
