"""Passes workers' output on to files and to the agent's console: one thread reads all streams of an agent.

Files get the bytes as they are, at once. The console gets complete lines, each with its prefix, so lines of two workers
never mix; a console with a single worker also gets unfinished lines. Other threads write (`writers.py`). So a sink that
takes nothing ends no worker and holds up none for longer than `writers.HOLD_S`. A thread that this host refuses is
refused before there is a worker: all that a stream needs start with it.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TextIO

from .. import descriptors
from .sinks import Console, same_console
from .streams import ALL_PIPES_SIZE, CHUNK, PIPE_SIZE, Route, Stream, await_done, make_pipe, make_terminal
from .writers import HOLD_S, QueuedWriter, started_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .program_console import ProgramConsole

FILES_BUFFER = 12 << 20
"""Bytes kept for files on a slow disk."""
CONSOLE_BUFFER = 8 << 20
"""Bytes kept for a slow console, each of stdout and stderr."""
LAST_READS = 16
"""Reads from a stream that is given up while a process still writes to it: more than the largest pipe (1 MiB) holds."""
GIVE_UP_S = 1.0
"""How long the threads may take to end, or to close a stream that is given up; and how long a terminal may take nothing
before the last lines are dropped."""
STALL_S = 5.0
"""How long, after the workers have exited, the agent waits for a file or console that takes nothing."""
PAUSE_MS = 4
"""The longest pause between reads. Without pauses, a worker that prints line by line would wake the reader with each
line."""
FILL_MS = 1 << 18
"""Bytes that a worker may write in a millisecond, as long as its speed is not known."""
SMALL_PIPE = 1 << 16
"""A pipe of the system's default size, in bytes."""


