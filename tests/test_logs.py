"""Workers' output: which file, which line on the console, and that nothing about logs ever harms a worker."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.agent.logs import JobLogs, RoundLogs
from elastic_agent.agent.relay import Relay
from elastic_agent.agent.spec import LogSpec
from elastic_agent.agent.streams import CONSOLE_BUFFER, LONG_LINE, FileSink, mark

FINISH_S = 20.0
"""Bound on waits that end by an event; only a failing test gets near it."""


class Console:
    """A file in the place of the agent's stdout, another one for stderr."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / "console.out", folder / "console.err"]
        self.fds = [os.open(path, os.O_RDWR | os.O_CREAT) for path in self._paths]

    @property
    def out(self) -> bytes:
        return self._paths[0].read_bytes()

    @property
    def err(self) -> bytes:
        return self._paths[1].read_bytes()


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    console = Console(tmp_path)
    yield console
    for fd in console.fds:
        os.close(fd)


Begin = Callable[..., JobLogs]


@pytest.fixture
def begin(tmp_path: Path, console: Console) -> Iterator[Begin]:
    """Makes job logs below `tmp_path/logs`, with `console` for a console."""
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
    return logs.open_round(number, restarts, {local: 10 + local for local in range(nproc)}, "default", "nodehost")


def run(logs: RoundLogs, code: str, timeout_s: float = FINISH_S) -> bool:
    """Run `code` as each worker, to the end; its local rank is argv[1]. Returns what `finish` does."""
    workers = []
    for local_rank in logs.error_files:
        out, err = logs.stdio(local_rank)
        workers.append(subprocess.Popen([sys.executable, "-c", code, str(local_rank)], stdout=out, stderr=err))
    logs.handed_over()
    assert [worker.wait(FINISH_S) for worker in workers] == [0] * len(workers)
    return logs.finish(timeout_s)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


# -- directories -------------------------------------------------------------------------------------------------------


def test_layout_is_torchruns(begin: Begin, tmp_path: Path) -> None:
    """Files lie in <log dir>/<run id>_<random8>/attempt_<restarts>/<local rank>."""
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
    assert attempt.finish(0)


def test_error_files_can_be_written_without_any_redirect(begin: Begin) -> None:
    """Each worker's directory exists before it starts, with all output on the console."""
    attempt = open_round(begin())
    Path(attempt.error_files[0]).write_text("{}")
    assert attempt.stdio(0) == (None, None)


