"""Passing workers' output on: lines stay whole and in order, and no file or console ends or blocks a worker."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from elastic_agent.agent.output.lines import prefix_lines
from elastic_agent.agent.output.relay import CONSOLE_BUFFER, FILES_BUFFER, Relay, pause_ms
from elastic_agent.agent.output.sinks import FileSink
from elastic_agent.agent.output.streams import LineFilter, Route, Stream
from elastic_agent.agent.output.writers import HOLD_S, HoldBudget
from support.consoles import FINISH_S, Console, write_all

LINE = b"z" * 99 + b"\n"


class Feed:
    """One stream without a worker: bytes written to `fd` go to a file and a console."""

    def __init__(self, relay: Relay, route: Route, *, terminal: bool = False) -> None:
        self.relay = relay
        self.fd, self.stream = relay.add(route, terminal=terminal)

    def end(self, timeout_s: float = FINISH_S) -> bool:
        os.close(self.fd)
        whole = self.relay.finish([self.stream], timeout_s)
        self.relay.close()
        return whole


class Troubles(list[str]):
    """What a relay reports; also makes relays."""

    def relay(self, console: Console, out: int | None = None, hold_s: float = 0.1) -> Relay:
        fd = console.fds[0] if out is None else out
        return Relay(self.append, stdout_fd=fd, stderr_fd=console.fds[1], hold_s=hold_s, stall_s=hold_s)

    def feed(self, console: Console, path: Path | None, out: int | None = None, hold_s: float = 0.1) -> Feed:
        relay = self.relay(console, out, hold_s)
        file = FileSink(str(path), relay.report) if path else None
        return Feed(relay, Route(file=file, shown=True, prefix=lambda: b"> "))

    def dropped(self) -> int:
        """Bytes, by the reports that end a loss."""
        return sum(int(text.split()[0]) for text in self if text.split()[0].isdigit())


@pytest.fixture
def troubles() -> Troubles:
    return Troubles()


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """A console that is a pipe, [read end, write end]; a test may take an end out and close it itself."""
    ends = list(os.pipe())
    yield ends
    for fd in ends:
        os.close(fd)


def wait_for(found: Callable[[], bool]) -> None:
    """A bounded wait for a condition that no descriptor signals."""
    until = time.monotonic() + FINISH_S
    while not found():
        assert time.monotonic() < until
        select.select([], [], [], 0.002)


# -- what arrives ------------------------------------------------------------------------------------------------------


def test_file_has_the_bytes_and_console_the_lines(troubles: Troubles, console: Console, tmp_path: Path) -> None:
    """An unfinished last line is shown, and the file ends without an end of line as it was written."""
    feed = troubles.feed(console, tmp_path / "log")
    write_all(feed.fd, b"one\r\ntwo\n\xff")
    assert feed.end()
    assert (tmp_path / "log").read_bytes() == b"one\r\ntwo\n\xff"
    assert console.out == b"> one\r\n> two\n> \xff\n"
    assert troubles == []


def test_lines_of_workers_never_mix(troubles: Troubles, console: Console, tmp_path: Path) -> None:
    """Four workers that write in odd pieces: each line on the console is one line of one worker, none is lost."""
    code = """
import os, sys
data = b''.join(b'%d:%06d:%s\\n' % (int(sys.argv[1]), i, b'y' * (i % 150)) for i in range(5000))
for at in range(0, len(data), 777):
    os.write(1, data[at:at + 777])
