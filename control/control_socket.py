"""The control service of one agent as long as nobody asks: a socket, and what happened lately. Kept small and quick.

    <base>/<pid>-<random>/control.sock      base: $ELASTIC_AGENT_RUN_DIR, or $XDG_RUNTIME_DIR/elastic-agent,
                                            or /tmp/elastic-agent-<uid>

Not $TMPDIR: it is another for each batch job, and a socket's path holds 107 bytes. All else is imported with the first
connection (`service/connections.py`).
"""

from __future__ import annotations

# The C module: an agent has it already, and importing `socket` takes longer than all of this.
import _socket
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from threading import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ..agent.agent import Agent
    from ..agent.lifecycle.state import Verdict
    from ..agent.loop import Loop
    from ..agent.report import AgentEvent
    from ..agent.steps.seen import WorkersSeen
    from ..proto.progress import Progress
    from ..rendezvous.records import Round
    from .accounting import Accounting
    from .service.messages import Goodput
    from .service.process_files import ProcessFiles
    from .stream import Entry

    class Answering(Protocol):
        """What answers connections, once there is one."""

        def happened(self) -> None:
            """There is another event in the history."""
            ...

        def wake(self) -> None:
            """Workers have written something. From any thread."""
            ...

        def close(self) -> None: ...

    class Companion(Protocol):
        """What follows the agent beside the control service: metrics, the page, systemd, TCP."""

        def begin(self, agent: Agent, loop: Loop) -> None:
            """As `Service.begin`."""
            ...

        def happened(self, what: AgentEvent | Round | Verdict) -> None:
            """As `Service.happened`."""
            ...

        def close(self) -> None: ...


KEPT = 1024
"""Events that are remembered; the oldest are forgotten first."""
UNREAD = 512
"""What may wait for the account of workers' seconds, which is loaded when so much waits, or somebody asks."""
BACKLOG = 128
"""Connections that may wait to be accepted; more are refused by the kernel, or wait there."""

SetWatch = Callable[[str, str], str]
"""Sets what is watched, from names of usual watches and the text of a table; returns what was done. May block. Raises
UsageError."""


VARIABLE = "ELASTIC_AGENT_RUN_DIR"
"""The base, instead; `off`: no agent that has it answers."""
OFF = "off"
SOCKET = "control.sock"
UNNAMED = "new"
"""What it is called until it takes connections."""
PATH_MAX = 107
"""Bytes of a socket's path; unix(7)."""


class NoPlace(Exception):
    """There is no directory for the socket. One line."""


def bases() -> list[str]:
    """Where sockets of this user's agents may be: the first is where an agent of this environment has its own."""
    if given := os.environ.get(VARIABLE, ""):
        return [] if given == OFF else [os.path.abspath(given)]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    common = f"/tmp/elastic-agent-{os.geteuid()}"  # noqa: S108 - made and checked as this user's alone
    return [*([f"{runtime}/elastic-agent"] if os.path.isabs(runtime) and os.path.isdir(runtime) else []), common]


def make() -> str:
    """A new run directory, of this user only; empty where that is switched off. Raises NoPlace."""
    # Here: elasticctl imports this module for the directories, and has no agent.
    from ..agent.private_folder import NotPrivate, make_private

    trouble = ""
    for base in bases():
        try:
            make_private(base)
            path = f"{base}/{os.getpid()}-{os.urandom(4).hex()}"
            if len(os.fsencode(f"{path}/{SOCKET}")) > PATH_MAX:
                raise NoPlace(f"{path}/{SOCKET} is longer than the {PATH_MAX} bytes of a socket's path")
            os.mkdir(path, 0o700)
        except (NotPrivate, NoPlace) as error:
            trouble = trouble or str(error)
        except OSError as error:
            trouble = trouble or f"{base}: {error.strerror}"
        else:
            return path
    if trouble:
        raise NoPlace(f"{trouble}; set {VARIABLE} to a directory of this user only")
    return ""


