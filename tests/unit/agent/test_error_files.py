"""Error files, read and written, and the summary with which a failed job ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.agent.failures.error_files import (
    MESSAGE_MAX,
    SIZE_MAX,
    ErrorReport,
    failure_of,
    read_error_file,
    summary,
    write_agent_error,
    write_error_file,
)
from elastic_agent.agent.output.log_dirs import JobLogs
from elastic_agent.agent.spec import LogSpec
from elastic_agent.rendezvous.failures import WorkerFailure

STACK = "Traceback (most recent call last):\n  File x\nValueError: boom"
GOOD: dict[str, object] = {
    "message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": STACK, "timestamp": "1795164599"}}
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "error.json"


def failed(path: Path | str = "", exit_code: int = 1, rank: int = 3) -> tuple[WorkerFailure, ErrorReport]:
    return failure_of("nodehost/77", "nodehost", rank, rank - 2, 4242, exit_code, str(path))


# -- reading -----------------------------------------------------------------------------------------------------------


def test_what_record_writes_is_understood(path: Path) -> None:
    """The nested form of torch's `@record`, timestamp as a string."""
    path.write_text(json.dumps(GOOD))
    assert read_error_file(str(path)) == ErrorReport("ValueError: boom", STACK, 1795164599, GOOD, "", found=True)


def test_the_flat_form_is_understood(path: Path) -> None:
    """A plain message with a number for a timestamp, as other error handlers write."""
    path.write_text('{"message": "\\nfirst\\nsecond", "timestamp": 12}')
    report = read_error_file(str(path))
    assert (report.message, report.traceback, report.timestamp, report.trouble) == ("first", "\nfirst\nsecond", 12, "")


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"message": {"mess', "cut short"),
        (b"\x80\xff\x00binary", "not JSON"),
        (b"[" * 100000, "not JSON"),
        (b"9" * 100000, "not JSON"),
        (b"[1, 2]", "a JSON list"),
        (b"null", "a JSON NoneType"),
        (b"{}", "no message"),
        (b'{"message": 5, "timestamp": 1}', "no message"),
        (b'{"message": {"message": "m"}}', "no extraInfo"),
        (b'{"message": {"message": ["m"], "extraInfo": {"py_callstack": 5, "timestamp": "7"}}}', "no message"),
        (b'{"message": "m", "timestamp": "soon"}', "no timestamp"),
        (b'{"message": "m", "timestamp": true}', "no timestamp"),
        (b'{"message": "m", "timestamp": -1}', "no timestamp"),
        (b'{"message": "m", "timestamp": 1e300}', "no timestamp"),
        (b'{"message": "m", "timestamp": Infinity}', "no timestamp"),
        (b'{"message": "' + b"m" * SIZE_MAX + b'", "timestamp": 1}', "larger than"),
    ],
)
def test_a_bad_file_is_reported_in_one_line(path: Path, content: bytes, wrong: str) -> None:
    """No content makes it raise (torchrun crashes on some); one line names the file and what is wrong."""
    path.write_bytes(content)
    report = read_error_file(str(path))
    assert wrong in report.trouble
    assert str(path) in report.trouble
    assert "\n" not in report.trouble
    assert len(report.trouble) < 500 + len(str(path))
    assert report.found


def test_the_error_about_a_missing_file_names_record(path: Path) -> None:
    """A worker that wrote no file: the report says how to get one, and the failure names no path."""
    assert "@record" in read_error_file(str(path)).trouble
    failure, _ = failed(path)
    assert failure.error_file == ""
    assert read_error_file("") == ErrorReport()


def test_a_fifo_or_directory_does_not_block_the_agent(path: Path) -> None:
    """Something else in the file's place is reported, not waited for."""
    os.mkfifo(path)
    assert "not a regular file" in read_error_file(str(path)).trouble
    assert "directory" in read_error_file(str(path.parent)).trouble.lower()


def test_what_is_usable_is_used(path: Path) -> None:
    """The message of a file with a bad timestamp is still read."""
    path.write_text('{"message": {"message": "boom", "extraInfo": {"timestamp": null}}}')
    report = read_error_file(str(path))
    assert (report.message, report.traceback, report.timestamp) == ("boom", "boom", None)