def test_relative_directory_becomes_absolute(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may change its directory, so the paths it gets do not depend on one."""
    monkeypatch.chdir(tmp_path)
    logs = JobLogs(LogSpec(base_dir="here"), "job")
    assert open_round(logs).error_files[0].startswith(f"{tmp_path}/here/job_")


def test_job_directory_is_private(begin: Begin) -> None:
    """Nobody else on the machine reads the logs of a job."""
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
def test_run_id_never_leaves_the_log_dir(begin: Begin, tmp_path: Path, run_id: str) -> None:
    """Whatever the run id holds, the job's directory is a plain child of the log dir."""
    path = Path(begin(run_id).path)
    assert path.resolve().parent == tmp_path / "logs"
    assert not path.name.startswith(".")
    assert len(path.name) < 200
    assert path.name.replace("_", "").replace("-", "").replace(".", "").isalnum()
    assert path.name.isascii()


def test_dev_null_keeps_no_files(begin: Begin) -> None:
    """--log-dir /dev/null: no directory, no error file, all output on the console, as torchrun."""
    logs = begin(base_dir="/dev/null", redirects={0: 3}, tee={1: 3}, local_ranks_filter=frozenset({0}))
    attempt = open_round(logs, 2)
    assert (logs.path, attempt.path) == ("", "")
    assert attempt.error_files == {0: "", 1: ""}
    assert attempt.stdio(0) == attempt.stdio(1) == (None, None)
    assert attempt.finish(0)


@pytest.mark.parametrize(("name", "reason"), [("file", "not a directory"), ("file/below", "Not a directory")])
def test_bad_log_dir_is_a_usage_error(tmp_path: Path, name: str, reason: str) -> None:
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
    """A change of membership keeps the restart count, and the logs of the round before (torchrun deletes them)."""
    logs = begin(redirects={0: 1})
    rounds = []
    for number in (1, 2, 2, 2):
        attempt = open_round(logs, number=number)
        assert run(attempt, "print('kept')")
        rounds.append(attempt)
    names = [Path(attempt.path).name for attempt in rounds]
    assert names == ["attempt_0", "attempt_0_round_2", "attempt_0_round_2_2", "attempt_0_round_2_3"]
    assert all(Path(attempt.stdout_files[0]).read_text() == "kept\n" for attempt in rounds)


def test_a_swept_job_directory_is_made_anew(begin: Begin) -> None:
    """A cleaner of temporary files does not end a job that restarts a worker."""
    logs = begin()
    Path(logs.path).rmdir()
    assert Path(open_round(logs).error_files[0]).parent.is_dir()


def test_out_of_descriptors_is_a_usage_error_and_leaks_none(begin: Begin) -> None:
    """A node with many workers and a low limit hears of the limit."""
    logs = begin(tee=dict.fromkeys(range(50), 3), stdout_filters=("x",))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 40, hard))
    try:
        with pytest.raises(UsageError, match="ulimit -n"):
            open_round(logs, 50)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    logs.close()
    assert len(os.listdir("/proc/self/fd")) == before


# -- which stream goes where -------------------------------------------------------------------------------------------


def test_redirected_output_is_in_the_file_only(begin: Begin, console: Console) -> None:
    """Bit 1 is stdout, bit 2 is stderr; no thread runs for redirects."""
    before = threading.active_count()
    attempt = open_round(begin(redirects={0: 2}))
    assert attempt.stdio(0)[0] is None
    assert threading.active_count() == before
    run(attempt, "import sys; print('told', file=sys.stderr)")
    assert Path(attempt.stderr_files[0]).read_text() == "told\n"
    assert attempt.stdout_files[0] == ""
    assert console.err == b""


def test_tee_reaches_file_and_console(begin: Begin, console: Console) -> None:
    """The file has the bytes as written, the console has the prefix before each line."""
    attempt = open_round(begin(tee={0: 1, 1: 3}), 2)
    assert run(attempt, "import sys; print('out', sys.argv[1]); print('a\\nb', file=sys.stderr)")
    assert Path(attempt.stdout_files[1]).read_text() == "out 1\n"
    assert Path(attempt.stderr_files[1]).read_text() == "a\nb\n"
    assert sorted(console.out.splitlines()) == [b"[default0]:out 0", b"[default1]:out 1"]
    assert console.err == b"[default1]:a\n[default1]:b\n"


def test_ranks_outside_the_filter_do_not_reach_the_console(begin: Begin, console: Console) -> None:
    """--local-ranks-filter: the others' tee'd output is in their files, their plain output nowhere."""
    attempt = open_round(begin(tee={0: 1, 1: 1}, local_ranks_filter=frozenset({0})), 2)
    assert attempt.stdio(0)[1] is None
    assert run(attempt, "import sys; print('out', sys.argv[1])")
    assert console.out == b"[default0]:out 0\n"
    assert Path(attempt.stdout_files[1]).read_text() == "out 1\n"


def test_plain_output_outside_the_filter_goes_nowhere(begin: Begin) -> None:
    """Where there is no file, a rank outside the filter writes to /dev/null."""
    attempt = open_round(begin(local_ranks_filter=frozenset({0})), 2)
    assert attempt.stdio(0) == (None, None)
    for fd in attempt.stdio(1):
        assert fd is not None
        assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/null"
    attempt.handed_over()


