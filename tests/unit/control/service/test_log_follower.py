"""What follows the output of workers, while they start and write."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_agent.agent.output.relay import Relay
from elastic_agent.agent.output.round_logs import RoundLogs
from elastic_agent.agent.spec import LogSpec
from elastic_agent.control.service.followers import PART_MAX, LogFollower, last_lines
from elastic_agent.control.service.messages import LogPart, LogsRequest

BOUND_S = 30.0


class Round:
    """A round of two workers, of ranks 4 and 5, and one that follows their output."""

    def __init__(self, folder: Path) -> None:
        self.relay = Relay(lambda text: None, stdout_fd=1, stderr_fd=2, hold_s=0.1, stall_s=0.1)
        self.logs = RoundLogs(LogSpec(redirects={0: 3, 1: 3}), str(folder), {0: 4, 1: 5}, {}, self.relay)
        self.written = threading.Semaphore(0)
        agent: Any = SimpleNamespace(workers=SimpleNamespace(round_logs=self.logs))
        self.agent = agent

    def follow(self, *ranks: int, tail_lines: int = 0) -> LogFollower:
        return LogFollower(self.agent, LogsRequest(ranks, 0, True, tail_lines), self.written.release)

    def read(self, follower: LogFollower, end: str) -> list[LogPart]:
        """All parts until the text of all is `end`."""
        found: list[Any] = []

        def send(part: object) -> bool:
            found.append(part)
            return True

        while True:
            follower.pump(send)
            if "".join(part.text for part in found) == end:
                return found
            assert self.written.acquire(timeout=BOUND_S), found

    def close(self) -> None:
        self.logs.finish(BOUND_S)
        self.relay.close()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Round]:
    found = Round(tmp_path)
    yield found
    found.close()


def test_workers_whose_output_is_opened_later_are_followed(made: Round) -> None:
    """A follower that comes while a round begins finds the workers as they come."""
    follower = made.follow()
    for local_rank in (1, 0):
        out, _ = made.logs.stdio(local_rank)
        os.write(out, b"here")
        follower.attach()
        follower.attach()
        (part,) = made.read(follower, "here")
        assert (part.rank, part.stream, part.missed_bytes) == (4 + local_rank, "stdout", 0)
    follower.close()


def test_the_lines_of_a_round_do_not_go_on_in_the_next(made: Round, tmp_path: Path) -> None:
    """What a progress bar left unfinished ends with its worker; what was never shown needs no end."""
    begun, new = made.follow(4), RoundLogs(LogSpec(), str(tmp_path), {0: 4}, {}, made.relay)
    made.logs.stdio(0)
    stream = made.logs.streams_of(0)["stdout"]
    stream.feed(b"begun\n 9 %")
    begun.attach()
    late = made.follow(4, tail_lines=-1)
    made.read(begun, "begun\n 9 %")
    made.agent.workers.round_logs = new
    new.stdio(0)
    new.streams_of(0)["stdout"].feed(b"again\n")
    for follower, end in ((begun, "\nagain\n"), (late, "again\n")):
        follower.attach()
        made.read(follower, end)
        follower.close()
    new.finish(BOUND_S)


def test_only_the_ranks_asked_for_are_followed(made: Round) -> None:
    follower = made.follow(5)
    for local_rank in (0, 1):
        os.write(made.logs.stdio(local_rank)[0], b"%d" % local_rank)
    follower.attach()
    made.read(follower, "1")
    follower.close()


def test_a_follower_may_begin_with_the_last_lines_of_what_is_there(made: Round) -> None:
    """One that is not whole is one of them; what comes later comes whole."""
    made.logs.stdio(0)
    stream = made.logs.streams_of(0)["stdout"]
    stream.feed(b"one\ntwo\nthr")
    followers = [made.follow(4, tail_lines=lines) for lines in (1, 2, 9, -1)]
    stream.feed(b"ee\nfour\nfive\n")
    for follower, begin in zip(followers, ("thr", "two\nthr", "one\ntwo\nthr", ""), strict=True):
        made.read(follower, f"{begin}ee\nfour\nfive\n")
        follower.close()


@pytest.mark.parametrize(
    ("data", "lines", "wanted"),
    [
        (b"a\nb\n", 1, b"b\n"),
        (b"a\nb\n", 2, b"a\nb\n"),
        (b"a\nb\n", 3, b"a\nb\n"),
        (b"a\nb", 1, b"b"),
        (b"\n\n", 1, b"\n"),
        (b"\n", 1, b"\n"),
        (b"\n", 5, b"\n"),
        (b"", 2, b""),
        (b"a\nb\n", -1, b""),
    ],
)
def test_the_last_lines_of_what_was_written(data: bytes, lines: int, wanted: bytes) -> None:
    assert last_lines(data, lines) == wanted


def test_what_is_left_out_last_is_counted_though_nothing_follows(made: Round) -> None:
    """A burst that a reader did not take in time, then silence."""
    follower = made.follow(4)
    made.logs.stdio(0)
    follower.attach()
    for _ in range(20):
        made.logs.streams_of(0)["stdout"].feed(b"x" * PART_MAX)
    found: list[Any] = []
    assert follower.pump(lambda part: not found.append(part))  # type: ignore[func-returns-value]
    assert sum(len(part.text) + part.missed_bytes for part in found) == 20 * PART_MAX
    assert found[-1].missed_bytes
    follower.close()


class Overtaken:
    """A stream of which more is read right after each look at what is there."""

    def __init__(self) -> None:
        self.taps: tuple[Any, ...] = ()
        self._seen = (0, b"")
        self._reading: list[threading.Thread] = []

    @property
    def seen(self) -> tuple[int, bytes]:
        found = self._seen
        self._reading.append(threading.Thread(target=self.feed, args=(b"%d" % len(self._reading),)))
        self._reading[-1].start()
        self._reading[-1].join(0.1)  # it may have to wait for whoever looks
        return found

    def feed(self, data: bytes) -> None:
        self._seen = (self._seen[0] + len(data), self._seen[1] + data)
        for tap in self.taps:
            tap(self._seen[0], data)

    def read(self) -> None:
        for each in self._reading:
            each.join(BOUND_S)


def test_what_is_read_while_a_follower_begins_comes_once(made: Round) -> None:
    """Neither what was there before its look nor what came during it is lost or comes twice."""
    stream = Overtaken()
    stream.feed(b"before ")
    streams: Any = SimpleNamespace(ranks={0: 4}, streams_of=lambda _: {"stdout": stream}, stdout_files={})
    made.agent.workers.round_logs = streams
    follower = made.follow()
    stream.read()
    stream.feed(b" after")
    made.read(follower, "before 0 after")
    follower.close()
