"""Passing workers' output on: lines stay whole and in order."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from elastic_agent.agent.output.lines import prefix_lines
from elastic_agent.agent.output.relay import CONSOLE_BUFFER, Relay, pause_ms
from elastic_agent.agent.output.sinks import FileSink
from elastic_agent.agent.output.streams import LineFilter, Route
from elastic_agent.agent.output.writers import HoldBudget
from support.consoles import FINISH_S, Console, write_all
from support.rigs.relays import LINE, Feed, Troubles, wait_for


def test_file_has_the_bytes_and_console_the_lines(troubles: Troubles, console: Console, tmp_path: Path) -> None:
    """An unfinished last line is shown, and the file ends without an end of line as it was written."""
    feed = troubles.feed(console, tmp_path / "log")
    write_all(feed.fd, b"one\r\ntwo\n\xff")
    assert feed.end()
    assert (tmp_path / "log").read_bytes() == b"one\r\ntwo\n\xff"
    assert console.out == b"> one\r\n> two\n> \xff\n"
    assert troubles == []


def test_an_unfinished_line_on_the_consoles_stderr_is_known_until_it_is_asked_for(pipe: list[int]) -> None:
    """Whoever asks prints the end of the line; one on stdout alone does not count."""
    (read, write), (out, err) = pipe, os.pipe()
    relay = Relay(stdout_fd=write, stderr_fd=err)
    feeds = [Feed(relay, Route(err=bool(n), shown=True)) for n in range(2)]
    for feed, data, unfinished in zip(feeds, (b"50%", b"done\n50%"), (False, True), strict=True):
        write_all(feed.fd, data)
        os.close(feed.fd)
        assert relay.finish([feed.stream], FINISH_S)
        assert (relay.take_midline(), relay.take_midline()) == (unfinished, False)
    assert (os.read(read, 99), os.read(out, 99)) == (b"50%", b"done\n50%")
    relay.close()
    os.close(out)
    os.close(err)


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