def test_every_combination_goes_where_torchrun_sends_it(begin: Begin, tmp_path: Path) -> None:
    """Redirects, tee and filter together, each combination against torch's own DefaultLogsSpecs."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std

    for redirect, tee, shown in itertools.product(range(4), range(4), (None, {0}, {1})):
        theirs = DefaultLogsSpecs(str(tmp_path / "torch"), {0: Std(redirect)}, {0: Std(tee)}, shown).reify(
            {0: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0"}}
        )
        ranks = frozenset(shown or ())
        attempt = open_round(begin(redirects={0: redirect}, tee={0: tee}, local_ranks_filter=ranks))
        wanted = [
            ("pipe", theirs.stdouts[0]) if 0 in theirs.tee_stdouts else ("plain", theirs.stdouts[0]),
            ("pipe", theirs.stderrs[0]) if 0 in theirs.tee_stderrs else ("plain", theirs.stderrs[0]),
        ]
        for fd, (kind, path), kept in zip(
            attempt.stdio(0), wanted, (attempt.stdout_files[0], attempt.stderr_files[0]), strict=True
        ):
            target = "" if fd is None else os.readlink(f"/proc/self/fd/{fd}")
            assert ("pipe" if target.startswith("pipe:") else "plain") == kind, (redirect, tee, shown)
            if kind == "plain":
                assert Path(target).name == Path(path).name, (redirect, tee, shown)
            if path and path != "/dev/null":
                assert Path(kept).name == Path(path).name, (redirect, tee, shown)
        assert attempt.finish(FINISH_S)


def test_prefix_template_knows_its_names(begin: Begin, console: Console) -> None:
    """Role, local rank, rank, host and round are replaced; what is unknown stays, and a line stays one line."""
    template = "${role_name} ${local_rank} ${rank} ${host} ${round}\n${what} $ "
    attempt = open_round(begin(tee={0: 1}, prefix_template=template), number=7)
    run(attempt, "print('x')")
    assert console.out == b"default 0 10 nodehost 7 ${what} $ x\n"


def test_filtered_lines_are_copied(begin: Begin, console: Console) -> None:
    """Lines of tee'd streams with one of the substrings are also in one file per attempt, with their prefix."""
    attempt = open_round(begin(tee={0: 3, 1: 1}, stdout_filters=("loss", "acc"), stderr_filters=("bad",)), 2)
    assert run(attempt, "import sys; print('loss 1\\nother\\nacc 2'); print('bad é\\nfine', file=sys.stderr)")
    lines = Path(attempt.path, "filtered_stdout.log").read_text().splitlines()
    assert sorted(lines) == [f"[default{rank}]:{text}" for rank in (0, 1) for text in ("acc 2", "loss 1")]
    assert Path(attempt.path, "filtered_stderr.log").read_text() == "[default0]:bad é\n"
    assert console.out.count(b"other") == 2


# -- lines -------------------------------------------------------------------------------------------------------------


class Wire:
    """One tee'd stream without a worker: bytes go in, `out` is what the console got."""

    def __init__(self, console: Console, folder: Path, stdout_fd: int | None = None, stall_s: float = 5.0) -> None:
        self.troubles: list[str] = []
        self._console = console
        self.path = folder / "stdout.log"
        out = console.fds[0] if stdout_fd is None else stdout_fd
        self.relay = Relay(self.troubles.append, stdout_fd=out, stderr_fd=console.fds[1], stall_s=stall_s)
        self.fd, self._stream = self.relay.add(b"> ", FileSink(str(self.path), self.troubles.append), err=False)

    def send(self, *parts: bytes) -> bytes:
        """Write the parts, end the stream, return what is on the console."""
        for part in parts:
            write_all(self.fd, part)
        self.end()
        assert self.path.read_bytes() == b"".join(parts)
        return self._console.out

    def end(self) -> None:
        os.close(self.fd)
        assert self.relay.finish([self._stream], FINISH_S)
        self.relay.close()


