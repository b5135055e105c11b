"""The program's side of all calls: numbered, handed to this node's workers when they ask, answered by them.

Workers ask for the call after the last one that their state has seen. So after a restart they ask for calls again that
were answered already but had not reached a checkpoint: they are done again, and give nothing the second time.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ...agent.errors import InternalError
from ..errors import Diverged, WrongReturn
from ..frames import Closed, Inbox, Place, packed, send
from ..meters import merged
from ..names import SOCKET, WRONG

log = logging.getLogger("elastic_agent")


class Call(NamedTuple):
    """One call of the program."""

    number: int
    """From 1; the same on every node of the job."""
    name: str
    args: dict[str, Any]
    digest: str
    """Equal where name and arguments are."""
    parcel: str = ""
    """Name of a private file on this host with more of it: a function, or tensors."""
    refused: str = ""
    """Why this node cannot take part: an error of its program's, which all nodes raise."""

    def to_json(self, restarts: int, kept: bool, before: Any) -> dict[str, Any]:
        """restarts: of the job, when the call was handed out first. kept: whether a state that it goes on from was kept
        in memory then. before: what the call before it gave."""
        return {**self._asdict(), "restarts": restarts, "kept": kept, "before": before}


class Answer(NamedTuple):
    """What a call gave."""

    value: Any
    body: bytes = b""
    recorded: bool = False
    """Whether it was done before this program made it: in its former life, or while this node was not there."""

    def right(self) -> Answer:
        """The same. Raises WrongReturn where the workers could do nothing with what the call was given."""
        if isinstance(self.value, dict) and WRONG in self.value:
            raise WrongReturn(self.value[WRONG])
        return self


@dataclass
class Here:
    """This node's workers of one round."""

    round: int = 0
    local_world_size: int = 0
    world_size: int = 0
    restarts: int = 0
    """Rounds of the job that a failure has ended so far."""
    local_ranks: set[int] = field(default_factory=set)


class Asking(NamedTuple):
    """What a worker waits for."""

    number: int
    """Of the call."""
    local_rank: int
    round: int


