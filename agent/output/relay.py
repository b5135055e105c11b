"""Pass workers' output on to files and to the agent's console: one thread reads all streams of an agent.

Files get the bytes as they are, at once. The console gets complete lines, each with its prefix, so lines of two workers
never mix; only a console with a single worker gets them as they grow. Threads of their own write (`writers.py`): none
for as long as there is nothing to write. So workers never die of what takes nothing, nor wait for it: `outlets.HOLD_S`.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Iterable
from time import monotonic

from .sinks import Console, same_console
from .streams import CHUNK, PIPE, PIPES, Route, Stream, await_done, make_pipe, make_terminal
from .writers import HOLD_S, Outlet

FILES_BUFFER = 12 << 20
"""Bytes kept for files whose disk is slow."""
CONSOLE_BUFFER = 8 << 20
"""Bytes kept for a slow console, each of stdout and stderr."""
LAST_READS = 16
"""Reads from a stream that is given up while somebody still writes: more than the largest pipe (1 MiB) holds."""
LEAVE_S = 1.0
"""How long threads have to let go of what has been given up, and a terminal to take anything at all at the end."""
STALL_S = 5.0
"""How long, when workers are gone, the agent waits for a file or a console that takes nothing at all."""
REST_MS = 4
"""Longest pause between looks at pipes. A worker that prints line by line would otherwise have a reader to wake with
each."""
FILL_MS = 1 << 18
"""Bytes that a worker may write in a millisecond before it is known how fast it is."""
SMALL = 1 << 16
"""A pipe of the system's default size, in bytes."""


