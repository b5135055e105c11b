"""What is sent on and on: events as they happen, and what workers write. Each follower feeds one connection."""

from __future__ import annotations

import threading
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from ...agent.agent import Agent
from ...agent.output.streams import Stream
from ..control_socket import Service
from .describe import event_of
from .messages import EventsRequest, LogPart, LogsRequest

PART_MAX = 1 << 16
"""Bytes of output in one message."""
PENDING_MAX = 1 << 18
"""Bytes of output that wait for a slow reader; what comes then is left out, and counted."""
AT_ONCE = 64
"""Messages that are made before the first of them is taken, in this process."""
Send = Callable[[object], bool]
"""Sends one message; False where the reader is behind, so that the next ones should wait."""
_TAPS = threading.Lock()
"""Held while it is changed who gets what a stream reads."""
_LISTENERS = threading.Lock()
"""Held while it is changed who is called when something happens."""


class Follower(Protocol):
    """Feeds one stream."""

    endless: bool
    """There may be more, once all is sent."""

    def pump(self, send: Send) -> bool:
        """Send what there is, as far as the reader takes it. False: there is more."""
        ...

    def attach(self) -> None:
        """Something happened to the agent: look whether there is another round to follow."""
        ...

    def close(self) -> None: ...


def followed(
    service: Service,
    make: Callable[[], Follower],
    gone: Callable[[], bool] | None = None,
    when_gone: Callable[[Callable[[], None]], object] | None = None,
) -> Iterator[Any]:
    """The messages of a follower that is made, for a thread of this process that may wait. It ends early once `gone`;
    `when_gone` is handed what is to be called then."""
    changed = threading.Semaphore(0)
    with _LISTENERS:
        service.on_change = (*service.on_change, changed.release)
    try:
        if when_gone is not None:
            when_gone(changed.release)
        follower = make()
        found: deque[object] = deque()

        def send(message: object) -> bool:
            found.append(message)
            return len(found) < AT_ONCE

        try:
            while True:
                closed = service.closed
                if gone is not None and gone():
                    return
                follower.attach()
                done = follower.pump(send)
                while found:
                    yield found.popleft()
                if done and (closed or not follower.endless):
                    return
                if done:
                    changed.acquire()
        finally:
            follower.close()
    finally:
        with _LISTENERS:
            service.on_change = tuple(each for each in service.on_change if each != changed.release)


class EventFollower:
    """The events of one agent, from those kept on."""

    def __init__(self, service: Service, request: EventsRequest) -> None:
        self._service = service
        self.endless = request.follow
        first = request.since
        if first < 0:
            first = service.number + first + 1
        self._next = max(1, first)

    def attach(self) -> None:
        """Events are the agent's, whatever the round."""

    def pump(self, send: Send) -> bool:
        """As `Follower.pump`."""
        agent = self._service.agent
        for entry in self._service.since(self._next):
            missed, self._next = entry.number - self._next, entry.number + 1
            if not send(event_of(entry, agent.name if agent else "", missed)):
                return self._next > self._service.number
        return True

    def close(self) -> None:
        """No-op: it holds nothing."""


def last_lines(data: bytes, lines: int) -> bytes:
    """The last so many lines, one without an end among them; none where it is negative."""
    at = len(data) - data.endswith(b"\n")
    for _ in range(max(0, lines)):
        at = data.rfind(b"\n", 0, max(0, at))
        if at < 0:
            return data
    return data[at + 1 :] if lines > 0 else b""


class _Source:
    """One stream of one worker, as one follower reads it."""

    def __init__(
        self, rank: int, name: str, stream: Stream, file: str, tapped: Callable[[_Source, int, bytes], None]
    ) -> None:
        self.rank, self.name, self.stream, self.file = rank, name, stream, file
        self.tap = partial(tapped, self)
        self.upto = 0
        """Bytes of the stream that were taken."""
        self.midline = False
        """What was handed on last has no end of line."""
        self.decode = getincrementaldecoder("utf-8")("replace").decode