class Relay:
    """The thread that reads streams, and the writers. Starts with the first stream."""

    def __init__(
        self,
        on_trouble: Callable[[str], None] | None = None,
        *,
        stdout_fd: int = 1,
        stderr_fd: int = 2,
        programs: tuple[TextIO | None, TextIO | None] = (None, None),
        hold_s: float = HOLD_S,
        stall_s: float = STALL_S,
    ) -> None:
        """`on_trouble` gets a line when a sink begins to lose output and one when that is over, on the thread that
        writes to the console's stderr; without it the lines are written there. `programs`: where the program around
        the agent prints stdout and stderr, if not to these descriptors. `hold_s`: as `writers.HOLD_S`;
        `stall_s`: as `STALL_S`."""
        self._on_trouble = on_trouble
        self._lock = threading.Lock()
        self._closed = False
        """The descriptors that the threads use are closed. Set under the lock: their numbers may be reused after it."""
        self._files = QueuedWriter("files", FILES_BUFFER, hold_s, stall_s, self._wake_reader)
        out, err = programs
        self._shared = out is err and (out is not None or same_console(stdout_fd, stderr_fd))
        self._consoles: list[tuple[Console | ProgramConsole, QueuedWriter]] = []
        for fd, stream, name in [(stdout_fd, out, "stdout"), (stderr_fd, err, "stderr")][: 1 if self._shared else 2]:
            console = _console(fd, stream, f"the agent's {name}", self.report)
            # On a terminal old lines are of no use, so workers never wait for it; a program that reads may catch up.
            waits = (0.0, min(stall_s, GIVE_UP_S)) if console.terminal else (hold_s, stall_s)
            self._consoles.append((console, QueuedWriter(name, CONSOLE_BUFFER, *waits, self._wake_reader)))
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._streams: dict[int, Stream] = {}
        self._watched: set[int] = set()
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._pause = select.poll()
        self._pause.register(self._wake, select.POLLIN)
        self._arriving: list[Stream] = []
        self._leaving: list[Stream] = []
        self._read_at = 0.0
        """When the last reads were done; what the next ones find has been written since."""
        self._stopping = False
        """The thread is ending, or has ended."""
        self._closing = False
        """`close` was called."""
        self._terminals_refused = False
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Bytes that were dropped instead of shown on the console."""
        return sum(console.dropped for console, _ in self._consoles)

    @property
    def shared(self) -> bool:
        """Stdout and stderr of the console are one pipe, terminal or file."""
        return self._shared

    def take_midline(self) -> bool:
        """Whether workers' output has left a line without its end on the console's stderr. Whoever asks prints next, on
        a line of its own: it counts as ended. From any thread."""
        console, _ = self._consoles[-1]
        midline, console.midline = console.midline, False
        return midline

    @property
    def _writers(self) -> list[QueuedWriter]:
        return [self._files, *(writer for _, writer in self._consoles)]

    def report(self, text: str) -> None:
        """Pass a line to `on_trouble`, else to the console's stderr, on the thread that writes there and may block."""
        console, writer = self._consoles[-1]
        report = self._on_trouble or (lambda text: console.write(f"{text}\n".encode(errors="replace")))
        writer.after(lambda written: report(text) if written else None)

    def add(self, route: Route, *, pipes: int = 1, terminal: bool = False) -> tuple[int, Stream]:
        """Begin a stream; return the descriptor that the worker writes to, and the stream. `pipes`: how many there will
        be, which share `ALL_PIPES_SIZE`. `terminal`: where the console is a terminal, give the worker a terminal too.
        Raises OSError when descriptors or threads run out, RuntimeError after `close`."""
        shown = self._consoles[route.err and not self._shared] if route.shown else None
        self._start_threads(route, shown)
        ends = self._terminal(shown[0].fd) if terminal and shown is not None and shown[0].terminal else None
        read_end, write_end, capacity = ends or make_pipe(max(SMALL_PIPE, min(PIPE_SIZE, ALL_PIPES_SIZE // pipes)))
        stream = Stream(read_end, capacity, route, self._files, shown)
        if not self._post(self._arriving, [stream]):
            os.close(write_end)
            stream.close(False)
            raise RuntimeError("the relay of workers' output has ended; it takes no new stream")
        return write_end, stream

    def _start_threads(self, route: Route, shown: tuple[Console | ProgramConsole, QueuedWriter] | None) -> None:
        """Start what will read this stream, what will write it, and what reports a loss. Raises OSError."""
        for writer in (self._consoles[-1][1], *([shown[1]] if shown else []), *([self._files] if route.files else [])):
            writer.start()
        if self._thread is None and not self._stopping:
            # A daemon: nothing about logs may keep the agent from exiting.
            self._thread = started_thread(self._run, "elastic-agent-relay")

    def _terminal(self, like: int) -> tuple[int, int, int] | None:
        """A terminal for a worker, as `make_terminal`; None where this host has none left, which is reported once.
        Raises OSError when descriptors run out."""
        try:
            return make_terminal(like)
        except OSError as error:
            if error.errno in descriptors.REFUSED:
                raise
            if not self._terminals_refused:
                self._terminals_refused = True
                self.report(
                    f"no pseudo-terminal for the workers ({error.strerror or error}); they write to pipes, and may "
                    "show no colours and no progress bars"
                )
            return None

    def passed_on(self, streams: Iterable[Stream], within_s: float) -> bool:
        """Whether these have ended, and all of them is written, within this time. Gives none of them up."""
        until = monotonic() + within_s
        return not await_done(streams, within_s) and all(self._drain(streams, until))

    def finish(self, streams: Iterable[Stream], timeout_s: float, most_s: float = float("inf")) -> bool:
        """Wait until these have ended, at most `timeout_s`; then give up those that a process still holds open, within
        GIVE_UP_S; then wait until all is written, for as long as there is progress, and until `most_s` have passed in
        all. True when all were read to their end and written."""
        streams = list(streams)
        until = monotonic() + most_s
        late = await_done(streams, timeout_s)
        if late:
            self._post(self._leaving, late)
            await_done(late, GIVE_UP_S)
        written = self._drain(streams, until)
        return not late and all(stream.complete for stream in streams) and all(written)

    def _drain(self, streams: Iterable[Stream], until: float) -> list[bool]:
        """Let what writes these write it all. For each writer: whether it has."""
        writers = {writer for stream in streams for writer in stream.writers}
        return [writer.drain(max(0.0, until - monotonic())) for writer in writers]

    def close(self) -> None:
        """End the threads; give up streams that are still open and consoles that still take nothing. Idempotent."""
        with self._lock:
            first = not self._closing
            self._closing = self._stopping = True
        if not first:
            return
        self._wake_reader()
        if self._thread is not None:
            self._thread.join(GIVE_UP_S)
        else:
            self._release()
        for writer in self._writers:
            writer.drain()
        for console, writer in self._consoles:
            console.stop_waiting()
            writer.after(console.report_last_loss)
        until = monotonic() + GIVE_UP_S
        # Stderr's writer ends last: it reports the losses of the others.
        for writer in self._writers:
            writer.end()
            writer.join(max(0.0, until - monotonic()))
        self._wake_reader()

    def release(self, stream: Stream) -> None:
        """Read the rest of what a worker wrote that has exited, however far its writers are behind. From any thread."""
        stream.held = False
        self._wake_reader()

    def _wake_reader(self) -> None:
        """Wake the thread; once all threads have ended, even long after `close`, close the descriptors they used."""
        with self._lock:
            if self._closed:
                return
            os.eventfd_write(self._wake, 1)
            if not (self._closing and all(writer.ended for writer in self._writers)):
                return
            self._closed = True
            os.close(self._wake)
        for console, _ in self._consoles:
            console.close()

    def _post(self, box: list[Stream], streams: list[Stream]) -> bool:
        """Hand streams to the thread; False if it is ending."""
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
                most = max((self._serve(fd) for fd, _ in self._epoll.poll(left_s)), default=0)
                self._take_posted()
                until = self._hold_slow()
                if most:
                    self._pause_after(most)
        finally:
            # Also when this thread fails: a worker must not wait for a reader that is gone.
            self._release()

    def _pause_after(self, most: int) -> None:
        """Let more output gather, after `most` bytes came from one pipe."""
        now = monotonic()
        capacity = min((stream.capacity for stream in self._streams.values()), default=0)
        if wait_ms := pause_ms(most, now - self._read_at, capacity):
            self._pause.poll(wait_ms)
        self._read_at = now

    def _serve(self, fd: int) -> int:
        """Handle a readable descriptor; returns the bytes read from a stream."""
        if fd == self._wake:
            os.eventfd_read(fd)
            return 0
        return self._read(self._streams[fd])

    def _read(self, stream: Stream) -> int:
        """Read from a stream once; returns the number of bytes, 0 if there are none now or none will come."""
        try:
            data = os.read(stream.fd, CHUNK)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # the end of a terminal, pty(7)
        if data:
            stream.feed(data)
        else:
            self._end(stream, complete=True)
        return len(data)

    def _end(self, stream: Stream, *, complete: bool) -> None:
        self._watch(stream.fd, False)
        del self._streams[stream.fd]
        stream.close(complete)

    def _take_posted(self) -> None:
        """Begin the streams that `add` posted, and give up those that `finish` posted."""
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

    def _hold_slow(self) -> float | None:
        """Stop reading streams whose file or console is behind; returns when to look again at the latest."""
        now = monotonic()
        holds = []
        for stream in self._streams.values():
            until = stream.hold_until(now)
            self._watch(stream.fd, until is None)
            if until is not None:
                holds.append(until)
        return min(holds, default=None)

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


def _console(fd: int, stream: TextIO | None, name: str, report: Callable[[str], None]) -> Console | ProgramConsole:
    if stream is None:
        return Console(fd, name, report)
    from .program_console import ProgramConsole

    return ProgramConsole(stream, name, report)


def pause_ms(most: int, within_s: float, capacity: int) -> int:
    """How long the reader may pause, in ms, without a pipe getting half full: `most` bytes came from one pipe in the
    last `within_s`, and the smallest pipe holds `capacity` bytes. 0 where there was more than one read takes."""
    if most >= CHUNK:
        return 0
    half = capacity // 2
    return min(PAUSE_MS, half // FILL_MS * 2, int(half / most * within_s * 1000))