@pytest.fixture
def wire(console: Console, tmp_path: Path) -> Wire:
    return Wire(console, tmp_path)


def test_unfinished_last_line_is_shown_at_the_end(wire: Wire) -> None:
    """What a dying worker wrote without an end of line is not lost, and the next line starts on its own."""
    assert wire.send(b"one\ntw", b"o") == b"> one\n> two\n"


def test_carriage_returns_pass_through(wire: Wire) -> None:
    r"""A progress bar's \r ends a piece of line and stays what it is; \r\n is one end."""
    assert wire.send(b"10%\r20%\r", b"30%\rdone\r\nnext\n") == b"> 10%\r> 20%\r> 30%\r> done\r\n> next\n"


def test_binary_output_passes_through(wire: Wire) -> None:
    """Bytes that are no text reach the console unharmed."""
    assert wire.send(b"\x00\xff\xfe\x1b[31m\n") == b"> \x00\xff\xfe\x1b[31m\n"


def test_long_line_is_passed_on_in_pieces(wire: Wire) -> None:
    """A line longer than 64 KiB is cut on the console, whole in the file; memory stays bounded."""
    shown = wire.send(b"x" * (3 * LONG_LINE + 5) + b"\nshort\n")
    assert [len(line) - 2 for line in shown.splitlines()] == [LONG_LINE] * 3 + [5, 5]


def test_progress_is_shown_before_the_line_ends(tmp_path: Path, console: Console) -> None:
    """A bar that has not reached its end of line yet is on the console, one update behind at most."""
    reader, writer = os.pipe()
    wire = Wire(console, tmp_path, stdout_fd=writer)
    os.close(writer)
    os.write(wire.fd, b"10%\r20%\r30")
    assert os.read(reader, 100) == b"> 10%\r> 20%\r"
    wire.end()
    os.close(reader)


@pytest.mark.parametrize("prefix", [b"", b"[0]:"])
def test_mark_prefixes_each_line(prefix: bytes) -> None:
    """Empty lines get the prefix too, an empty prefix changes nothing."""
    assert mark(prefix, b"a\n\nb\r\n") == prefix + b"a\n" + prefix + b"\n" + prefix + b"b\r\n"


def test_lines_of_workers_never_mix(begin: Begin, console: Console) -> None:
    """Two workers that write in odd pieces: each line on the console is one line of one worker, none is lost."""
    code = """
import os, sys
data = b''.join(b'%d:%06d:%s\\n' % (int(sys.argv[1]), i, b'y' * (i % 150)) for i in range(5000))
for at in range(0, len(data), 777):
    os.write(1, data[at:at + 777])
"""
    attempt = open_round(begin(tee={0: 1, 1: 1}), 2)
    assert run(attempt, code)
    lines = console.out.splitlines()
    for rank in (0, 1):
        mine = [line for line in lines if line.startswith(b"[default%d]:" % rank)]
        assert mine == [b"[default%d]:%d:%06d:%s" % (rank, rank, i, b"y" * (i % 150)) for i in range(5000)]
    assert len(lines) == 10000


# -- what harms no worker ----------------------------------------------------------------------------------------------


def test_grandchild_that_holds_the_pipe_does_not_hang_finish(begin: Begin, console: Console) -> None:
    """A process that outlives its worker with the worker's stdout is given up, what was written is shown."""
    code = """
import subprocess, sys
child = subprocess.Popen(['sleep', '60'])
print(child.pid, end='')
"""
    attempt = open_round(begin(tee={0: 1}))
    complete = run(attempt, code, timeout_s=0.05)
    pid = int(Path(attempt.stdout_files[0]).read_text())
    os.kill(pid, 9)
    assert not complete
    assert console.out == b"[default0]:%d\n" % pid


