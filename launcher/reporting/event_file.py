"""The file of an agent's events, named by ELASTIC_AGENT_EVENTS: one JSON object a line.

docs/configuration.md lists the keys. Each line is one write, so it is in the file whole or not at all, even if the
agent is killed. Several agents may share a file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping

from ...agent.errors import UsageError
from ...agent.report import AgentEvent, Report
from ...rendezvous.failures import Ending
from ...rendezvous.records import Member, Round

VARIABLE = "ELASTIC_AGENT_EVENTS"


class EventFile:
    """An open file of events. Any thread may make it; its methods are called on the agent's thread."""

    def __init__(self, path: str, tell: Callable[[str, bool], None]) -> None:
        """Opens the file for appending; raises UsageError if that is not possible. The first write that fails closes
        the file and passes one sentence to `tell`."""
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(
                f"{VARIABLE} is {path!r}, which cannot be written: {error.strerror}; name a file in a directory that "
                "exists, or unset it"
            ) from error
        self._path = path
        self._tell = tell
        self.name = ""
        """What other nodes call this agent."""

    def event(self, event: AgentEvent) -> None:
        """Append a line for one event of this node."""
        line: dict[str, object] = {
            "phase": event.phase.value,
            "round": event.round,
            "because": event.because,
            "happened": event.happened,
            "members": _places(event.members),
            "restarts_used": event.restarts_used,
        }
        if event.failure is not None:
            line["failure"] = str(event.failure)
        self._write("event", event.at_s, line)

    def announced(self, announcement: Round) -> None:
        """Append a line for an announcement that this agent made as the coordinator."""
        line = {
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
        self._write("announced", time.monotonic(), line)

    def concluded(self, report: Report) -> None:
        """Append the line for the end of this agent."""
        verdict = report.verdict
        line = {
            "exit_code": verdict.exit_code,
            "because": verdict.because,
            "outcome": verdict.outcome.value if verdict.outcome else None,
        }
        self._write("concluded", time.monotonic(), line)

    def close(self) -> None:
        """Close the file; later events are dropped. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, what: str, at_s: float, line: Mapping[str, object]) -> None:
        if self._fd < 0:
            return
        text = json.dumps({"what": what, "at_s": at_s, "time_s": time.time(), "node": self.name, **line}) + "\n"
        try:
            os.write(self._fd, text.encode())
        except OSError as error:
            self.close()
            self._tell(f"no more events are written to {self._path} ({VARIABLE}): {error.strerror}", False)


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