class Relay:
    """The thread that reads streams, and the outlets that write. Starts with the first stream."""

    def __init__(
        self,
        on_trouble: Callable[[str], None] | None = None,
        *,
        stdout_fd: int = 1,
        stderr_fd: int = 2,
        hold_s: float = HOLD_S,
        stall_s: float = STALL_S,
    ) -> None:
        """`on_trouble` gets a line when a sink begins to lose output and one when that is over, on the thread that
        writes to the console's stderr; without it the lines go there. `hold_s`: as `outlets.HOLD_S`;
        `stall_s`: as `STALL_S`."""
        self._on_trouble = on_trouble
        self._lock = threading.Lock()
        self._closed = False
        """What threads use has been given back; set under the lock, for its numbers may be another's by now."""
        self._files = Outlet("files", FILES_BUFFER, hold_s, stall_s, self._nudge)
        self._shared = same_console(stdout_fd, stderr_fd)
        self._shown: list[tuple[Console, Outlet]] = []
        for fd, name in [(stdout_fd, "stdout"), (stderr_fd, "stderr")][: 1 if self._shared else 2]:
            console = Console(fd, f"the agent's {name}", self.say)
            # Who watches a terminal has nothing of lines that went by long ago; a program that reads may catch up.
            patience = (0.0, min(stall_s, LEAVE_S)) if console.terminal else (hold_s, stall_s)
            outlet = Outlet(name, CONSOLE_BUFFER, *patience, self._nudge)
            self._shown.append((console, outlet))
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._streams: dict[int, Stream] = {}
        self._watched: set[int] = set()
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._rest = select.poll()
        self._rest.register(self._wake, select.POLLIN)
        self._arriving: list[Stream] = []
        self._leaving: list[Stream] = []
        self._looked_at = 0.0
        """When it last had looked; what a look finds has come since."""
        self._stopping = False
        """The thread ends, or has ended."""
        self._closing = False
        """Somebody has called `close`."""
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Bytes that did not reach the console."""
        return sum(console.dropped for console, _ in self._shown)

    @property
    def shared(self) -> bool:
        """Stdout and stderr of the console are one pipe, terminal or file."""
        return self._shared

    @property
    def _outlets(self) -> list[Outlet]:
        return [self._files, *(outlet for _, outlet in self._shown)]

    def say(self, text: str) -> None:
        """Tell people, or who makes a relay, one line; on the thread of the console's stderr, which may stand still."""
        console, outlet = self._shown[-1]
        tell = self._on_trouble or (lambda text: console.write(f"{text}\n".encode(errors="replace")))
        outlet.after(lambda through: tell(text) if through else None)

    def add(self, route: Route, *, pipes: int = 1, terminal: bool = False) -> tuple[int, Stream]:
        """Begin a stream; return the descriptor that the worker writes to, and the stream. `pipes`: how many there will
        be, which share `PIPES`; `terminal`: where the console is a terminal, the worker is to see one too. Raises
        OSError when descriptors run out, RuntimeError after `close`."""
        shown = self._shown[route.err and not self._shared] if route.shown else None
        if terminal and shown is not None and shown[0].terminal:
            reader, writer, holds = make_terminal(shown[0].fd)
        else:
            reader, writer, holds = make_pipe(max(SMALL, min(PIPE, PIPES // pipes)))
        stream = Stream(reader, holds, route, self._files, shown)
        if not self._post(self._arriving, [stream]):
            os.close(writer)
            stream.close(False)
            raise RuntimeError("the relay of workers' output has ended; it takes no new stream")
        if self._thread is None:
            # A daemon: nothing about logs may keep the agent from exiting.
            self._thread = threading.Thread(target=self._run, name="elastic-agent-relay", daemon=True)
            self._thread.start()
        return writer, stream

    def finish(self, streams: Iterable[Stream], timeout_s: float) -> bool:
        """Wait until these have ended, at most `timeout_s`; give up those that somebody still holds open, within
        LEAVE_S more; then wait until all is written, for as long as that goes on. True when all came through to their
        end."""
        streams = list(streams)
        late = await_done(streams, timeout_s)
        if late:
            self._post(self._leaving, late)
            await_done(late, LEAVE_S)
        written = [outlet.drain() for outlet in {outlet for stream in streams for outlet in stream.outlets}]
        return not late and all(stream.complete for stream in streams) and all(written)

    def close(self) -> None:
        """End the threads, giving up streams that are still open and consoles that still take nothing. Idempotent."""
        with self._lock:
            first = not self._closing
            self._closing = self._stopping = True
        if not first:
            return
        self._nudge()
        if self._thread is not None:
            self._thread.join(LEAVE_S)
        else:
            self._release()
        for outlet in self._outlets:
            outlet.drain()
        for console, outlet in self._shown:
            console.hurry()
            outlet.after(console.settle)
        until = monotonic() + LEAVE_S
        # Stderr's last: it tells of the others.
        for outlet in self._outlets:
            outlet.end()
            outlet.join(max(0.0, until - monotonic()))
        self._nudge()

    def _nudge(self) -> None:
        """Wake the thread; once all threads have ended, be it long after `close`, give back what they used."""
        with self._lock:
            if self._closed:
                return
            os.eventfd_write(self._wake, 1)
            if not (self._closing and all(outlet.over for outlet in self._outlets)):
                return
            self._closed = True
            os.close(self._wake)
        for console, _ in self._shown:
            console.close()

    def _post(self, box: list[Stream], streams: list[Stream]) -> bool:
        with self._lock:
            if self._stopping:
                return False
            box += streams
            os.eventfd_write(self._wake, 1)
            return True

    # -- on the thread -------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            until: float | None = None
            while not self._stopping:
                left_s = None if until is None else max(0.0, until - monotonic())
                most = max((self._answer(fd) for fd, _ in self._epoll.poll(left_s)), default=0)
                self._collect()
                until = self._hold()
                if most:
                    self._rest_from(most)
        finally:
            # Also when this thread breaks: a worker must not wait for a reader that is gone.
            self._release()

    def _rest_from(self, most: int) -> None:
        """Let more come together than the `most` that came from one pipe."""
        now = monotonic()
        least = min((stream.holds for stream in self._streams.values()), default=0)
        if pause_ms := rest_ms(most, now - self._looked_at, least):
            self._rest.poll(pause_ms)
        self._looked_at = now

    def _answer(self, fd: int) -> int:
        """How many bytes this gave."""
        if fd == self._wake:
            os.eventfd_read(fd)
            return 0
        return self._read(self._streams[fd])

    def _read(self, stream: Stream) -> int:
        """How many bytes there were; 0 if there is nothing more, for now or for good."""
        try:
            data = os.read(stream.fd, CHUNK)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # so ends a terminal, pty(7)
        if data:
            stream.feed(data)
        else:
            self._end(stream, complete=True)
        return len(data)

    def _end(self, stream: Stream, *, complete: bool) -> None:
        self._watch(stream.fd, False)
        del self._streams[stream.fd]
        stream.close(complete)

    def _collect(self) -> None:
        with self._lock:
            arriving, self._arriving[:] = self._arriving[:], []
            leaving, self._leaving[:] = self._leaving[:], []
        self._streams.update((stream.fd, stream) for stream in arriving)
        for stream in leaving:
            for _ in range(LAST_READS):
                if self._streams.get(stream.fd) is not stream or not self._read(stream):
                    break
            if self._streams.get(stream.fd) is stream:
                self._end(stream, complete=False)

    def _hold(self) -> float | None:
        """Read no more from streams whose file or console is behind; until when, at the latest."""
        now = monotonic()
        waits = []
        for stream in self._streams.values():
            until = stream.held_until(now)
            self._watch(stream.fd, until is None)
            if until is not None:
                waits.append(until)
        return min(waits, default=None)

    def _watch(self, fd: int, wanted: bool) -> None:
        if wanted and fd not in self._watched:
            self._epoll.register(fd, select.EPOLLIN)
            self._watched.add(fd)
        elif not wanted and fd in self._watched:
            self._epoll.unregister(fd)
            self._watched.remove(fd)

    def _release(self) -> None:
        with self._lock:
            self._stopping = True
            left = [*self._streams.values(), *self._arriving]
            self._streams.clear()
            self._arriving.clear()
        self._epoll.close()
        for stream in left:
            stream.close(False)


def rest_ms(most: int, within_s: float, holds: int) -> int:
    """How long more may come together, in ms, when `most` bytes came from one pipe in the last `within_s`, and the
    smallest `holds` so many: no pipe is to be half full then. 0 where there was more than one read takes."""
    if most >= CHUNK:
        return 0
    half = holds // 2
    return min(REST_MS, half // FILL_MS * 2, int(half / most * within_s * 1000))
