"""The job as its watches see it, through the agent of this node."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile

from ...agent.agent import Agent
from ...proto import progress
from ...proto.progress import Progress
from ...rendezvous.agreements import Act

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the directory that is made there is this user's alone
"""Where the workers' progress is kept if possible: what is written there waits for no disk."""


class AgentsJob:
    """`control.inside.Job`, on an agent that runs. Owns the directory in which workers show their progress."""

    def __init__(self) -> None:
        """Raises OSError where no directory can be made."""
        where = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        self.directory = tempfile.mkdtemp(prefix="elastic-agent-", dir=where)
        self._agent: Agent | None = None

    def begin(self, agent: Agent) -> None:
        """The agent that is about to run."""
        self._agent = agent

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def round(self) -> int:
        return self._agent.status().round if self._agent else 0

    @property
    def elected(self) -> bool:
        return self._agent is not None and self._agent.status().coordinating

    @property
    def nodes(self) -> int:
        return len(self._agent.status().members) if self._agent else 0

    def workers(self) -> dict[int, int]:
        return self._by_rank(self._agent.workers.alive) if self._agent else {}

    def written(self) -> dict[int, int]:
        return self._by_rank(self._agent.workers.written) if self._agent else {}

    def progress(self) -> dict[int, Progress]:
        number, found = self.round, {}
        for rank in self.workers():
            with contextlib.suppress(OSError), open(progress.file_of(self.directory, number, rank), "rb") as file:
                memory = file.read(progress.SIZE)
                if len(memory) == progress.SIZE and (shown := progress.read(memory)) is not None:
                    found[rank] = shown
        return found

    def directories(self) -> list[str]:
        logs = self._agent.status().log_dir if self._agent else ""
        found = {logs: None} if logs else {}
        for rank in self.workers():
            with (
                contextlib.suppress(OSError),
                open(progress.file_of(self.directory, self.round, rank) + ".directory") as file,
            ):
                found[file.read()] = None
        return [path for path in found if path]

    def answers(self, rank: int) -> str:
        return progress.file_of(self.directory, self.round, rank) + ".ask"

    def end_round(self, round_number: int, rank: int, because: str, said: str) -> None:
        if self._agent is not None:
            self._agent.hang(round_number, rank - self._offset(), because, said)

    def ask(self, act: Act, because: str) -> None:
        if self._agent is not None:
            self._agent.ask(act, because)

    def leave(self, reason: str) -> None:
        if self._agent is not None:
            self._agent.leave(reason)

    def _by_rank(self, by_local: dict[int, int]) -> dict[int, int]:
        offset = self._offset()
        return {offset + local: value for local, value in by_local.items()}

    def _offset(self) -> int:
        """The global rank of this node's first worker."""
        status = self._agent.status() if self._agent else None
        if status is None or status.group_rank is None:
            return 0
        return next((each.rank_offset for each in status.members if each.group_rank == status.group_rank), 0)
