"""The agent's side of its worker processes: starts them through a nursery, signals them, learns of their ends.

The nursery (`agent/nursery/server.py`) is a small process that is the parent of all workers. The two talk over a
stream socket pair, whose end comes when the nursery is dead and nothing below it is left
(`agent/nursery/guardian.py`); `protocol.py` says what crosses it.

Nothing here waits for a process but `close`. Facts come in the order in which they happened.
"""

from __future__ import annotations

# The C module: nothing of what `socket` adds is used, and the agent's start-up is counted in milliseconds.
import _socket
import os
import select
import time
from collections.abc import Sequence

from ..errors import InternalError
from ..nursery.frames import rights
from .nursery_process import bury, clear_behind, spawn_nursery
from .protocol import MARK, Emptied, Exited, Fact, Launch, NurseryLost, Started, described, encode, fact_in, fds_of

SEND_TIMEOUT_S = 5.0
"""A nursery that does not read for this long is broken."""
CLOSE_TIMEOUT_S = 2.0
READ_BYTES = 1 << 16


class Supervisor:
    """Owns this node's worker processes. One thread uses it. Making one starts nothing."""

    def __init__(self, orphan_grace_s: float = 0.0) -> None:
        """`orphan_grace_s`: what workers get between SIGTERM and SIGKILL if this process is killed."""
        self._orphan_grace_s = orphan_grace_s
        self._socket: _socket.socket | None = None
        self._guardian = self._nursery = 0
        """Their pids; the nursery's is 0 until it has told."""
        self._cgroup = ""
        """Directory of the workers' cgroup; empty if they have none."""
        self._mark = ""
        """NAME=VALUE of `MARK`."""
        self._heard = bytearray()
        self._unanswered: set[int] = set()
        """Keys started since the last Emptied."""
        self._alive: dict[int, int] = {}
        """Pids, by key, of workers started and not known to have exited."""
        self._killing = False

    def open(self) -> None:
        """Start the nursery and return before it is up; what is sent meanwhile waits for it. Raises OSError if it
        cannot be started, InternalError if there is one. Safe beside other threads: nothing is forked."""
        if self._socket is not None:
            raise InternalError(f"open() on a supervisor whose nursery (pid {self._nursery}) runs; close() it first")
        mark = f"{MARK}={os.getpid()}.{os.urandom(8).hex()}"
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            self._guardian = spawn_nursery(theirs.fileno(), self._orphan_grace_s, mark)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._nursery, self._cgroup = 0, ""
        self._mark = mark
        self._socket = ours

    def fileno(self) -> int:
        """Readable when facts wait. Another one after each `open()`."""
        return self._link().fileno()

    def observe(self) -> list[Fact]:
        """What happened since the last call, oldest first; never waits. After NurseryLost, which comes last, the
        supervisor is closed."""
        facts: list[Fact] = []
        while self._socket is not None:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                facts.append(self._lose())
                break
            *lines, rest = (self._heard + data).split(b"\n")
            self._heard = bytearray(rest)
            facts += [fact for line in lines if (fact := self._understand(line.decode())) is not None]
        return facts

    def alive(self) -> tuple[int, ...]:
        """Keys of the workers started and not gone, as far as `observe` has told."""
        return tuple(sorted(self._alive))

    # -- orders: facts answer. Without a nursery there is no worker, and all but `start` have nothing to do ------------
    def start(self, launches: Sequence[Launch]) -> None:
        """Start these workers. Each is answered by Started or SpawnFailed, all of them by one Emptied when nothing is
        left. Raises InternalError for a key that is still in use, between `kill()` and Emptied, or without a nursery,
        and UsageError for a string that holds a NUL; none is started then."""
        self._link()
        keys = [launch.key for launch in launches]
        if self._killing:
            raise InternalError(f"start of workers {keys} while those before them are being killed; wait for Emptied")
        if taken := self._unanswered & set(keys):
            raise InternalError(f"start of workers {keys} while those of {sorted(taken)} live; wait for Emptied")
        if len(set(keys)) < len(keys):
            raise InternalError(f"start of workers {keys}, which names one twice")
        frames = [
            (encode(launch, len(launches) - at, self._mark), fds_of(launch)) for at, launch in enumerate(launches, 1)
        ]
        for body, fds in frames:
            self._send(body, fds)
        self._unanswered.update(keys)

    def preload(self, modules: Sequence[str], per_round: Sequence[str], like: Launch) -> None:
        """Import these modules once, in a process that is started as `like` (its key and streams mean nothing here);
        workers that are like it, but for arguments of the script and variables named `per_round`, are forked from it.
        Answered by Preloaded or Unpreloaded; who is started before that waits. `modules` may be just "auto"."""
        words = [",".join(modules), ",".join(per_round), *described(like, self._mark)]
        self._send(b"\0".join([b"preload", *map(os.fsencode, words)]))

    def signal(self, signum: int) -> None:
        """Signal every worker's process group, its leader dead or not, and everything that left those groups; then wake
        (SIGCONT) what is stopped. For signals that end workers."""
        self._send(b"signal\0%d" % signum)

    def forward(self, signum: int) -> None:
        """Signal the workers themselves, none of their helpers. For signals that mean something to a worker: one that
        does not handle, ignore or block it is passed by, which Unheard tells."""
        self._send(b"forward\0%d" % signum)

    def kill(self) -> None:
        """SIGKILL every worker and all that they started, wherever it went, again and again until Emptied. A process
        that the kernel holds in an uninterruptible sleep delays that, maybe for ever."""
        self._killing = bool(self._unanswered)
        self._send(b"kill")

    def kill_group(self, key: int) -> None:
        """SIGKILL the group of one worker, which may itself be gone already."""
        self._send(b"kill_group\0%d" % key)

    def close(self) -> None:
        """End the nursery, which kills everything below it; return when it is gone, after `CLOSE_TIMEOUT_S` at the
        latest. Does nothing if there is none."""
        if self._socket is None:
            return
        try:
            self._socket.shutdown(_socket.SHUT_WR)
        except OSError:
            pass  # it is gone already, as the read below will find
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        until = time.monotonic() + CLOSE_TIMEOUT_S
        while poll.poll(max(0.0, until - time.monotonic()) * 1000):
            try:
                if not self._socket.recv(READ_BYTES):
                    break
            except ConnectionResetError:
                break
        self._lose()

    # -- inside --------------------------------------------------------------------------------------------------
    def _link(self) -> _socket.socket:
        if self._socket is None:
            raise InternalError("this supervisor has no nursery; open() one first")
        return self._socket

    def _send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Waits only while the nursery is starting or behind. One that does not read is given up, so that its guardian
        ends it: the end of the socket then reports its loss, as it does where it is dead already."""
        link = self._socket
        if link is None:
            return
        left = memoryview(len(body).to_bytes(4, "big") + body)
        extras = rights(fds)
        until = time.monotonic() + SEND_TIMEOUT_S
        while left:
            try:
                sent = link.sendmsg([left], extras, _socket.MSG_NOSIGNAL)
            except BlockingIOError:
                poll = select.poll()
                poll.register(link.fileno(), select.POLLOUT)
                if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                    link.shutdown(_socket.SHUT_WR)
                    return
            except (BrokenPipeError, ConnectionResetError):
                return
            else:
                left, extras = left[sent:], []

    def _understand(self, line: str) -> Fact | None:
        if line.startswith("nursery "):
            pid, self._cgroup = line.removeprefix("nursery ").split(" ", 1)
            self._nursery = int(pid)
            return None
        fact = fact_in(line)
        if isinstance(fact, Started):
            self._alive[fact.key] = fact.pid
        elif isinstance(fact, Exited):
            self._alive.pop(fact.key, None)
        elif isinstance(fact, Emptied):
            self._forget()
        return fact

    def _forget(self) -> None:
        self._unanswered.clear()
        self._alive.clear()
        self._killing = False

    def _lose(self) -> NurseryLost:
        """Clean up after the nursery, dead or to be killed now."""
        self._link().close()
        self._socket = None
        self._heard.clear()
        cleared, reason = bury(self._guardian, self._nursery)
        if not cleared:
            clear_behind(self._mark, self._cgroup)
        self._forget()
        return NurseryLost(reason)