def remove(path: str) -> None:
    """Remove a run directory and the socket in it. One that is gone is no error."""
    for name in (SOCKET, UNNAMED):
        try:
            os.unlink(f"{path}/{name}")
        except FileNotFoundError:
            pass  # none was made, or it is gone
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass  # it is gone


class Service:
    """What answers for one agent. But for `since` and `goodput`, only for the thread of the agent's loop."""

    def __init__(
        self, run_id: str, tell: Callable[[str, bool], None], answer: Answer, set_watch: SetWatch | None = None
    ) -> None:
        """Makes the run directory. Where there can be none, nothing answers, and `tell` gets one sentence. `answer` is
        called at the first connection."""
        self.run_id = run_id
        self.set_watch = set_watch
        self.progress: Callable[[], Mapping[int, Progress]] | None = None
        """How far each worker is, by rank, where that is known."""
        self.checkpoints = ""
        """The directory of --exact-resume; empty: without."""
        self.on_change: tuple[Callable[[], None], ...] = ()
        """Called, from any thread, when there may be something new for somebody who follows in this process."""
        self.closed = False
        self.companions: list[Companion] = []
        """What is begun and closed with this."""
        self.history: deque[Entry] = deque(maxlen=KEPT)
        self.recorders: list[Callable[[Entry], None]] = []
        """Called, on the thread of the agent's loop, with each event."""
        self.lookers: list[Callable[[WorkersSeen], None]] = []
        """Called on that thread with how the agent sees its workers, as `seen` is."""
        self.deadline_s: float | None = None
        """When the job's time ends, since 1970, where that is known."""
        self.number = 0
        """Of the newest event."""
        self.began_s = time.monotonic()
        self.agent: Agent | None = None
        self.directory = ""
        from .stream import Stream  # here, as in `make`

        self._stream = Stream()
        self._unread: list[AgentEvent | Round | WorkersSeen | Verdict] = []
        self._accounting: Accounting | None = None
        self._processes: ProcessFiles | None = None
        self._reading, self._keeping = Lock(), Lock()
        self._tell = tell
        self._loop: Loop | None = None
        self._listener: _socket.socket | None = None
        self._answer = answer
        self._connections: Answering | None = None
        try:
            self.directory = make()
        except NoPlace as error:
            # Who has chosen the directory expects it to be used.
            tell(f"elasticctl cannot reach this agent: {error}; the job runs on", not os.environ.get(VARIABLE))

    @property
    def path(self) -> str:
        """Of the socket; empty where nothing answers."""
        return f"{self.directory}/{SOCKET}" if self.directory else ""

    def begin(self, agent: Agent, loop: Loop) -> None:
        """Answer from now on, on this loop."""
        self.agent, self._loop = agent, loop
        if self.deadline_s is not None:
            self._record(self._stream.deadline(self.deadline_s))
        for other in self.companions:
            other.begin(agent, loop)
        if not self.directory:
            return
        listener = None
        try:
            listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
            # It has its name only once it takes connections: before, who finds it would be refused.
            bound = f"{self.directory}/{UNNAMED}"
            listener.bind(bound)
            os.chmod(bound, 0o600)
            listener.setblocking(False)
            listener.listen(BACKLOG)
            os.rename(bound, self.path)
        except OSError as error:
            if listener is not None:
                listener.close()
            self._tell(f"elasticctl cannot reach this agent: {self.path}: {error.strerror}; the job runs on", False)
            return
        self._listener = listener
        loop.watch(listener.fileno(), self._asked)

    def happened(self, what: AgentEvent | Round | Verdict) -> None:
        """Remember it, and pass it on to those who follow."""
        for other in self.companions:
            try:
                other.happened(what)
            except Exception as error:  # noqa: BLE001 - what only watches must not end the job
                self._tell(f"{type(other).__name__} failed: {type(error).__name__}: {error}; please report it", False)
        self._record(what)
        self._read(what)
        for stage in self._stream.followed(what):
            self._record(stage)

    def seen(self, workers: WorkersSeen) -> None:
        """Workers begin, have begun, have exited, or have written of their steps."""
        self._read(workers)
        for found in self._stream.seen(workers):
            self._record(found)
        for look in self.lookers:
            look(workers)

    def alarmed(self, watch: str, change: str, because: str) -> None:
        """A watch fired, was cleared, or can or cannot be read. From any thread."""
        from ..rendezvous.driver.events import LoopAsked

        if (loop := self._loop) is not None:
            alarm = self._stream.alarm(watch, change, because)
            loop.post(LoopAsked(partial(self._record, alarm)))

    def processes(self) -> ProcessFiles:
        """The files by which the kernel is asked of workers. From any thread."""
        with self._reading:
            if self._processes is None:
                from .service.process_files import ProcessFiles

                self._processes = ProcessFiles()
            return self._processes

    def goodput(self, at_s: float | None = None) -> Goodput:
        """Where the seconds of this node's workers went, until now, or then. From any thread."""
        with self._reading:
            at_s = time.monotonic() if at_s is None else at_s
            if self.agent is None:
                return self._followed().message(at_s, "")
            return self._followed().message(at_s, self.agent.name, self.agent.known().node.place.nproc)

    def _followed(self) -> Accounting:
        """The account with all that has happened. With the lock held."""
        if self._accounting is None:
            from .accounting import Accounting

            self._accounting = Accounting(self.began_s)
        unread, self._unread = self._unread, []
        for what in unread:
            self._accounting.follow(what)
        return self._accounting

    def _read(self, what: AgentEvent | Round | WorkersSeen | Verdict) -> None:
        with self._reading:
            self._unread.append(what)
            if len(self._unread) >= UNREAD:
                self._followed()

    def _record(self, what: object) -> None:
        """Give it its number, its id and its cause, and pass it on to those who follow."""
        known = self.agent.known() if self.agent is not None else None
        entry = self._stream.entry(what, self.number + 1, known)
        with self._keeping:
            self.number = entry.number
            self.history.append(entry)
        for record in self.recorders:
            try:
                record(entry)
            except Exception as error:  # noqa: BLE001 - what only watches must not end the job
                self._tell(f"an event was not recorded: {type(error).__name__}: {error}; please report it", False)
        for listener in self.on_change:
            listener()
        if self._connections is not None:
            self._connections.happened()

    def since(self, first: int) -> list[Entry]:
        """The events from this number on that are kept, oldest first. From any thread."""
        with self._keeping:
            forgotten = self.history[0].number if self.history else first
            return list(islice(self.history, max(0, first - forgotten), None))

    def announced(self, announcement: Round) -> None:
        """As `happened`, for an announcement that this node makes as the coordinator."""
        self.happened(announcement)

    def wake(self) -> None:
        """Workers have written something that somebody follows. From any thread."""
        for listener in self.on_change:
            listener()
        if (connections := self._connections) is not None:
            connections.wake()

    def close(self) -> None:
        """Answer no more; who follows gets what is left. Idempotent."""
        verdict = self.agent.known().node.verdict if self.agent is not None else None
        if verdict is not None and self._loop is not None:
            self._loop = None
            self.happened(verdict)
        self.closed = True
        for other in self.companions:
            try:
                other.close()
            except Exception as error:  # noqa: BLE001 - as above; the socket and its directory go in any case
                self._tell(f"{type(other).__name__} failed: {type(error).__name__}: {error}; please report it", False)
        for listener in self.on_change:
            listener()
        if self._connections is not None:
            self._connections.close()
            self._connections = None
        if self._processes is not None:
            self._processes.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self.directory:
            try:
                remove(self.directory)
            except OSError as error:
                self._tell(f"cannot remove {self.directory}: {error.strerror}; delete it by hand", False)
            self.directory = ""

    def _asked(self) -> tuple[()]:
        """The first connection."""
        if self._listener is not None and self._loop is not None:
            self._loop.forget(self._listener.fileno())
            self._connections = self._answer(self, self._listener, self._loop)
        return ()


Answer = Callable[[Service, _socket.socket, "Loop"], "Answering"]
"""Makes what answers connections on this listener, on this loop; the listener stays the caller's."""