class CallServer:
    """Made before the workers are started. Used by the program's thread; has one thread for each connection."""

    def __init__(self, folder: str) -> None:
        """folder: a private directory. Raises OSError."""
        self._changed = threading.Condition()
        """What the program waits for has changed: an answer, the workers, the end of the job."""
        self._calls: list[Call] = []
        self._answers: dict[int, Answer] = {}
        self._parts: dict[int, dict[int, Any]] = {}
        """By call and rank, of passes whose workers of this round have not all ended them."""
        self._records: dict[int, tuple[str, str, Any]] = {}
        self._begun: dict[int, int] = {}
        self._kept: set[int] = set()
        self._read: Call | None = None
        self._reads = 0
        self._here = Here()
        self._rounds = 0
        self._ended: Callable[[], BaseException] | None = None
        self._connections: set[socket.socket] = set()
        self._asking: dict[socket.socket, Asking] = {}
        """Workers that wait for a call, each by its connection."""
        self._threads: list[threading.Thread] = []
        self.failures: list[dict[str, Any]] = []
        """Exceptions that workers reported before they ended, oldest first."""
        self.on_progress: Callable[[dict[str, Any]], None] | None = None
        """Called with what rank 0 shows of a pass."""
        self.on_look: Callable[[], bool] = lambda: False
        """Called before a pass that begins with a look for resources; whether the round is to be begun again."""
        self._place = Place(folder, SOCKET)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._server.settimeout(None)  # whatever the program has given to socket.setdefaulttimeout
        try:
            self._server.bind(self._place.address)
            self._server.listen(64)
        except OSError:
            self._server.close()
            self._place.close()
            raise
        self._acceptor = threading.Thread(target=self._accept, name="trainer-calls", daemon=True)
        self._acceptor.start()

    # -- the program ---------------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """Number of the last call that was made; 0: none was."""
        return len(self._calls)

    @property
    def records(self) -> int:
        """Number of the last call that is known to have been done, here or elsewhere."""
        return max((*self._records, *self._answers), default=0)

    @property
    def world_size(self) -> int:
        """Workers of all nodes in the last round that this node knows."""
        return self._here.world_size

    @property
    def rounds(self) -> int:
        """How many rounds have come to this server."""
        return self._rounds

    def left(self) -> None:
        """This node's workers have ended, and others will come, of a job whose rounds are counted anew."""
        with self._changed:
            self._here = Here()
            self._changed.notify_all()
        self._hand_out()

    def wait_ready(self) -> None:
        """Until all workers of this node are there. Raises what ended the job."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._complete())
            if not self._complete() and self._ended:
                raise self._ended()

    def make(self, name: str, args: dict[str, Any], digest: str, parcel: str = "", refused: str = "") -> int:
        """Hand out the next call; returns its number. Raises what ended the job, and Diverged where it was another
        call when it was done first."""
        with self._changed:
            number = len(self._calls) + 1
            if (known := self._records.get(number)) is not None and known[:2] != (name, digest):
                raise Diverged(
                    f"call {number} of this program is {name}() with {args}, and was {known[0]}() with other arguments "
                    f"({known[1]}, not {digest}) when it was done first; run the program that began this training, or "
                    "begin anew in another checkpoint_dir"
                )
            if self._ended and number not in self._records:
                raise self._ended()
            self._begun[number] = self._here.restarts
            self._calls.append(Call(number, name, args, digest, parcel, refused))
        self._hand_out()
        return number

    def read(self, name: str) -> Answer:
        """Ask this node's first worker, between two calls, for what changes nothing. Raises what ended the job."""
        with self._changed:
            self._reads += 1
            number = -self._reads
            self._read = Call(number, name, {}, "")
        self._hand_out()
        with self._changed:
            self._changed.wait_for(lambda: self._ended or number in self._answers)
            self._read = None
            if number not in self._answers and self._ended:
                raise self._ended()
            return self._answers.pop(number)

    def wait(self, number: int) -> Answer:
        """What this call gave; its body the first time only. Raises what ended the job."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or number in self._answers or number in self._records)
            if (answer := self._answers.get(number)) is not None:
                self._answers[number] = answer._replace(body=b"")
                return answer
            if number in self._records:
                return Answer(self._records[number][2], recorded=True)
            raise self._ended() if self._ended else InternalError(f"call {number} got no answer; please report this")

    def end(self, error: Callable[[], BaseException]) -> None:
        """The job is over: whoever waits, or comes later, gets this error."""
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()
        self._hand_out()

    def close(self) -> None:
        """Close every connection. May be called again."""
        with self._changed:
            self._ended = self._ended or (lambda: RuntimeError("the trainer is shut down"))
            connections, self._connections = self._connections, set()
            self._changed.notify_all()
        for connection in (self._server, *connections):
            _hang_up(connection)
        self._acceptor.join()
        for thread in self._threads:
            thread.join()
        if self._server.fileno() >= 0:
            self._server.close()
            self._place.close()

    # -- the workers ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            connection.settimeout(None)  # as above
            with self._changed:
                self._connections.add(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), name="trainer-worker", daemon=True)
            self._threads = [other for other in self._threads if other.is_alive()]
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        local_rank = rank = number = -1
        inbox = Inbox(connection)
        with connection:
            try:
                while True:
                    message, body = inbox.receive()
                    if "hello" in message:
                        hello = message["hello"]
                        local_rank, rank, number = (int(hello[name]) for name in ("local_rank", "rank", "round"))
                        send(connection, {"known": self._known(message["hello"])})
                    elif "ready" in message:
                        self._ready(local_rank, message["ready"])
                    elif "next" in message:
                        asking = Asking(message["next"], local_rank, number)
                        self._ask(connection, asking, rank, json.loads(body) if "part" in message else None)
                    elif "look" in message:
                        send(connection, {"asked": self.on_look()})
                    elif "kept" in message:
                        self._kept.add(message["kept"])
                    elif "result" in message:
                        self._answer(message, body)
                    elif "failed" in message:
                        self.failures.append(message["failed"])
                    elif "progress" in message:
                        self._show(message["progress"])
            except (OSError, Closed):
                pass  # the worker has ended; the agent says how
            finally:
                with self._changed:
                    self._connections.discard(connection)
                    self._asking.pop(connection, None)
                    self._changed.notify_all()

    def _show(self, progress: dict[str, Any]) -> None:
        """A bar that cannot be drawn, on a terminal that is gone perhaps, is no reason to hang up on a worker."""
        try:
            if self.on_progress is not None:
                self.on_progress(progress)
        except Exception as error:  # noqa: BLE001 - of whatever draws it
            self.on_progress = None
            log.warning("no progress is shown any more: %s: %s", type(error).__name__, error)

    def _known(self, hello: dict[str, Any]) -> list[Any]:
        """A worker has connected. Returns the calls of this program that are later than the worker's state."""
        with self._changed:
            if hello["round"] != self._here.round:
                self._rounds += 1
                self._parts.clear()
                self._here = Here(hello["round"], hello["local_world_size"], hello["world_size"], hello["restarts"])
                self._hand_out()
            known = {number: [number, *call] for number, call in self._records.items()}
            for call in self._calls:
                if call.number in self._answers:
                    known[call.number] = [call.number, call.name, call.digest, self._answers[call.number].value]
            return [call for number, call in sorted(known.items()) if number > hello["done"]]

    def _ready(self, local_rank: int, records: list[Any]) -> None:
        """A worker waits for calls. records: of calls that are done, by any node's workers."""
        with self._changed:
            self._here.local_ranks.add(local_rank)
            for number, name, digest, value in records:
                self._records.setdefault(int(number), (name, digest, value))
            self._changed.notify_all()

    def _hand_out(self) -> None:
        """Send each worker that waits the call that is there for it; hang up on those to whom nobody will make one, or
        whose round is over. On the thread by which that came to be: no other needs to wake up first."""
        with self._changed:
            due = [(connection, self._due(asking)) for connection, asking in self._asking.items()]
            due = [(connection, found) for connection, found in due if found is not None]
            for connection, _ in due:
                del self._asking[connection]
            messages = {call.number: packed(self._told(call)) for _, call in due if call}
        for connection, call in due:
            if not call:
                _hang_up(connection)
                continue
            try:
                connection.sendall(messages[call.number])
            except OSError:
                continue  # the worker has ended; the agent says how

    def _told(self, call: Call) -> dict[str, Any]:
        before = call.number - 1
        value = self._answers[before].value if before in self._answers else self._records.get(before, (None,))[-1]
        return call.to_json(self._begun.get(call.number, 0), call.number in self._kept, value)

    def _due(self, asking: Asking) -> Call | Literal[False] | None:
        """The call that a worker waits for; False where none will come, None where one may."""
        if self._here.round != asking.round:
            return False
        if len(self._calls) >= asking.number:
            # With it goes what the call before gave, which is not known until all workers have said their part.
            return None if asking.number - 1 in self._parts else self._calls[asking.number - 1]
        if self._ended:
            return False
        return self._read if asking.local_rank == 0 else None

    def _answer(self, message: dict[str, Any], body: bytes) -> None:
        """By this node's first worker; the others know the same."""
        with self._changed:
            number = int(message["result"])
            if self._read is not None and self._read.number == number:
                self._read = None  # else the worker gets it again as it asks for the next call
            elif number < 0:
                return  # nobody waits for it any more
            self._answers.setdefault(number, Answer(message["value"], body))
            self._changed.notify_all()

    def _ask(self, connection: socket.socket, asking: Asking, rank: int, part: Any) -> None:
        """A worker asks for a call; with its part of what the pass before gave, where all workers are on this node."""
        with self._changed:
            self._asking[connection] = asking
            over = part is not None and self._is_over(asking.number - 1, rank, asking.round, part)
            due = any(self._due(each) is not None for each in self._asking.values())
            if over:
                self._changed.notify_all()
        if due:
            self._hand_out()

    def _is_over(self, number: int, rank: int, in_round: int, part: Any) -> bool:
        """Take a worker's part of what a pass gave; whether it was the last one."""
        if in_round != self._here.round or number in self._answers or number in self._records:
            return False  # it is made again, or what it gave the first time stands
        parts = self._parts.setdefault(number, {})
        parts[rank] = part
        if len(parts) < self._here.world_size:
            return False
        del self._parts[number]
        self._answers[number] = Answer(merged([parts[each] for each in sorted(parts)]))
        return True

    def _complete(self) -> bool:
        return 0 < self._here.local_world_size <= len(self._here.local_ranks)


def _hang_up(connection: socket.socket) -> None:
    """Wake whoever waits at a socket; its own thread closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was not connected, or closed meanwhile
