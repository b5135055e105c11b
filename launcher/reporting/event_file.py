"""The file of an agent's events, named by ELASTIC_AGENT_EVENTS: one JSON object a line.

docs/configuration.md lists the keys. Each line is one write, so it is in the file whole or not at all, even if the
agent is killed. Several agents of a host may share a file.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from ...agent.errors import UsageError
from ...agent.lifecycle.state import Verdict
from ...agent.output.log_dirs import FULL
from ...agent.report import AgentEvent
from ...control.stream import VERSION, Alarm, Checkpoint, Deadline, Entry, Stage
from ...rendezvous.failures import Ending
from ...rendezvous.records import Member, Round
from ...rendezvous.text import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...control.control_socket import Service
    from ...control.service.messages import Goodput

VARIABLE = "ELASTIC_AGENT_EVENTS"
LIMIT_BYTES = 64 << 20
"""A file that has so much is put aside as `FILE.1`, `FILE.2` and so on, of which the last is the newest."""
KEPT_ASIDE = 4
"""Files that were put aside and are kept; the oldest is deleted."""
WAITING_MAX = 1024
"""Lines that wait while the disk takes none; the oldest is dropped first."""
ACCOUNTED = frozenset({"stopped", "first step"})
"""Stages behind which the file gets the account of the workers' seconds."""


class EventFile:
    """An open file of events. Any thread may make it; its methods are called on the agent's thread."""

    def __init__(self, path: str, tell: Callable[[str, bool], None], limit_bytes: int = LIMIT_BYTES) -> None:
        """Opens the file for appending; raises UsageError if that is not possible. `tell` gets one line where the disk
        refuses events, of which the newest WAITING_MAX wait for it."""
        self._path, self._tell, self._limit = os.path.abspath(path), tell, limit_bytes
        try:
            self._fd = self._open()
        except OSError as error:
            raise UsageError(
                f"{VARIABLE} is {path!r}, which cannot be written: {error.strerror}; name a file in a directory that "
                "exists, or unset it"
            ) from error
        self._begin = b"" if _ends_whole(self._path) else b"\n"
        """Before the next line: what a host that lost its power left of its last line is not to take another along."""
        self._waiting: deque[bytes] = deque()
        self._dropped = self._torn = 0
        self._troubled = self._rotating_failed = self._nameless = False
        self.name = ""
        """What other nodes call this agent."""
        self.goodput: Callable[[float], Goodput] | None = None
        """The account of the workers' seconds until then, on the monotonic clock."""

    def follow(self, name: str, service: Service) -> None:
        """Record the events of this service. name: what other nodes call its agent."""
        self.name, self.goodput = name, service.goodput
        service.recorders.append(self.record)

    def record(self, entry: Entry) -> None:
        """Append a line for one event, and behind some of them one for the account of the workers' seconds."""
        what = entry.what
        accounted = isinstance(what, Checkpoint) or (isinstance(what, Stage) and what.name in ACCOUNTED)
        if isinstance(what, Verdict):
            self._account(entry)
        if isinstance(what, AgentEvent):
            self._write("event", what.at_s, entry, _event(what))
        elif isinstance(what, Round):
            self._write("announced", entry.at_s, entry, _announced(what))
        elif isinstance(what, Verdict):
            outcome = what.outcome.value if what.outcome else None
            line = {"exit_code": what.exit_code, "because": what.because, "outcome": outcome}
            self._write("concluded", entry.at_s, entry, line)
        else:
            kind, line = _found(what)
            self._write(kind, entry.at_s, entry, line)
        if accounted:
            self._account(entry)

    def close(self) -> None:
        """Close the file; later events are dropped. May be called again."""
        if self._fd >= 0:
            self._flush()
            if lost := self._dropped + len(self._waiting):
                missing = f"{count(lost, 'event')} {'is' if lost == 1 else 'are'} missing from {self._path}"
                self._tell(f"{missing} ({VARIABLE}): the disk refused them", False)
            os.close(self._fd)
            self._fd = -1

    def _account(self, entry: Entry) -> None:
        if self.goodput is None:
            return
        found = self.goodput(entry.at_s)
        line: dict[str, object] = {
            "wall_s": round(found.wall_s, 6),
            "workers": found.workers,
            "share": round(found.share, 6),
            "measured": found.measured,
            "buckets": {each.bucket: round(each.length_s, 6) for each in found.buckets},
            "ranks": [
                {"rank": each.rank, "steps": each.steps, "stepped_s": round(each.stepped_s, 6)} for each in found.ranks
            ],
            "lost": [
                {
                    "round": each.round,
                    "kind": each.kind,
                    "node": each.node,
                    "length_s": round(each.length_s, 6),
                    "because": each.because,
                }
                for each in found.lost
            ],
        }
        self._write("goodput", entry.at_s, entry._replace(id="", cause=entry.id), line)

    def _write(self, what: str, at_s: float, entry: Entry, line: Mapping[str, object]) -> None:
        if self._fd < 0:
            return
        known = {"what": what, "at_s": at_s, "time_s": entry.time_s, "node": self.name, "form": VERSION}
        named = {"id": entry.id, "cause": entry.cause}
        self._waiting.append(self._begin + (json.dumps({**known, **named, **line}) + "\n").encode())
        self._begin = b""
        if len(self._waiting) > WAITING_MAX:
            del self._waiting[self._torn]  # a line of which the file has a part is never dropped
            self._dropped += 1
        self._flush()

    def _flush(self) -> None:
        """Write what waits, the oldest first."""
        try:
            self._follow_name()
            self._rotate()
        except OSError as error:
            # A full disk is found by the write below, too; other troubles leave the present file as it is.
            if not self._rotating_failed and error.errno not in FULL:
                self._rotating_failed = True
                self._tell(f"{self._path} ({VARIABLE}) grows beyond {self._limit} bytes: {error.strerror}", False)
        try:
            while self._waiting:
                written = os.write(self._fd, self._waiting[0])
                if written < len(self._waiting[0]):  # the disk is full within a line, which goes on later
                    self._waiting[0], self._torn = self._waiting[0][written:], 1
                    continue
                self._waiting.popleft()
                self._torn = 0
        except OSError as error:
            if self._make_room(error):
                self._flush()
            elif not self._troubled:
                self._troubled = True
                self._tell(
                    f"cannot write events to {self._path} ({VARIABLE}): {error.strerror}; keeping the newest "
                    f"{WAITING_MAX} until it can",
                    False,
                )
        else:
            if self._troubled:
                self._troubled = False
                self._tell(f"events are written to {self._path} again; {self._dropped} were dropped", False)
                self._dropped = 0

    def _open(self) -> int:
        # O_NONBLOCK: a FIFO that nobody reads is refused, and not waited for.
        made = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        os.set_blocking(made, True)
        return made

    def _follow_name(self) -> None:
        """Go on in the file that has the name now: this one may have been deleted, or renamed as logrotate does."""
        if self._torn or not stat.S_ISREG(os.fstat(self._fd).st_mode):
            return
        try:
            if self._is_current():
                return
            made = self._open()
        except OSError as error:
            if not self._nameless:
                self._nameless = True
                self._tell(
                    f"{self._path} ({VARIABLE}) is gone, and cannot be made again: {error.strerror}; what follows is "
                    "in it, wherever it is",
                    False,
                )
            return
        os.close(self._fd)
        self._fd, self._nameless = made, False

    def _rotate(self) -> None:
        """Go on in a new file where this one is full. Of agents that share it, one renames it."""
        if os.fstat(self._fd).st_size < self._limit:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another agent is at it
        # Closing the old descriptor releases the lock.
        if self._is_current():
            aside = _aside(self._path)
            os.rename(self._path, f"{self._path}.{max(aside, default=0) + 1}")
            for number in sorted(aside)[: max(0, len(aside) + 1 - KEPT_ASIDE)]:
                with suppress(FileNotFoundError):  # another agent that shares the file was first
                    os.unlink(f"{self._path}.{number}")
        old, self._fd = self._fd, self._open()
        os.close(old)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _make_room(self, error: OSError) -> bool:
        """On a full disk, delete the oldest file that was put aside. Whether there was one."""
        if error.errno not in FULL:
            return False
        try:
            aside = _aside(self._path)
            if not aside:
                return False
            os.unlink(f"{self._path}.{min(aside)}")
        except OSError:
            return False
        self._tell(f"the disk is full; deleted {self._path}.{min(aside)}, the oldest file of events", False)
        return True


