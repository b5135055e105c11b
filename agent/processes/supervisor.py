"""The agent's side of its worker processes: starts them through a nursery, signals them, reports their exits.

The nursery (`agent/nursery/server.py`) is a small process that is the parent of all workers. Agent and nursery are
connected by a stream socket pair, whose end comes when the nursery has exited and nothing below it is left
(`agent/nursery/guardian.py`); `protocol.py` says what crosses it.

Only `close` waits for a process. Facts come in the order in which they happened.
"""

from __future__ import annotations

# The C module: nothing that `socket` adds is used, and importing it would lengthen the agent's start-up.
import _socket
import os
import select
import time
from collections.abc import Iterable, Sequence

from ..errors import InternalError
from ..lifecycle.events import NurseryLost, WorkersGone
from ..nursery.frames import rights
from .nursery_process import begin, kill_leftovers, reap_guardian
from .protocol import Exited, Fact, Launch, Started, command_fields, encode, fds_of, parse_fact

SEND_TIMEOUT_S = 5.0
"""A nursery that does not read for this long is given up."""
CLOSE_TIMEOUT_S = 2.0
"""How long `close` waits for the nursery to end."""
READ_BYTES = 1 << 16


class Supervisor:
    """Owns this node's worker processes. For one thread only. Starts nothing before `open`."""

    def __init__(self, orphan_grace_s: float = 0.0, own_directories: tuple[str, ...] = ()) -> None:
        """`orphan_grace_s`: the time between SIGTERM and SIGKILL for workers if this process is killed.
        `own_directories`: what is removed then, as in `WorkerSpec`."""
        self._orphan_grace_s = orphan_grace_s
        self._own_directories = own_directories
        self._socket: _socket.socket | None = None
        self._guardian = self._nursery = 0
        """Their pids; the nursery's is 0 until it has reported it."""
        self._cgroup = ""
        """Directory of the workers' cgroup; empty if they have none."""
        self._mark = ""
        """NAME=VALUE of `MARK`."""
        self._received = bytearray()
        self._keys_in_use: set[int] = set()
        """Keys started since the last WorkersGone."""
        self._exited: set[int] = set()
        """Those of them that were reported as exited."""
        self._alive: dict[int, int] = {}
        """Pids, by key, of workers that were reported as started, and not as exited."""
        self._killing = False

    @property
    def mark(self) -> str:
        """NAME=VALUE in the environment of the nursery and of every worker; empty before `open`."""
        return self._mark

    def open(self) -> None:
        """Start the nursery and return before it serves; orders that are sent meanwhile wait for it. Raises OSError if
        it cannot be started, InternalError if there is one. Safe beside other threads: nothing is forked."""
        if self._socket is not None:
            raise InternalError(f"open() on a supervisor whose nursery (pid {self._nursery}) runs; close() it first")
        self._socket, self._guardian, self._mark = begin(self._orphan_grace_s, self._own_directories)
        self._nursery, self._cgroup = 0, ""

    @property
    def is_open(self) -> bool:
        """Whether there is a nursery, as far as `observe` has seen."""
        return self._socket is not None

    def fileno(self) -> int:
        """Readable when `observe` has facts to return. A different one after each `open()`."""
        return self._link().fileno()

    def observe(self) -> list[Fact]:
        """The facts since the last call, oldest first; never waits. After NurseryLost, which comes last, the
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
                facts.append(self._reap_nursery())
                break
            *lines, rest = (self._received + data).split(b"\n")
            self._received = bytearray(rest)
            facts += [fact for line in lines if (fact := self._receive(line.decode())) is not None]
        return facts

    def alive(self) -> tuple[int, ...]:
        """Keys of the workers that run, as of the facts that `observe` has returned."""
        return tuple(sorted(self._alive))

    def unfinished(self) -> tuple[int, ...]:
        """Keys of the workers that a signal reaches which is sent now: also those whose start is not reported yet, as
        the nursery takes orders in turn."""
        return tuple(sorted(self._keys_in_use - self._exited))

    # -- orders, answered by facts. Without a nursery there is no worker, and all but `start` do nothing ---------------
    def start(self, launches: Iterable[Launch], keys: Sequence[int] = ()) -> None:
        """Start these workers, each as soon as the iterable yields it; once it is asked for the next, the descriptors
        of the one before may be closed. `keys` are theirs, where `launches` is no sequence. Each is answered by Started
        or SpawnFailed, all of them by one WorkersGone when nothing is left.

        Raises InternalError for a key that is still in use, between `kill()` and WorkersGone, or without a nursery,
        and, in a sequence, UsageError for a string that holds a NUL; in these cases no worker is started. Raises
        OSError if this host refuses to send descriptors, and what the iterable raises; then `busy` says whether any
        was."""
        self._link()
        if isinstance(launches, Sequence):
            keys = [launch.key for launch in launches]
        if self._killing:
            raise InternalError(
                f"start of workers {keys} while those before them are being killed; wait for WorkersGone"
            )
        if taken := self._keys_in_use & set(keys):
            raise InternalError(f"start of workers {keys} while keys {sorted(taken)} are in use; wait for WorkersGone")
        if len(set(keys)) < len(keys):
            raise InternalError(f"start of workers {keys}, which names one twice")
        frames: Iterable[tuple[bytes, list[int]]] = (
            (encode(launch, len(keys) - at, self._mark), fds_of(launch)) for at, launch in enumerate(launches, 1)
        )
        if isinstance(launches, Sequence):
            frames = list(frames)
        sent = 0
        try:
            for body, fds in frames:
                self._send(body, fds)
                self._keys_in_use.add(keys[sent])
                sent += 1
        except BaseException:
            if sent:
                self._send(b"no_more")
            raise

    def busy(self) -> bool:
        """Whether workers were started that no WorkersGone has reported as gone yet."""
        return bool(self._keys_in_use)

    def preload(self, modules: Sequence[str], per_round: Sequence[str], like: Launch) -> None:
        """Import these modules once, in a process that is started as `like` (its key and streams are not used);
        workers that differ from it only in the script's arguments and the variables named `per_round` are forked from
        it. Answered by Preloaded or PreloadFailed; launches before that wait for it. `modules` may be just "auto"."""
        fields = [",".join(modules), ",".join(per_round), *command_fields(like, self._mark)]
        self._send(b"\0".join([b"preload", *map(os.fsencode, fields)]))

    def fence(self, memory: int, presence: int = -1) -> None:
        """From now on workers run only while the fence in this memory (`agent/nursery/fence.py`) is not passed. Once
        it is, WorkersFenced is followed by their exits, or by a SpawnFailed for each that was to start. The nursery
        holds the agent's `presence` (`agent/nursery/presence.py`) as long as it lives; -1: there is none."""
        self._send(b"fence\0%d" % (presence >= 0), [memory] if presence < 0 else [memory, presence])

    def hold(self, fd: int) -> None:
        """The nursery holds this until it has ended all workers; -1: nothing."""
        if fd >= 0:
            self._send(b"hold", [fd])

    def begin(self, generation: int) -> None:
        """Before `start`, where there is a fence: the generation in which the agent has read that the round runs."""
        self._send(b"begin\0%d" % generation)

    def serve_store(self, number: int, listener: int) -> None:
        """Have the workers' store of this round served on a TCP socket that listens, which the caller may close then;
        that of the round before ends. Answered by StoreEnded if its process dies."""
        self._send(b"serve\0%d" % number, [listener])

    def end_store(self) -> None:
        """End the workers' store, and close its port."""
        self._send(b"end_store")

    def signal(self, signum: int) -> None:
        """Signal every worker's process group, even if its leader has exited, and everything that left those groups;
        then wake (SIGCONT) what is stopped. For signals that end workers."""
        self._send(b"signal\0%d" % signum)

    def forward(self, signum: int) -> None:
        """Signal the workers themselves, and nothing that they started. For signals that a worker handles: one that
        does not handle, ignore or block it is left out, and reported by SignalNotForwarded."""
        self._send(b"forward\0%d" % signum)

    def kill(self) -> None:
        """SIGKILL every worker and all that they started, in whatever group or session, again and again until
        WorkersGone. A process that the kernel holds in an uninterruptible sleep delays WorkersGone, maybe for ever."""
        self._killing = bool(self._keys_in_use)
        self._send(b"kill")

    def kill_group(self, key: int) -> None:
        """SIGKILL the group of one worker, which may itself have exited already."""
        self._send(b"kill_group\0%d" % key)

    def name_leftovers(self) -> None:
        """Ask what runs below the nursery beside the workers. Answered by LeftoversNamed."""
        self._send(b"name")

    def keep_leftovers(self) -> None:
        """Let what the workers left behind run on, whatever becomes of this process and the nursery. Answered by
        LeftoversNamed, and, once all workers have exited, by WorkersGone."""
        self._send(b"keep")

    def close(self) -> None:
        """End the nursery, which kills everything below it that is not kept; return when it has exited, after
        `CLOSE_TIMEOUT_S` at the latest. Does nothing if there is none."""
        if self._socket is None:
            return
        try:
            self._socket.shutdown(_socket.SHUT_WR)
        except OSError:
            pass  # it has exited already, as the read below will find
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        until = time.monotonic() + CLOSE_TIMEOUT_S
        while poll.poll(max(0.0, until - time.monotonic()) * 1000):
            try:
                if not self._socket.recv(READ_BYTES):
                    break
            except ConnectionResetError:
                break
        self._reap_nursery()

    # -- inside --------------------------------------------------------------------------------------------------
    def _link(self) -> _socket.socket:
        if self._socket is None:
            raise InternalError("this supervisor has no nursery; open() one first")
        return self._socket

    def _send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send one frame; wait only while the socket is full. A nursery that does not read for `SEND_TIMEOUT_S` is
        given up: its guardian kills it, and NurseryLost follows, as it does if the nursery has exited already."""
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

    def _receive(self, line: str) -> Fact | None:
        """The fact that a line reports; None if it only introduces the nursery."""
        if line.startswith("nursery "):
            pid, self._cgroup = line.removeprefix("nursery ").split(" ", 1)
            self._nursery = int(pid)
            return None
        fact = parse_fact(line)
        if isinstance(fact, Started):
            self._alive[fact.key] = fact.pid
        elif isinstance(fact, Exited):
            self._alive.pop(fact.key, None)
            self._exited.add(fact.key)
        elif isinstance(fact, WorkersGone):
            self._clear_batch()
        return fact

    def _clear_batch(self) -> None:
        self._keys_in_use.clear()
        self._exited.clear()
        self._alive.clear()
        self._killing = False

    def _reap_nursery(self) -> NurseryLost:
        """Kill and reap guardian and nursery, where they still run, and kill what they left."""
        self._link().close()
        self._socket = None
        self._received.clear()
        cleared, reason = reap_guardian(self._guardian, self._nursery)
        if not cleared:
            kill_leftovers(self._mark, self._cgroup)
        self._clear_batch()
        return NurseryLost(reason)
