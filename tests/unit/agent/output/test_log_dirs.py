"""Log directories: where a job's files are, and what happens where there is no room for them."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from elastic_agent.agent.errors import HostFailed, UsageError
from elastic_agent.agent.output.log_dirs import JobLogs
from elastic_agent.agent.spec import LogSpec
from support.consoles import FINISH_S, Console
from support.rigs.round_logs import Begin, open_round, run


def test_the_layout_is_torchruns(begin: Begin, tmp_path: Path) -> None:
    """Files are in <log dir>/<run id>_<random8>/attempt_<restarts>/<local rank>."""
    logs = begin(redirects={0: 3, 1: 3})
    attempt = open_round(logs, 2, restarts=4)
    job = Path(logs.path)
    assert job.parent == tmp_path / "logs"
    assert job.name.startswith("job_")
    assert len(job.name) == len("job_") + 8
    assert attempt.path == f"{job}/attempt_4"
    assert attempt.error_files == {rank: f"{attempt.path}/{rank}/error.json" for rank in (0, 1)}
    assert attempt.stdout_files[1] == f"{attempt.path}/1/stdout.log"
    assert attempt.stderr_files[0] == f"{attempt.path}/0/stderr.log"
    assert attempt.finish(FINISH_S)


def test_error_files_can_be_written_without_any_redirect(begin: Begin) -> None:
    """Each worker's directory exists before it starts, with all output on the console."""
    attempt = open_round(begin())
    Path(attempt.error_files[0]).write_text("{}")
    assert attempt.stdout_files == attempt.stderr_files == {0: ""}
    assert attempt.finish(FINISH_S)


def test_a_relative_directory_becomes_absolute(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may change its working directory, so the paths that it gets do not depend on it."""
    monkeypatch.chdir(tmp_path)
    logs = JobLogs(LogSpec(base_dir="here"), "job")
    attempt = open_round(logs)
    assert attempt.error_files[0].startswith(f"{tmp_path}/here/job_")
    assert attempt.finish(FINISH_S)
    logs.close()


def test_the_job_directory_is_private(begin: Begin) -> None:
    """No other user of the host can read the logs of a job."""
    assert stat.S_IMODE(os.stat(begin().path).st_mode) == 0o700


def test_without_log_dir_there_is_a_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No --log-dir: a fresh private directory below TMPDIR."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    paths = [Path(JobLogs(LogSpec(), "none").path) for _ in range(2)]
    assert paths[0].parent != paths[1].parent
    for path in paths:
        assert path.parent.parent == tmp_path
        assert path.parent.name.startswith("elastic_agent_")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("run_id", ["../../escaped", "/etc", "..", ".hidden", "a b\n$(x)", "é" * 300, ""])
def test_a_run_id_never_leaves_the_log_dir(begin: Begin, tmp_path: Path, run_id: str) -> None:
    """Whatever the run id contains, the job's directory is a plain child of the log dir."""
    path = Path(begin(run_id).path)
    assert path.resolve().parent == tmp_path / "logs"
    assert not path.name.startswith(".")
    assert len(path.name) < 200
    assert path.name.replace("_", "").replace("-", "").replace(".", "").isalnum()
    assert path.name.isascii()


def test_dev_null_keeps_no_files(begin: Begin, console: Console) -> None:
    """--log-dir /dev/null: no directory, no error file, all output on the console, as torchrun."""
    logs = begin(base_dir="/dev/null", redirects={0: 3}, tee={1: 3}, local_ranks_filter=frozenset({0}))
    attempt = open_round(logs, 2)
    assert (logs.path, attempt.path) == ("", "")
    assert attempt.error_files == {0: "", 1: ""}
    assert run(attempt, "print('plain')")
    assert console.out == b"plain\n"


@pytest.mark.parametrize(("name", "reason"), [("file", "not a directory"), ("file/below", "Not a directory")])
def test_a_bad_log_dir_is_a_usage_error(tmp_path: Path, name: str, reason: str) -> None:
    """One line names the path, the reason and the flag."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        JobLogs(LogSpec(base_dir=str(tmp_path / name)), "job")
    text = str(caught.value)
    assert str(tmp_path / name) in text
    assert reason in text
    assert "--log-dir" in text
    assert "\n" not in text


def test_attempt_directories_are_never_used_twice(begin: Begin) -> None:
    """After a change of membership the restart count is the same; the earlier logs are kept (torchrun deletes them)."""
    logs = begin(redirects={0: 1})
    rounds = []
    for number in (1, 2, 2, 2):
        attempt = open_round(logs, number=number)
        assert run(attempt, "print('kept')")
        rounds.append(attempt)
    names = [Path(attempt.path).name for attempt in rounds]
    assert names == ["attempt_0", "attempt_0_round_2", "attempt_0_round_2_2", "attempt_0_round_2_3"]
    assert all(Path(attempt.stdout_files[0]).read_text() == "kept\n" for attempt in rounds)


def test_a_removed_job_directory_is_made_again(begin: Begin) -> None:
    """A cleaner of temporary files has removed it: a restart of the workers still succeeds."""
    logs = begin()
    Path(logs.path).rmdir()
    attempt = open_round(logs)
    assert Path(attempt.error_files[0]).parent.is_dir()
    assert attempt.finish(FINISH_S)


def test_a_round_without_room_for_its_directory_goes_on_without_files(begin: Begin, console: Console) -> None:
    """What would go to files goes to the console, tee'd lines with their prefix, and one line has the reason."""
    logs = begin(redirects={0: 1}, tee={1: 1})
    Path(logs.path).rmdir()
    Path(logs.path).write_text("in the way")
    attempt = open_round(logs, 2)
    assert (attempt.path, attempt.error_files) == ("", {0: "", 1: ""})
    assert run(attempt, "import sys; print('worker', sys.argv[1])")
    assert sorted(console.out.splitlines()) == [b"worker 0", b"worker 1"]
    logs.close()
    assert console.err.count(b"cannot make the log directory") == 1
    assert b"round 1 run without log files" in console.err


@pytest.mark.parametrize("lost", ["folder", "file"])
def test_a_worker_without_room_for_its_file_writes_to_the_console(begin: Begin, console: Console, lost: str) -> None:
    """A disk that fills up while a round begins costs the files that it has no room for, and no worker."""
    logs = begin(tee={0: 1, 1: 1}, redirects={2: 1})
    logs_of_round = logs.open_round(1, 0, {0: 0, 1: 1, 2: 2}, "default", "nodehost")
    for local_rank in (1, 2):
        folder = Path(logs_of_round.error_files[local_rank]).parent
        if lost == "folder":
            folder.rmdir()
        else:
            (folder / "stdout.log").mkdir()
    assert run(logs_of_round, "import sys; print('worker', sys.argv[1])")
    assert sorted(console.out.splitlines()) == [
        b"[default0]:worker 0", b"[default1]:worker 1", b"[default2]:worker 2"
    ]  # fmt: skip
    assert Path(logs_of_round.stdout_files[0]).read_text() == "worker 0\n"
    assert logs_of_round.stdout_files[1] == ""
    logs.close()
    assert console.err.count(b"goes to the console") == 1


def test_running_out_of_descriptors_is_the_hosts_failure_and_leaks_none(begin: Begin) -> None:
    """On a node with many workers and a low limit the error names the limit."""
    logs = begin(tee=dict.fromkeys(range(50), 3), stdout_filters=("x",))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 40, hard))
    try:
        with pytest.raises(HostFailed, match="ulimit -n"):
            open_round(logs, 50)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    logs.close()
    assert len(os.listdir("/proc/self/fd")) == before
