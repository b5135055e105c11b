"""A file of what an agent went through, one JSON object a line, for those who ask for it with ELASTIC_AGENT_EVENTS.

docs/configuration.md lists the keys. Each line is one write, so that a line is there whole or not at all, whatever
becomes of the agent. Several agents may share a file.
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


class Journal:
    """An open journal. All but the making belongs to the agent's thread; `name` is what other nodes call the agent."""

    def __init__(self, path: str, tell: Callable[[str, bool], None]) -> None:
        """Raises UsageError if the file cannot be opened for appending; `tell` hears of a write that failed."""
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(
                f"{VARIABLE} is {path!r}, which cannot be written: {error.strerror}; name a file in a directory that "
                "exists, or unset it"
            ) from error
        self._path = path
        self._tell = tell
        self.name = ""

    def event(self, seen: AgentEvent) -> None:
        """Something happened to this node's agent."""
        line: dict[str, object] = {
            "phase": seen.phase.value,
            "round": seen.round,
            "because": seen.because,
            "happened": seen.happened,
            "members": _places(seen.members),
            "restarts_used": seen.restarts_used,
        }
        if seen.failure is not None:
            line["failure"] = str(seen.failure)
        self._write("event", seen.at_s, line)

    def announced(self, word: Round) -> None:
        """This agent, as the coordinator, told everybody where the job stands."""
        line = {
            "version": word.version,
            "epoch": word.epoch,
            "number": word.number,
            "phase": word.phase.value,
            "because": word.because,
            "members": _places(word.placed),
            "master": f"{word.master_addr}:{word.master_port}" if word.master_addr else None,
            "restarts": word.restarts,
            "finishing": word.finishing,
            "ended": _ending(word.ended),
            "outcome": word.outcome.value if word.outcome else None,
        }
        self._write("announced", time.monotonic(), line)

    def concluded(self, report: Report) -> None:
        """The agent ended."""
        verdict = report.verdict
        line = {
            "exit_code": verdict.exit_code,
            "because": verdict.because,
            "outcome": verdict.outcome.value if verdict.outcome else None,
        }
        self._write("concluded", time.monotonic(), line)

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, what: str, at_s: float, line: Mapping[str, object]) -> None:
        if self._file < 0:
            return
        text = json.dumps({"what": what, "at_s": at_s, "node": self.name, **line}) + "\n"
        try:
            os.write(self._file, text.encode())
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