def test_grandchild_that_floods_the_pipe_does_not_hang_finish(begin: Begin) -> None:
    """Not even one that writes faster than it can be read."""
    logs = begin(tee={0: 1})
    attempt = open_round(logs)
    flood = subprocess.Popen(["yes"], stdout=attempt.stdio(0)[0], stderr=subprocess.DEVNULL)
    attempt.handed_over()
    assert not attempt.finish(0.05)
    assert flood.wait(FINISH_S) != 0


def test_closed_console_harms_nothing(tmp_path: Path, console: Console) -> None:
    """`| head` on the agent: workers go on, files are complete, the trouble is told once."""
    reader, writer = os.pipe()
    wire = Wire(console, tmp_path, stdout_fd=writer)
    os.close(writer)
    os.close(reader)
    wire.send(*[b"line\n" * 1000] * 100)
    assert len(wire.troubles) == 1
    assert os.strerror(errno.EPIPE) in wire.troubles[0]
    assert wire.relay.dropped == 100 * 1000 * len("> line\n")


def test_console_that_stands_still_blocks_nobody_for_ever(tmp_path: Path, console: Console) -> None:
    """A terminal stopped with Ctrl-S: output beyond the buffer is dropped after a while, the file has all of it."""
    reader, writer = os.pipe()
    wire = Wire(console, tmp_path, stdout_fd=writer, stall_s=0.1)
    os.close(writer)
    wire.send(*[b"z" * 99 + b"\n"] * (4 * CONSOLE_BUFFER // 100))
    assert len(wire.troubles) == 1
    assert "stdout" in wire.troubles[0]
    assert wire.relay.dropped > 2 * CONSOLE_BUFFER
    os.close(reader)


def test_console_that_goes_on_gets_the_later_lines(tmp_path: Path, console: Console) -> None:
    """After it was given up, a console that is read again shows what is written from then on."""
    reader, writer = os.pipe()
    wire = Wire(console, tmp_path, stdout_fd=writer, stall_s=0.05)
    os.close(writer)
    write_all(wire.fd, b"z" * 99 + b"\n")
    write_all(wire.fd, (b"z" * 99 + b"\n") * (3 * CONSOLE_BUFFER // 100))
    seen = bytearray()
    os.set_blocking(reader, False)
    deadline = time.monotonic() + FINISH_S
    # The first line written after the console was found writable arrives; those before it were dropped.
    while b"again" not in seen and time.monotonic() < deadline:
        os.write(wire.fd, b"again\n")
        try:
            seen += os.read(reader, 1 << 20)
        except BlockingIOError:
            continue
    assert seen.endswith(b"\n> again\n")
    wire.end()
    os.close(reader)


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_slow_console_gets_every_line(tmp_path: Path, console: Console, kind: str) -> None:
    """A console slower than its workers makes them wait; no line is lost or torn, be it a pipe, socket or terminal."""
    if kind == "pipe":
        reader, writer = os.pipe()
    elif kind == "terminal":
        reader, writer = os.openpty()
        subprocess.run(["stty", "-opost"], stdin=writer, check=True)
    else:
        reader, writer = (end.detach() for end in socket.socketpair())
    wire = Wire(console, tmp_path, stdout_fd=writer, stall_s=FINISH_S)
    if kind != "terminal":
        os.close(writer)
    count = 3 * CONSOLE_BUFFER // 100
    lines = b"".join(b"%099d\n" % number for number in range(count))
    worker = threading.Thread(target=write_all, args=(wire.fd, lines))
    worker.start()
    seen = bytearray()
    while seen.count(b"\n", max(0, len(seen) - 200)) == 0 or not seen.endswith(b"%099d\n" % (count - 1)):
        seen += os.read(reader, 65536)
    worker.join()
    wire.end()
    assert bytes(seen) == mark(b"> ", lines)
    assert wire.troubles == []
    os.close(reader)
    if kind == "terminal":
        os.close(writer)


def test_full_disk_harms_nothing(tmp_path: Path, console: Console) -> None:
    """ENOSPC in the log file: the worker does not see it, the console goes on, the trouble is told once."""
    troubles: list[str] = []
    relay = Relay(troubles.append, stdout_fd=console.fds[0], stderr_fd=console.fds[1])
    file = FileSink("/dev/full", troubles.append)
    fd, stream = relay.add(b"", file, err=False)
    for _ in range(10):
        write_all(fd, b"line\n" * 20000)
    os.close(fd)
    assert relay.finish([stream], FINISH_S)
    relay.close()
    assert console.out == b"line\n" * 200000
    assert file.dropped == 1000000
    assert len(troubles) == 1
    assert os.strerror(errno.ENOSPC) in troubles[0]


def test_trouble_is_told_on_stderr_where_nobody_asked(tmp_path: Path, console: Console) -> None:
    """Without a callback the line about lost output goes where people look."""
    relay = Relay(stdout_fd=console.fds[0], stderr_fd=console.fds[1])
    fd, stream = relay.add(b"", FileSink("/dev/full", relay.on_trouble), err=False)
    write_all(fd, b"line\n")
    os.close(fd)
    assert relay.finish([stream], FINISH_S)
    relay.close()
    assert console.err.count(b"\n") == 1
    assert b"/dev/full: No space left on device" in console.err


def test_agent_without_a_stdout_still_keeps_files(tmp_path: Path, console: Console) -> None:
    """A daemon started with its stdout closed: nobody listens, which is no trouble."""
    closed = os.dup(console.fds[0])
    os.close(closed)
    wire = Wire(console, tmp_path, stdout_fd=closed)
    assert wire.send(b"kept\n") == b""
    assert wire.troubles == []


def test_stdout_and_stderr_on_one_pipe_share_a_queue(tmp_path: Path) -> None:
    """`2>&1 | tee`: lines of both are whole, none is lost."""
    reader, writer = os.pipe()
    relay = Relay(stdout_fd=writer, stderr_fd=writer)
    os.close(writer)
    ends = [relay.add(b"%d:" % err, FileSink(f"{tmp_path}/{err}", print), err=bool(err)) for err in (0, 1)]
    for number in range(200):
        write_all(ends[number % 2][0], b"%d " % number * 30 + b"\n")
    for fd, stream in ends:
        os.close(fd)
        assert relay.finish([stream], FINISH_S)
    relay.close()
    lines = os.read(reader, 1 << 20).splitlines()
    assert sorted(lines) == sorted(b"%d:" % (n % 2) + b"%d " % n * 30 for n in range(200))
    os.close(reader)


def test_a_broken_relay_lets_everybody_go(tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the thread itself fail, no worker waits for a reader that is gone, and `finish` says so at once."""
    broke: list[object] = []
    monkeypatch.setattr("threading.excepthook", broke.append)

    def complain(text: str) -> None:
        raise RuntimeError(text)

    relay = Relay(complain, stdout_fd=console.fds[0], stderr_fd=console.fds[1])
    fd, stream = relay.add(b"", FileSink("/dev/full", relay.on_trouble), err=False)
    write_all(fd, b"line\n")
    assert not relay.finish([stream], FINISH_S)
    with pytest.raises(BrokenPipeError):
        os.write(fd, b"line\n")
    os.close(fd)
    relay.close()
    assert len(broke) == 1
    with pytest.raises(RuntimeError, match="has ended"):
        relay.add(b"", FileSink("/dev/null", print), err=False)


def test_rounds_share_one_thread(begin: Begin) -> None:
    """However many workers and rounds, one thread relays; it ends with `close`."""
    before = threading.active_count()
    logs = begin(tee=dict.fromkeys(range(4), 3))
    for number in (1, 2):
        assert run(open_round(logs, 4, number=number), "print('x')")
        assert threading.active_count() == before + 1
    logs.close()
    assert threading.active_count() == before
