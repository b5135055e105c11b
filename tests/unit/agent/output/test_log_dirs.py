"""Log directories and a round's logs: which output goes to which file, and what the console shows."""

from __future__ import annotations

import itertools
import os
import resource
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_agent.agent.errors import HostFailed, UsageError
from elastic_agent.agent.output.log_dirs import JobLogs
from elastic_agent.agent.output.rotation import RotatingFile
from elastic_agent.agent.output.round_logs import RoundLogs
from elastic_agent.agent.spec import LogSpec, Rotation
from support.consoles import FINISH_S, Console

Begin = Callable[..., JobLogs]


@pytest.fixture
def begin(tmp_path: Path, console: Console) -> Iterator[Begin]:
    """Makes job logs below `tmp_path/logs`, with `console` as their console."""
    made: list[JobLogs] = []

    def _begin(run_id: str = "job", **kwargs: object) -> JobLogs:
        spec = LogSpec(**({"base_dir": str(tmp_path / "logs")} | kwargs))  # type: ignore[arg-type]
        logs = JobLogs(spec, run_id, stdout_fd=console.fds[0], stderr_fd=console.fds[1])
        made.append(logs)
        return logs

    yield _begin
    for logs in made:
        logs.close()


def open_round(logs: JobLogs, nproc: int = 1, number: int = 1, restarts: int = 0) -> RoundLogs:
    """A round with all of its streams open."""
    ranks = {local: 10 + local for local in range(nproc)}
    attempt = logs.open_round(number, restarts, ranks, "default", "nodehost")
    try:
        for local in ranks:
            attempt.stdio(local)
    except HostFailed:
        attempt.finish(0.0)
        raise
    return attempt


def run(logs: RoundLogs, code: str, timeout_s: float = FINISH_S) -> bool:
    """Run `code` as each worker, to its exit; its local rank is argv[1]. Returns what `finish` returns."""
    workers = []
    for local_rank in logs.error_files:
        out, err = logs.stdio(local_rank)
        workers.append(subprocess.Popen([sys.executable, "-c", code, str(local_rank)], stdout=out, stderr=err))
    logs.close_worker_ends()
    assert [worker.wait(FINISH_S) for worker in workers] == [0] * len(workers)
    return logs.finish(timeout_s)


# -- directories -------------------------------------------------------------------------------------------------------


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


# -- files of bounded size ---------------------------------------------------------------------------------------------


def contents(path: str) -> list[bytes]:
    """Of the renamed files, oldest first, and of the one that is written to."""
    folder, name = Path(path).parent, Path(path).name
    renamed = sorted((int(file.suffix[1:]), file) for file in folder.glob(f"{name}.*"))
    return [file.read_bytes() for _, file in renamed] + [Path(path).read_bytes()]


@pytest.mark.parametrize("keep", [None, 0, 2])
def test_full_files_are_renamed(begin: Begin, keep: int | None) -> None:
    """No file is larger than the limit, no line is in two; all files are kept unless the user gives a number."""
    attempt = open_round(begin(redirects={0: 1}, rotation=Rotation(2000, keep)))
    assert run(attempt, "for i in range(1000): print(f'{i:020}')")
    files = contents(attempt.stdout_files[0])
    lines = b"".join(files).splitlines()
    assert lines == [b"%020d" % number for number in range(1000)][-len(lines) :]
    assert all(len(file) <= 2000 and file.endswith(b"\n") for file in files)
    assert len(files) == (11 if keep is None else keep + 1)


def test_a_line_larger_than_a_file_is_cut(begin: Begin) -> None:
    """Output without an end of line does not grow a file beyond its limit either, and none of it is lost."""
    attempt = open_round(begin(redirects={0: 1}, rotation=Rotation(1500)))
    assert run(attempt, "print('a'); print('x' * 5000, end='')")
    files = contents(attempt.stdout_files[0])
    assert b"".join(files) == b"a\n" + b"x" * 5000
    assert all(len(file) <= 1500 for file in files)


def test_a_file_that_cannot_be_renamed_is_written_to_further(tmp_path: Path) -> None:
    """Its directory was removed with all that was in it: the worker gets no error, the trouble is reported once."""
    troubles: list[str] = []
    (tmp_path / "logs").mkdir()
    file = RotatingFile(f"{tmp_path}/logs/out", troubles.append, Rotation(1024))
    (tmp_path / "logs/out").unlink()
    (tmp_path / "logs").rmdir()
    for _ in range(5):
        file.write(b"x" * 999 + b"\n")
    file.close()
    assert len(troubles) == 1
    assert troubles[0].startswith(f"cannot rotate {tmp_path}/logs/out: No such file or directory")


