"""Pass workers' output on to files and to the agent's console: one thread for all tee'd streams of an agent.

Files get the bytes as they are, at once. The console gets complete lines, each with its prefix, so lines of two workers
never mix; a line without an end is passed on in pieces of 64 KiB. Workers never die of a sink that takes nothing, and
never wait for one for ever: `streams.py`.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterable
from time import monotonic

from .streams import Console, FileSink, Stream, same_console

CHUNK = 65536
"""Bytes per read."""
LAST_READS = 16
"""Reads from a stream that is given up while somebody still writes: as much as the largest pipe (1 MiB) holds."""
STALL_S = 5.0
"""How long workers wait for a console that takes nothing. torchrun's never wait, theirs is a file."""
LEAVE_S = 1.0
"""How long the thread has to let go of streams that have been given up."""


class Relay:
    """The thread that reads tee'd streams, and its consoles. Starts with the first stream."""

    def __init__(
        self,
        on_trouble: Callable[[str], None] | None = None,
        *,
        stdout_fd: int = 1,
        stderr_fd: int = 2,
        stall_s: float = STALL_S,
    ) -> None:
        """`on_trouble` gets one line per sink that loses output, on the relay's thread, and must not block; without it
        the line goes to stderr. `stall_s`: workers wait this long for a console that takes nothing, then its output
        is dropped until it does."""
        self.on_trouble = on_trouble or self._tell
        self._stall_s = stall_s
        self._out = Console(stdout_fd, "the agent's stdout", self.on_trouble)
        shared = same_console(stdout_fd, stderr_fd)
        self._err = self._out if shared else Console(stderr_fd, "the agent's stderr", self.on_trouble)
        self._consoles = {console.fd: console for console in (self._out, self._err)}
        self._streams: dict[int, Stream] = {}
        self._draining: list[Stream] = []
        self._watched: set[int] = set()
        self._holding: set[int] = set()
        """Consoles whose streams are not read, because they are full."""
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._watch(self._wake)
        self._lock = threading.Lock()
        self._arriving: list[Stream] = []
        self._leaving: list[Stream] = []
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Bytes that did not reach the console."""
        return sum(console.dropped for console in self._consoles.values())

    def add(
        self,
        prefix: bytes,
        file: FileSink,
        *,
        err: bool,
        needles: tuple[bytes, ...] = (),
        picked: FileSink | None = None,
    ) -> tuple[int, Stream]:
        """Begin a stream; return the descriptor that the worker writes to, and the stream. Lines that contain one of
        `needles` go to `picked` too. Raises OSError when descriptors run out, RuntimeError after `close`."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        stream = Stream(reader, prefix, file, self._err if err else self._out, needles, picked)
        if not self._post(self._arriving, [stream]):
            os.close(writer)
            stream.close(False)
            raise RuntimeError("the relay of workers' output has ended; it takes no new stream")
        if self._thread is None:
            # A daemon: a file system that hangs must not keep the agent from exiting.
            self._thread = threading.Thread(target=self._run, name="elastic-agent-relay", daemon=True)
            self._thread.start()
        return writer, stream

    def finish(self, streams: Iterable[Stream], timeout_s: float) -> bool:
        """Wait until these have ended and are written, at most `timeout_s`; then give up those that somebody still
        holds open, and return within LEAVE_S more. True when all came through to their end."""
        streams = list(streams)
        deadline = monotonic() + timeout_s
        late = [stream for stream in streams if not stream.done.wait(max(0.0, deadline - monotonic()))]
        if late:
            self._post(self._leaving, late)
            deadline = monotonic() + LEAVE_S
            for stream in late:
                stream.done.wait(max(0.0, deadline - monotonic()))
        return not late and all(stream.complete for stream in streams)

    def close(self) -> None:
        """End the thread, giving up streams that are still open. Idempotent."""
        with self._lock:
            first = not self._stopping
            self._stopping = True
            if first:
                os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join(LEAVE_S)
        elif first:
            self._release()

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
            while not self._stopping:
                for fd, _ in self._epoll.poll(self._patience_s()):
                    self._answer(fd)
                self._collect()
                for console in self._consoles.values():
                    self._attend(console)
                self._settle()
        finally:
            # Also when this thread breaks: a worker must not wait for a reader that is gone.
            self._release()

    def _patience_s(self) -> float | None:
        waits = [
            max(0.0, console.blocked_at + self._stall_s - monotonic())
            for console in self._consoles.values()
            if console.full and console.blocked_at is not None
        ]
        return min(waits, default=None)

    def _answer(self, fd: int) -> None:
        if fd == self._wake:
            os.eventfd_read(fd)
        elif fd in self._consoles:
            self._consoles[fd].flush()
        elif fd in self._streams:
            self._read(self._streams[fd])

    def _read(self, stream: Stream) -> bool:
        """False when there is nothing more, for now or for good."""
        try:
            data = os.read(stream.fd, CHUNK)
        except BlockingIOError:
            return False
        if data:
            stream.feed(data)
            return True
        self._end(stream, complete=True)
        return False

    def _end(self, stream: Stream, *, complete: bool) -> None:
        self._unwatch(stream.fd)
        del self._streams[stream.fd]
        stream.close(complete)
        self._draining.append(stream)

    def _collect(self) -> None:
        with self._lock:
            arriving, self._arriving[:] = self._arriving[:], []
            leaving, self._leaving[:] = self._leaving[:], []
        for stream in arriving:
            self._streams[stream.fd] = stream
            self._heed(stream)
        for stream in leaving:
            for _ in range(LAST_READS):
                if self._streams.get(stream.fd) is not stream or not self._read(stream):
                    break
            if self._streams.get(stream.fd) is stream:
                self._end(stream, complete=False)
            stream.done.set()

    def _attend(self, console: Console) -> None:
        """Give up a console that stands still, listen to one that is blocked, let its streams wait while it is full."""
        since = console.blocked_at
        if console.full and since is not None and monotonic() - since >= self._stall_s:
            console.give_up(self._stall_s)
        if since is None:
            self._unwatch(console.fd)
        else:
            self._watch(console.fd, select.EPOLLOUT)
        if console.full is (console.fd in self._holding):
            return
        self._holding ^= {console.fd}
        for stream in self._streams.values():
            if stream.console is console:
                self._heed(stream)

    def _heed(self, stream: Stream) -> None:
        if stream.console.fd in self._holding:
            self._unwatch(stream.fd)
        else:
            self._watch(stream.fd)

    def _tell(self, text: str) -> None:
        self._err.offer(f"{text}\n".encode(errors="replace"))

    def _settle(self) -> None:
        """Tell those who wait for a stream once its last lines are out, or will never be."""
        for stream in self._draining[:]:
            if not stream.console.pending:
                self._draining.remove(stream)
                stream.done.set()

    def _watch(self, fd: int, events: int = select.EPOLLIN) -> None:
        if fd not in self._watched:
            self._epoll.register(fd, events)
            self._watched.add(fd)

    def _unwatch(self, fd: int) -> None:
        if fd in self._watched:
            self._epoll.unregister(fd)
            self._watched.remove(fd)

    def _release(self) -> None:
        with self._lock:
            self._stopping = True
            left = [*self._streams.values(), *self._arriving]
            self._streams.clear()
            self._arriving.clear()
            os.close(self._wake)
            self._epoll.close()
        for stream in left:
            stream.close(False)
        for stream in [*left, *self._draining]:
            stream.done.set()
        for console in self._consoles.values():
            console.close()