def _ends_whole(path: str) -> bool:
    """Whether the last line of a file has its end; of what is no file, or cannot be read, it is taken to have."""
    with suppress(OSError), open(path, "rb") as file:
        if os.path.isfile(path) and file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    return True


def _aside(path: str) -> list[int]:
    """Numbers of the files that were put aside."""
    folder, name = os.path.split(path)
    found = (entry.removeprefix(f"{name}.") for entry in os.listdir(folder) if entry.startswith(f"{name}."))
    return [int(number) for number in found if number.isdecimal() and number.isascii()]


def _event(event: AgentEvent) -> dict[str, object]:
    line: dict[str, object] = {
        "phase": event.phase.value,
        "round": event.round,
        "because": event.because,
        "happened": event.happened,
        "members": _places(event.members),
        "restarts_used": event.restarts_used,
        "waits": event.waits,
        "ended": _ending(event.ended),
    }
    if event.failure is not None:
        line["failure"] = str(event.failure)
    return line


def _announced(announcement: Round) -> dict[str, object]:
    """Of this agent as the coordinator."""
    return {
        "version": announcement.version,
        "epoch": announcement.epoch,
        "number": announcement.number,
        "phase": announcement.phase.value,
        "because": announcement.because,
        "members": _places(announcement.placed),
        "master": f"{announcement.master_addr}:{announcement.master_port}" if announcement.master_addr else None,
        "restarts": announcement.restarts,
        "finishing": announcement.finishing,
        "ended": _ending(announcement.ended),
        "outcome": announcement.outcome.value if announcement.outcome else None,
    }


def _found(what: object) -> tuple[str, dict[str, object]]:
    if isinstance(what, Stage):
        return "stage", {"stage": what.name, "round": what.round, "took_s": round(what.took_s, 6)}
    if isinstance(what, Checkpoint):
        return "checkpoint", {"step": what.step, "round": what.round, "took_s": round(what.took_s, 6)}
    if isinstance(what, Deadline):
        return "deadline", {"until_s": what.until_s}
    if isinstance(what, Alarm):
        return "alarm", {"watch": what.watch, "happened": what.change, "because": what.because}
    raise TypeError(f"{type(what).__name__} is no event")


def _places(members: tuple[Member, ...]) -> list[dict[str, object]]:
    return [
        {
            "node": each.node,
            "name": each.name,
            "group_rank": each.group_rank,
            "rank_offset": each.rank_offset,
            "nproc": each.nproc,
        }
        for each in members
    ]


def _ending(ended: Ending | None) -> dict[str, object] | None:
    if ended is None:
        return None
    line: dict[str, object] = {
        "round": ended.round,
        "kind": ended.kind.value,
        "because": ended.because,
        "charged": ended.charged,
    }
    if ended.failure is not None:
        line |= {"rank": ended.failure.rank, "judged": ended.role.value}
    return line