"""
    relay = troubles.relay(console)
    feeds = [Feed(relay, Route(FileSink(f"{tmp_path}/{rank}", relay.report), shown=True)) for rank in range(4)]
    command = [sys.executable, "-c", code]
    workers = [subprocess.Popen([*command, str(n)], stdout=feed.fd) for n, feed in enumerate(feeds)]
    for feed in feeds:
        os.close(feed.fd)
    assert [worker.wait(FINISH_S) for worker in workers] == [0] * 4
    assert relay.finish([feed.stream for feed in feeds], FINISH_S)
    relay.close()
    lines = console.out.splitlines()
    for rank in range(4):
        wanted = [b"%d:%06d:%s" % (rank, i, b"y" * (i % 150)) for i in range(5000)]
        assert [line for line in lines if line.startswith(b"%d:" % rank)] == wanted
        assert (tmp_path / str(rank)).read_bytes().splitlines() == wanted
    assert len(lines) == 20000


def test_stdout_and_stderr_on_one_pipe_share_a_queue(tmp_path: Path, pipe: list[int]) -> None:
    """`2>&1 | tee`: lines of both are whole, none is lost."""
    relay = Relay(stdout_fd=pipe[1], stderr_fd=pipe[1])
    feeds = [Feed(relay, Route(err=bool(n), shown=True, prefix=partial(bytes, b"%d:" % n))) for n in (0, 1)]
    for number in range(200):
        write_all(feeds[number % 2].fd, b"%d " % number * 30 + b"\n")
    for feed in feeds:
        os.close(feed.fd)
    assert relay.finish([feed.stream for feed in feeds], FINISH_S)
    relay.close()
    lines = os.read(pipe[0], 1 << 20).splitlines()
    assert sorted(lines) == sorted(b"%d:" % (n % 2) + b"%d " % n * 30 for n in range(200))


def test_filtered_lines_are_whole_even_where_all_is_shown_at_once(
    troubles: Troubles, console: Console, tmp_path: Path
) -> None:
    """A line that comes in two pieces is filtered as one."""
    relay = troubles.relay(console)
    line_filter = LineFilter((b"loss",), FileSink(f"{tmp_path}/filtered", relay.report))
    feed = Feed(relay, Route(shown=True, at_once=True, prefix=lambda: b"> ", line_filter=line_filter))
    write_all(feed.fd, b"lo")
    wait_for(lambda: console.out == b"> lo")
    write_all(feed.fd, b"ss 1\nother\n")
    assert feed.end()
    assert (tmp_path / "filtered").read_bytes() == b"> loss 1\n"


def test_under_a_terminal_a_worker_gets_a_terminal(troubles: Troubles, console: Console) -> None:
    """The worker's terminal is as wide as the agent's, and a progress bar is shown before its line ends."""
    outer, inner = os.openpty()
    subprocess.run(["stty", "-opost", "rows", "33", "cols", "77"], stdin=inner, check=True)
    feed = Feed(troubles.relay(console, inner), Route(shown=True, at_once=True), terminal=True)
    code = "import os, sys; print(*os.get_terminal_size(1)); print('\\r 10%', end='', flush=True); sys.stdin.read()"
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=feed.fd)
    seen = b""
    while not seen.endswith(b"10%"):
        seen += os.read(outer, 100)
    worker.communicate(timeout=FINISH_S)
    assert feed.end()
    assert seen == b"77 33\n\r 10%"
    assert troubles == []
    os.close(outer)
    os.close(inner)


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_slow_console_gets_every_line(troubles: Troubles, console: Console, kind: str) -> None:
    """A console slower than its workers, by less than the buffer: no line is lost or split, whatever kind it is."""
    if kind == "pipe":
        reader, writer = os.pipe()
    elif kind == "terminal":
        reader, writer = os.openpty()
        subprocess.run(["stty", "-opost"], stdin=writer, check=True)
    else:
        reader, writer = (end.detach() for end in socket.socketpair())
    feed = troubles.feed(console, None, writer)
    if kind != "terminal":
        os.close(writer)
    lines = b"".join(b"%099d\n" % number for number in range(CONSOLE_BUFFER // 2 // 100))
    write_all(feed.fd, lines)
    wanted = prefix_lines(b"> ", lines)
    seen = bytearray()
    while len(seen) < len(wanted):
        seen += os.read(reader, 65536)
    assert feed.end()
    assert bytes(seen) == wanted
    assert troubles == []
    os.close(reader)
    if kind == "terminal":
        os.close(writer)


def test_a_reader_that_can_catch_up_gets_every_line(troubles: Troubles, console: Console, pipe: list[int]) -> None:
    """Workers faster than a program that reads them are held up, for a bounded time in all, before output is lost."""
    feed = troubles.feed(console, None, pipe[1], hold_s=FINISH_S)
    lines = LINE * (3 * CONSOLE_BUFFER // 100)
    worker = threading.Thread(target=write_all, args=(feed.fd, lines))
    worker.start()
    seen, wanted = 0, len(prefix_lines(b"> ", lines))
    while seen < wanted:
        seen += len(os.read(pipe[0], 65536))
    worker.join()
    assert feed.end()
    assert troubles == []


# -- no worker is harmed -----------------------------------------------------------------------------------------------


def test_a_closed_console_harms_nothing(troubles: Troubles, console: Console, tmp_path: Path, pipe: list[int]) -> None:
    """`| head` on the agent: workers go on, files are complete, the loss is reported as it begins, its size at last."""
    feed = troubles.feed(console, tmp_path / "log", pipe[1])
    while pipe:
        os.close(pipe.pop())
    write_all(feed.fd, b"line\n" * 100_000)
    assert feed.end()
    assert (tmp_path / "log").read_bytes() == b"line\n" * 100_000
    assert len(troubles) == 2
    assert os.strerror(errno.EPIPE) in troubles[0]
    assert feed.relay.dropped == troubles.dropped() == 100_000 * len("> line\n")
    assert "100000 line ends" in troubles[1]


def test_a_blocked_console_holds_workers_up_only_for_a_bounded_time(
    troubles: Troubles, console: Console, tmp_path: Path, pipe: list[int]
) -> None:
    """Nothing reads it: after a bounded wait output beyond the buffer is dropped; the file has all of it."""
    feed = troubles.feed(console, tmp_path / "log", pipe[1], hold_s=HOLD_S)
    lines = LINE * (4 * CONSOLE_BUFFER // 100)
    write_all(feed.fd, lines)
    assert not feed.end()
    assert (tmp_path / "log").read_bytes() == lines
    assert "the agent's stdout" in troubles[0]
    assert feed.relay.dropped == troubles.dropped() > 2 * CONSOLE_BUFFER


def test_a_blocked_terminal_holds_no_worker_up(troubles: Troubles, console: Console, tmp_path: Path) -> None:
    """Ctrl-S on the agent's terminal: no worker waits for it, however long they would wait for a program."""
    outer, inner = os.openpty()
    feed = troubles.feed(console, tmp_path / "log", inner, hold_s=10 * FINISH_S)
    lines = LINE * (4 * CONSOLE_BUFFER // 100)
    begun = time.monotonic()
    write_all(feed.fd, lines)
    assert time.monotonic() - begun < FINISH_S
    assert not feed.end()
    assert (tmp_path / "log").read_bytes() == lines
    assert troubles.dropped() > 2 * CONSOLE_BUFFER
    os.close(outer)
    os.close(inner)


def test_a_console_that_is_read_again_shows_the_later_lines(
    troubles: Troubles, console: Console, pipe: list[int]
) -> None:
    """After output was dropped, a console that is read again shows what is written from then on, in whole lines."""
    feed = troubles.feed(console, None, pipe[1])
    write_all(feed.fd, LINE * (3 * CONSOLE_BUFFER // 100))
    seen = bytearray()
    os.set_blocking(pipe[0], False)
    until = time.monotonic() + FINISH_S
    while b"> again\n" not in seen and time.monotonic() < until:
        os.write(feed.fd, b"again\n")
        try:
            seen += os.read(pipe[0], 1 << 20)
        except BlockingIOError:
            continue
    os.close(pipe.pop(0))
    feed.end()
    assert b"> again\n" in seen
    whole = seen[: seen.rfind(b"\n") + 1].splitlines(keepends=True)
    assert set(map(bytes, whole)) == {b"> " + LINE, b"> again\n"}


def test_a_full_disk_harms_nothing(troubles: Troubles, console: Console) -> None:
    """ENOSPC in the log file: the worker gets no error, the console shows all, the loss and its size are reported."""
    relay = troubles.relay(console)
    feed = Feed(relay, Route(FileSink("/dev/full", relay.report), shown=True))
    for _ in range(10):
        write_all(feed.fd, b"line\n" * 20000)
    assert feed.end()
    assert console.out == b"line\n" * 200000
    assert troubles.dropped() == 1000000
    assert len(troubles) == 2
    assert os.strerror(errno.ENOSPC) in troubles[0]


def test_a_disk_with_room_again_gets_whole_lines(troubles: Troubles, console: Console, tmp_path: Path) -> None:
    """What follows a gap in a file begins on a line of its own; the gap is counted."""
    relay = troubles.relay(console)
    file = FileSink(f"{tmp_path}/log", relay.report)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (105, hard))  # Python ignores SIGXFSZ, so write fails with EFBIG
    try:
        file.write(b"a" * 49 + b"\n" + b"b" * 49 + b"\n" + b"c" * 49 + b"\nd")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.write(b"d\ne\n")
    file.write(b"f\n")
    file.close()
    relay.close()
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert lines == [b"a" * 49, b"b" * 49, b"c" * 5, b"e", b"f"]
    assert file.dropped == 44 + 2 + 2
    assert os.strerror(errno.EFBIG) in troubles[0]


def test_a_disk_that_hangs_harms_nothing(troubles: Troubles, console: Console, tmp_path: Path) -> None:
    """A file system that no longer answers: the worker goes on, and so does the console."""
    os.mkfifo(tmp_path / "log")  # a write that blocks for as long as the test wants
    far = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    feed = troubles.feed(console, tmp_path / "log")
    lines = LINE * (3 * FILES_BUFFER // 100)
    write_all(feed.fd, lines)
    assert not feed.end()
    assert console.out == prefix_lines(b"> ", lines)
    assert str(tmp_path / "log") in troubles[0]
    os.close(far)


def test_without_a_callback_trouble_is_reported_on_stderr(console: Console) -> None:
    """The lines about lost output are written to the agent's stderr."""
    relay = Relay(stdout_fd=console.fds[0], stderr_fd=console.fds[1])
    feed = Feed(relay, Route(FileSink("/dev/full", relay.report)))
    write_all(feed.fd, b"line\n")
    assert feed.end()
    reported = console.err.splitlines()
    assert b"/dev/full: No space left on device" in reported[0]
    assert reported[1].startswith(b"5 bytes")


def test_an_agent_without_a_stdout_still_writes_files(troubles: Troubles, console: Console, tmp_path: Path) -> None:
    """A daemon started with its stdout closed: its output is not wanted, so nothing is reported as lost."""
    closed = os.dup(console.fds[0])
    os.close(closed)
    feed = troubles.feed(console, tmp_path / "log", closed)
    write_all(feed.fd, b"kept\n")
    assert feed.end()
    assert (tmp_path / "log").read_bytes() == b"kept\n"
    assert (console.out, troubles) == (b"", [])


def test_a_grandchild_that_holds_the_pipe_open_does_not_block_finish(troubles: Troubles, console: Console) -> None:
    """A stdout that a process holds open after its worker has exited is given up; what was written is shown."""
    feed = troubles.feed(console, None)
    write_all(feed.fd, b"text")
    held = os.dup(feed.fd)
    assert not feed.end(0.05)
    assert console.out == b"> text\n"
    os.close(held)


def test_a_grandchild_that_floods_the_pipe_does_not_block_finish(troubles: Troubles, console: Console) -> None:
    """Even one that writes faster than it can be read."""
    feed = troubles.feed(console, Path("/dev/null"))
    flood = subprocess.Popen(["yes"], stdout=feed.fd, stderr=subprocess.DEVNULL)
    assert not feed.end(0.05)
    assert flood.wait(FINISH_S) != 0


def test_a_relay_that_fails_blocks_no_worker(
    troubles: Troubles, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the thread itself fails, no worker waits for a reader that is gone, and `finish` returns False at once."""
    broke: list[str] = []
    monkeypatch.setattr("threading.excepthook", lambda args: broke.append(str(args.exc_value)))

    def fail(stream: Stream, data: bytes) -> None:
        raise RuntimeError(f"cannot take {data!r}")

    monkeypatch.setattr(Stream, "feed", fail)
    feed = troubles.feed(console, None)
    write_all(feed.fd, b"line\n")
    assert not feed.relay.finish([feed.stream], FINISH_S)
    with pytest.raises(BrokenPipeError):
        os.write(feed.fd, b"line\n")
    os.close(feed.fd)
    with pytest.raises(RuntimeError, match="has ended"):
        feed.relay.add(Route())
    feed.relay.close()
    assert broke == [r"cannot take b'line\n'"]


def test_a_callback_that_fails_ends_no_output(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """`on_trouble` raises: the workers' output goes on."""
    broke: list[str] = []
    monkeypatch.setattr("threading.excepthook", lambda args: broke.append(str(args.exc_value)))

    def complain(text: str) -> None:
        raise RuntimeError(text)

    relay = Relay(complain, stdout_fd=console.fds[0], stderr_fd=console.fds[1])
    feed = Feed(relay, Route(FileSink("/dev/full", relay.report), shown=True))
    write_all(feed.fd, b"line\n" * 1000)
    assert feed.end()
    assert console.out == b"line\n" * 1000
    assert len(broke) == 1


def test_all_streams_share_a_few_threads(troubles: Troubles, console: Console) -> None:
    """However many workers: one thread reads, one writes files, one each writes stdout and stderr."""
    before = set(threading.enumerate())
    relay = troubles.relay(console)
    feeds = [Feed(relay, Route(FileSink("/dev/null", relay.report), err=bool(n % 2), shown=True)) for n in range(16)]
    for feed in feeds:
        write_all(feed.fd, b"x\n")
        os.close(feed.fd)
    assert relay.finish([feed.stream for feed in feeds], FINISH_S)
    names = sorted(thread.name for thread in set(threading.enumerate()) - before)
    assert names == [f"elastic-agent-{name}" for name in ("files", "relay", "stderr", "stdout")]
    relay.close()
    assert set(threading.enumerate()) == before


def test_the_hold_budget_is_spent_once_and_regained_slowly() -> None:
    """Workers are held up for the limit in all, and from then on for at most 1 % of the time."""
    budget = HoldBudget(2.0)
    assert budget.left_s(100.0) == 2.0
    budget.spend(1.5, 101.5)
    assert budget.left_s(101.5) == 0.5
    budget.spend(0.5, 102.0)
    assert budget.left_s(152.0) == pytest.approx(0.5)
    assert budget.left_s(100_000.0) == 2.0


@pytest.mark.parametrize(
    ("most", "within_s", "capacity", "expected_ms"),
    [
        (100, 0.001, 1 << 20, 4),  # a line now and then
        (100, 0.00001, 1 << 20, 4),
        (80 << 10, 0.001, 1 << 20, 4),  # line by line, as fast as that goes: 6 ms to half a pipe
        (200 << 10, 0.001, 1 << 20, 2),  # in blocks
        (200 << 10, 0.0001, 1 << 20, 0),  # faster than any pause allows
        (1 << 18, 9.0, 1 << 20, 0),  # more is waiting already
        (100, 9.0, 1 << 19, 2),  # a smaller pipe fills sooner, once a quiet worker begins to write
        (100, 9.0, 1 << 16, 0),
    ],
)
def test_the_reader_pauses_only_as_long_as_no_pipe_is_half_full(
    most: int, within_s: float, capacity: int, expected_ms: int
) -> None:
    """A worker that prints line by line does not wake the reader with each; one that writes in blocks is not delayed
    by a reader that pauses."""
    assert pause_ms(most, within_s, capacity) == expected_ms