def test_a_message_is_one_printable_line(path: Path) -> None:
    """It goes to consoles and into the node's record: bounded, no escape sequences, no lone surrogates."""
    path.write_text(json.dumps({"message": "\t\x1b[31mred\ud800" + "x" * 5000 + "\nmore", "timestamp": 1}))
    report = read_error_file(str(path))
    assert report.message.startswith(" ?[31mred?xx")
    assert len(report.message) == MESSAGE_MAX
    assert report.message.endswith("x...")
    report.traceback.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["message", "extraInfo", "py_callstack", "timestamp"]) | st.text(), inner)
    ),
)


@given(content=st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_nothing_in_a_file_makes_it_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Any bytes and any JSON can be read, described, summarised and passed on."""
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    failure, report = failed(path)
    summary("train.py", failure).encode()
    assert write_error_file(f"{path}.out", failure, report) == ""
    assert isinstance(json.loads(Path(f"{path}.out").read_text())["message"], (dict, str))


# -- the summary -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("exit_code", [1, -11, -9, -35])
@pytest.mark.parametrize("content", [GOOD, {"message": "plain words", "timestamp": 1700000000}, None])
def test_the_summary_is_torchruns(
    path: Path, monkeypatch: pytest.MonkeyPatch, content: dict[str, object] | None, exit_code: int, alone: bool
) -> None:
    """The same failures make the same block as torch's own ChildFailedError, to the byte."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    monkeypatch.setattr("socket.getfqdn", lambda: "nodehost")
    monkeypatch.setattr("time.time", lambda: 1795164599.5)
    if content is not None:
        path.write_text(json.dumps(content))
    theirs = {3: ProcessFailure(1, 4242, exit_code, str(path))}
    ours = [failed(path, exit_code)]
    if not alone:
        # Later than the first, so that torch too takes that for the root cause.
        monkeypatch.setattr("time.time", lambda: 1795164700.5)
        theirs[5] = ProcessFailure(3, 4242, -15, "none")
        ours.append(failed("", -15, rank=5))
    block = summary("train.py", ours[0][0], [each for each, _ in ours[1:]])
    assert block == ChildFailedError("train.py", theirs).format_msg()


def test_the_summary_lists_the_root_once() -> None:
    """The failures usually contain the job's cause: it is not listed as another one."""
    root, other = failed(rank=3), failed(rank=4)
    block = summary("train.py", root[0], [root[0], other[0]])
    assert block.count("rank      : 3") == 1
    assert block.count("rank      : 4") == 1


def test_the_summary_names_a_root_on_another_node() -> None:
    """All six fields, the other host's name, and the first line of its worker's error."""
    root = WorkerFailure("far/1", "far", 9, 1, 88, 1, "ValueError: boom", "/logs/error.json", "2026-11-20_08:49:50")
    block = summary("train.py", root, [failed("", -15)[0]])
    cause = block.split("Root Cause (first observed failure):\n")[1].splitlines()
    assert cause[:-1] == [
        "[0]:",
        "  time      : 2026-11-20_08:49:50",
        "  host      : far",
        "  rank      : 9 (local_rank: 1)",
        "  exitcode  : 1 (pid: 88) ",
        "  error_file: /logs/error.json",
        "  traceback : ValueError: boom",
    ]


def test_the_summary_says_what_is_wrong_with_an_error_file(path: Path) -> None:
    """A truncated error file is named in place of its traceback."""
    path.write_text('{"mess')
    assert f"  traceback : error file {path}: not JSON" in summary("train.py", failed(path)[0])


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [GOOD, {"message": "plain words", "timestamp": 1700000000}, GOOD | {"extra": [1]}])
def test_the_agents_error_file_is_torchruns(
    path: Path, monkeypatch: pytest.MonkeyPatch, content: dict[str, object]
) -> None:
    """The root cause's file is copied as torch's launcher does, with the errorCode."""
    from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

    path.write_text(json.dumps(content))
    theirs, ours = path.with_name("theirs.json"), path.with_name("ours.json")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(theirs))
    ErrorHandler().dump_error_file(str(path), -11)
    assert write_error_file(str(ours), *failed(path, -11)) == ""
    assert json.loads(ours.read_text()) == json.loads(theirs.read_text())