class LogFollower:
    """What workers of one agent write, over all rounds. `pump` and `attach` are for one thread; the relay's threads
    hand over what they read."""

    def __init__(self, agent: Agent, request: LogsRequest, wake: Callable[[], None]) -> None:
        """`wake` is called, from any thread, when there is something to pump."""
        self.endless = request.follow
        self._agent, self._wake = agent, wake
        self._ranks, self._tail, self._lines = frozenset(request.ranks), request.tail_bytes, request.tail_lines
        self._lock = threading.Lock()
        self._pending: deque[tuple[_Source, bytes, int]] = deque()
        """Output, and the bytes that were left out before it."""
        self._bytes = self._missed = 0
        self._missed_of: _Source | None = None
        """Whose output was left out last."""
        self._sources: list[_Source] = []
        self._logs: object = None
        self._unopened: dict[int, int] = {}
        """Global ranks of the round by local rank, as long as their output is not opened."""
        self._rounds = 0
        self.attach()

    def attach(self) -> None:
        """Follow the workers of the round that runs now, if they are not followed yet. Those of a round that begins
        come one by one, and an event follows once all have started."""
        logs = self._agent.workers.round_logs
        if logs is None:
            return
        if logs is not self._logs:
            self._detach()
            self._end_lines()
            self._logs = logs
            self._rounds += 1
            wanted = self._ranks or frozenset(logs.ranks.values())
            self._unopened = {local_rank: rank for local_rank, rank in logs.ranks.items() if rank in wanted}
        for local_rank, streams in [(each, logs.streams_of(each)) for each in self._unopened]:
            rank = self._unopened.pop(local_rank) if streams else 0
            for name, stream in streams.items():
                files = logs.stderr_files if name == "stderr" else logs.stdout_files
                self._begin(_Source(rank, name, stream, files.get(local_rank, ""), self._tapped))

    def _end_lines(self) -> None:
        """What a worker left unfinished, as a progress bar, is not the begin of a line of the next round's."""
        with self._lock:
            for source in self._sources:
                if source.midline:
                    self._add(source, b"\n")
        self._sources.clear()

    def _begin(self, source: _Source) -> None:
        stream = source.stream
        if self.endless:
            # Before the look at what is there: a part that comes in between is known by where it ends.
            with _TAPS:
                stream.taps = (*stream.taps, source.tap)
            self._sources.append(source)
        with self._lock:
            # With the lock: a part that is tapped after this look has to be found newer than it.
            total, tail = stream.seen
            source.upto = total
            # Of a later round, all that is remembered: nothing of it was shown.
            wanted = self._wanted(tail) if self._rounds == 1 else tail
            already = [each for each in self._pending if each[0] is source]
            for each in already:
                self._pending.remove(each)
                self._bytes -= len(each[1])
            self._add(source, wanted)

    def _wanted(self, tail: bytes) -> bytes:
        found = tail[-self._tail :] if self._tail else tail
        return last_lines(found, self._lines) if self._lines else found

    def _tapped(self, source: _Source, upto: int, data: bytes) -> None:
        with self._lock:
            if upto <= source.upto:
                return
            source.upto = upto
            first = not self._pending
            self._add(source, data)
        if first:
            self._wake()

    def _add(self, source: _Source, data: bytes) -> None:
        """With the lock held."""
        for at in range(0, len(data), PART_MAX):
            part = data[at : at + PART_MAX]
            if self._bytes + len(part) > PENDING_MAX + len(self._sources) * PART_MAX:
                self._missed += len(part)
                self._missed_of = source
                continue
            self._pending.append((source, part, self._missed))
            self._bytes += len(part)
            self._missed = 0
            source.midline = not part.endswith(b"\n")

    def pump(self, send: Send) -> bool:
        """As `Follower.pump`."""
        for source, part, missed in self._taken():
            message = LogPart(source.rank, source.name, source.decode(part), source.file, missed)
            if not send(message):
                return not (self._pending or self._missed)
        return True

    def _taken(self) -> Iterator[tuple[_Source, bytes, int]]:
        while True:
            with self._lock:
                if not self._pending:
                    if not self._missed or self._missed_of is None:
                        return
                    # Nothing may follow for long, and what was left out at the end is to be known, too.
                    self._pending.append((self._missed_of, b"", self._missed))
                    self._missed = 0
                found = self._pending.popleft()
                self._bytes -= len(found[1])
            yield found

    def close(self) -> None:
        """Follow no more."""
        self._detach()
        self._sources.clear()

    def _detach(self) -> None:
        for source in self._sources:
            with _TAPS:
                source.stream.taps = tuple(tap for tap in source.stream.taps if tap is not source.tap)