def test_unfinished_lines_are_in_a_rotated_file_as_they_grow(tmp_path: Path) -> None:
    """A progress bar can be followed; where it outgrows the file, the whole line moves to the next one."""
    file = RotatingFile(str(tmp_path / "log"), lambda text: None, Rotation(1024))
    shown = tmp_path / "log"
    file.write(b"x" * 999 + b"\n")
    for step in (b"\r 10 %", b"\r 20 %", b"\r 30 %"):
        file.write(step)
        assert shown.read_bytes().endswith(step)
    file.write(b"\r" + b" 40 %" * 3 + b"\n")
    assert (tmp_path / "log.1").read_bytes() == b"x" * 999 + b"\n"
    assert shown.read_bytes() == b"\r 10 %\r 20 %\r 30 %\r 40 % 40 % 40 %\n"
    file.close()


@given(
    lengths=st.lists(st.integers(0, 1500), max_size=40),
    cuts=st.lists(st.integers(1, 700), min_size=1, max_size=20),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rotated_files_hold_every_byte_and_whole_lines(lengths: list[int], cuts: list[int], tmp_path: Path) -> None:
    """However the bytes arrive: in order, none twice, no file too large, no line in two files that fits into one."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    file = RotatingFile(str(folder / "log"), lambda text: None, Rotation(1024))
    text = b"".join(b"%03d" % (number % 1000) * (length // 3) + b"\n" for number, length in enumerate(lengths))
    at = 0
    for cut in itertools.cycle(cuts):
        if at >= len(text):
            break
        file.write(text[at : at + cut])
        at += cut
    file.close()
    files = contents(str(folder / "log"))
    assert b"".join(files) == text
    assert all(len(each) <= 1024 for each in files)
    for each in files[:-1]:
        line = each.rpartition(b"\n")[2]
        assert each.endswith(b"\n") or len(line) == len(each) or len(each) == 1024


# -- which stream goes where -------------------------------------------------------------------------------------------


def test_redirected_output_is_in_the_file_only(begin: Begin, console: Console) -> None:
    """Bit 1 is stdout, bit 2 is stderr; what is not redirected is shown on the console as written."""
    attempt = open_round(begin(redirects={0: 2}))
    run(attempt, "import sys; print('shown'); print('kept', file=sys.stderr)")
    assert Path(attempt.stderr_files[0]).read_text() == "kept\n"
    assert attempt.stdout_files[0] == ""
    assert (console.out, console.err) == (b"shown\n", b"")


def test_tee_reaches_file_and_console(begin: Begin, console: Console) -> None:
    """The file has the bytes as written, the console has the prefix before each line."""
    attempt = open_round(begin(tee={0: 1, 1: 3}), 2)
    assert run(attempt, "import sys; print('out', sys.argv[1]); print('a\\nb', file=sys.stderr)")
    assert Path(attempt.stdout_files[1]).read_text() == "out 1\n"
    assert Path(attempt.stderr_files[1]).read_text() == "a\nb\n"
    assert sorted(console.out.splitlines()) == [b"[default0]:out 0", b"[default1]:out 1"]
    assert sorted(console.err.splitlines()) == [b"[default1]:a", b"[default1]:b", b"a", b"b"]


def test_stdout_and_stderr_that_share_a_console_keep_their_order(tmp_path: Path) -> None:
    """`2>&1`: what a worker writes to either arrives in the order written, although the agent passes it on."""
    with open(tmp_path / "both", "wb") as both:
        logs = JobLogs(LogSpec(base_dir="/dev/null"), "job", stdout_fd=both.fileno(), stderr_fd=both.fileno())
        attempt = open_round(logs)
        assert run(attempt, "import os\nfor i in range(999): os.write(1 + i % 2, b'%d\\n' % i)")
        logs.close()
    assert (tmp_path / "both").read_bytes().split() == [b"%d" % number for number in range(999)]


def test_ranks_outside_the_filter_do_not_reach_the_console(begin: Begin, console: Console) -> None:
    """--local-ranks-filter: the other ranks' tee'd output is in their files only."""
    attempt = open_round(begin(tee={0: 1, 1: 1}, local_ranks_filter=frozenset({0})), 2)
    assert run(attempt, "import sys; print('out', sys.argv[1])")
    assert console.out == b"[default0]:out 0\n"
    assert Path(attempt.stdout_files[1]).read_text() == "out 1\n"


def test_plain_output_outside_the_filter_goes_nowhere(begin: Begin, console: Console) -> None:
    """Where there is no file, a rank outside the filter writes to /dev/null."""
    attempt = open_round(begin(local_ranks_filter=frozenset({0})), 2)
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in attempt.stdio(1)] == ["/dev/null"] * 2
    assert run(attempt, "import sys; print(sys.argv[1])")
    assert console.out == b"0\n"


def test_every_combination_goes_where_torchrun_sends_it(begin: Begin, tmp_path: Path, console: Console) -> None:
    """Redirects, tee and filter together: the same files, and the same on the console, as torch's DefaultLogsSpecs."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std

    for redirect, tee, shown in itertools.product(range(4), range(4), (None, {0}, {1})):
        theirs = DefaultLogsSpecs(str(tmp_path / "torch"), {0: Std(redirect)}, {0: Std(tee)}, shown).reify(
            {0: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0"}}
        )
        ranks = frozenset(shown or ())
        attempt = open_round(begin(redirects={0: redirect}, tee={0: tee}, local_ranks_filter=ranks))
        before = (len(console.out), len(console.err))
        for fd, written in zip(attempt.stdio(0), (b"o\n", b"e\n"), strict=True):
            os.write(fd, written)
        assert attempt.finish(FINISH_S)
        for text, file, teed, kept, seen in (
            ("o\n", theirs.stdouts[0], theirs.tee_stdouts, attempt.stdout_files[0], console.out[before[0] :]),
            ("e\n", theirs.stderrs[0], theirs.tee_stderrs, attempt.stderr_files[0], console.err[before[1] :]),
        ):
            # torch: no file is the console itself, /dev/null is nowhere, and what is tee'd is read from its file.
            where = (redirect, tee, shown)
            there = "" if file in ("", "/dev/null") else Path(file).name
            assert (Path(kept).name if kept else "") == there, where
            assert not kept or Path(kept).read_text() == text, where
            wanted = f"[default0]:{text}" if 0 in teed else text if not file else ""
            assert seen.decode() == wanted, where


def test_the_prefix_template_has_its_names_replaced(begin: Begin, console: Console) -> None:
    """Role, local rank, rank, host and round are replaced; unknown names stay, and a prefix is one line."""
    template = "${role_name} ${local_rank} ${rank} ${host} ${round}\n${what} $ "
    attempt = open_round(begin(tee={0: 1}, prefix_template=template), number=7)
    run(attempt, "print('x')")
    assert console.out == b"default 0 10 nodehost 7 ${what} $ x\n"


def test_the_prefix_template_has_the_time(begin: Begin, console: Console) -> None:
    """Each line has the time at which it was read, on this host's clock, to the millisecond."""
    attempt = open_round(begin(tee={0: 1}, prefix_template="${time} ${role}: "))
    before = time.time()
    assert run(attempt, "print('x')")
    date, clock, rest = console.out.decode().split(" ", 2)
    shown = time.mktime(time.strptime(f"{date} {clock[:8]}", "%Y-%m-%d %H:%M:%S"))
    assert before - 1 < shown <= time.time()
    assert clock[8] == "."
    assert clock[9:].isdigit()
    assert rest == "default: x\n"


def test_filtered_lines_are_copied(begin: Begin, console: Console) -> None:
    """Lines of tee'd streams that contain a substring are also in one file per attempt, with their prefix."""
    attempt = open_round(begin(tee={0: 3, 1: 1}, stdout_filters=("loss", "acc"), stderr_filters=("bad",)), 2)
    assert run(attempt, "import sys; print('loss 1\\nother\\nacc 2'); print('bad é\\nfine', file=sys.stderr)")
    lines = Path(attempt.path, "filtered_stdout.log").read_text().splitlines()
    assert sorted(lines) == [f"[default{rank}]:{text}" for rank in (0, 1) for text in ("acc 2", "loss 1")]
    assert Path(attempt.path, "filtered_stderr.log").read_text() == "[default0]:bad é\n"
    assert console.out.count(b"other") == 2


# -- the end of stderr -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"tee": {0: 3}}, {"redirects": {0: 3}}, {"base_dir": "/dev/null"}])
def test_the_end_of_stderr_is_kept_with_and_without_a_file(begin: Begin, kind: dict[str, object]) -> None:
    """64 KiB of it, wherever the stream goes."""
    attempt = open_round(begin(**kind))
    assert run(attempt, "import sys; print('out'); print('x' * 99999, file=sys.stderr); sys.stderr.write('é end')")
    tail = attempt.stderr_tail(0)
    assert tail is not None
    assert tail.endswith("x\né end")
    assert len(tail.encode()) == 65536


def test_a_rank_outside_the_filter_has_no_stderr_tail(begin: Begin) -> None:
    """Output that goes nowhere is not read."""
    attempt = open_round(begin(local_ranks_filter=frozenset({1})), 2)
    assert run(attempt, "import sys; print('text', file=sys.stderr)")
    assert (attempt.stderr_tail(0), attempt.stderr_tail(1)) == (None, "text\n")