def test_a_failure_without_a_file_is_written_too(path: Path) -> None:
    """Killed by a signal, or on another node: what is known of it is written in the same form, and can be read back."""
    failure, report = failed("", -9)
    assert write_error_file(str(path), failure, report) == ""
    written = read_error_file(str(path))
    assert written.message == str(failure)
    assert written.traceback == "Signal 9 (SIGKILL) received by PID 4242"
    assert written.trouble == ""
    assert json.loads(path.read_text())["message"]["errorCode"] == -9


def test_other_errors_are_written_in_the_same_form(path: Path) -> None:
    """To the scheduler, a rendezvous that timed out looks like torch's own error."""
    assert write_agent_error(str(path), STACK, 12, exit_code=76) == ""
    report = read_error_file(str(path))
    assert (report.message, report.traceback, report.timestamp) == ("ValueError: boom", STACK, 12)
    assert json.loads(path.read_text())["message"]["errorCode"] == 76


def test_the_agents_error_file_is_replaced_atomically(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader sees the old file or the new one, never a part of one; no other file is left behind."""
    path.write_text("old")
    seen = []

    def replace(source: str, target: str) -> None:
        seen.append((json.loads(Path(source).read_text()), Path(target).read_text()))
        os.rename(source, target)

    monkeypatch.setattr("os.replace", replace)
    assert write_agent_error(str(path), "E: x", 1) == ""
    assert seen == [(json.loads(path.read_text()), "old")]
    assert os.listdir(path.parent) == ["error.json"]


def test_a_file_that_cannot_be_replaced_is_written_in_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes' /dev/termination-log is a mount: rename fails there, writing does not."""

    def replace(source: str, target: str) -> None:
        raise OSError(16, os.strerror(16))

    monkeypatch.setattr("os.replace", replace)
    path.write_text("old" * 1000)
    assert write_agent_error(str(path), "E: x", 1) == ""
    assert read_error_file(str(path)).message == "E: x"
    assert os.listdir(path.parent) == ["error.json"]


def test_what_is_no_regular_file_is_written_to_and_stays(path: Path) -> None:
    """As root a device such as /dev/null could be replaced by a file, for all programs of the host."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert write_agent_error(str(path), "E: x", 1) == ""
    assert json.loads(os.read(reader, 65536))["message"]["message"] == "E: x"
    os.close(reader)
    assert path.is_fifo()
    assert "TORCHELASTIC_ERROR_FILE" in write_agent_error(str(path), "E: x", 1)  # nobody reads
    assert os.listdir(path.parent) == ["error.json"]


def test_an_unwritable_error_file_is_reported(path: Path) -> None:
    """In one line that names the file and the variable; the job's own failure stays visible."""
    trouble = write_agent_error(str(path / "below" / "nowhere"), "E: x", 1)
    assert "TORCHELASTIC_ERROR_FILE" in trouble
    assert str(path) in trouble
    assert "\n" not in trouble


def test_failures_on_nodes_with_one_name_are_all_listed() -> None:
    """Containers that share a host name, each with its agent as process 1, and pids that repeat."""
    root, other = (WorkerFailure("host:1", "host", rank, 0, 7, 1, f"error {rank}") for rank in (0, 1))
    shown = summary("train.py", root, (root, other))
    assert shown.count("error 0") == shown.count("error 1") == 1


# -- a real worker -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_torchs_record_in_a_real_worker(tmp_path: Path) -> None:
    """A script with torch's own `@record` fails: its error is read from the file that the worker was given."""
    job = JobLogs(LogSpec(base_dir=str(tmp_path)), "job")
    logs = job.open_round(1, 0, {0: 0}, "default", "here")
    code = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError('boom')

main()
"""
    env = os.environ | {"TORCHELASTIC_ERROR_FILE": logs.error_files[0]}
    worker = subprocess.Popen([sys.executable, "-c", code], env=env, cwd="/", stderr=subprocess.DEVNULL)
    exit_code = worker.wait(60)
    assert logs.finish(5)
    job.close()
    failure, report = failure_of("here/1", "here", 0, 0, worker.pid, exit_code, logs.error_files[0])
    assert (failure.exit_code, failure.message, report.trouble) == (1, "ValueError: boom", "")
    assert "in main" in report.traceback
    assert "ValueError: boom\n" in summary("train.py", failure)
    assert failure.error_file == logs.error_files[0]
