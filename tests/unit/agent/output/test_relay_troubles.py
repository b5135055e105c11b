"""Passing workers' output on: no file or console ends or blocks a worker."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
import time
from pathlib import Path

import pytest

from elastic_agent.agent.output.lines import prefix_lines
from elastic_agent.agent.output.relay import CONSOLE_BUFFER, FILES_BUFFER, Relay
from elastic_agent.agent.output.sinks import FileSink
from elastic_agent.agent.output.streams import Route, Stream
from elastic_agent.agent.output.writers import HOLD_S
from support.consoles import FINISH_S, Console, write_all
from support.rigs.relays import LINE, Feed, Troubles, wait_for


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


def test_what_a_worker_wrote_that_has_exited_is_read_though_others_are_held_up(
    troubles: Troubles, console: Console, pipe: list[int]
) -> None:
    """The traceback in its pipe is the cause of the failure, while the console is behind with another's output."""
    flood = troubles.feed(console, None, pipe[1], hold_s=10 * FINISH_S)
    lines = LINE * (2 * CONSOLE_BUFFER // 100)
    flooding = threading.Thread(target=write_all, args=(flood.fd, lines))
    flooding.start()
    failed = Feed(flood.relay, Route(shown=True))
    wait_for(lambda: failed.stream.hold_until(time.monotonic()) is not None)
    os.write(failed.fd, b"ValueError: why\n")
    flood.relay.release(failed.stream)
    wait_for(lambda: failed.stream.tail == b"ValueError: why\n")
    os.close(pipe.pop(0))
    flooding.join(FINISH_S)
    os.close(failed.fd)
    flood.end()


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
