"""The job as its watches see it, through the agent of this node."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...agent.agent import Agent
from ...agent.output.log_dirs import make_random_dir
from ...proto import progress
from ...proto.progress import Progress
from ...rendezvous.agreements import Act
from ...rendezvous.records import Member
from ...rendezvous.shared_values import SharedValues
from ..decisions.questions import Question
from ..job_view import Answers
from ..table.watch import Table
from .exchange import Exchange, NodesUnreachable
from .replies import reply

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the directory that is made there is this user's alone
"""Where the workers' progress is kept if possible: what is written there waits for no disk."""

_LOOKS = 3
"""A worker that writes while it is read is read again; a write takes a microsecond or two."""


class AgentsJob:
    """`control.job_view.JobView`, on an agent that runs. Owns the directory in which workers show their progress."""

    def __init__(self) -> None:
        """Raises OSError where no directory can be made."""
        if os.access(SHARED_MEMORY, os.W_OK):
            self.directory = make_random_dir(SHARED_MEMORY, "elastic-agent-")
        else:
            import tempfile  # which takes longer than all of this module

            self.directory = tempfile.mkdtemp(prefix="elastic-agent-")
        self._agent: Agent | None = None
        self._table = Table("", "", ())
        self._exchange: Exchange | None = None

    def begin(self, agent: Agent, table: Table, warn: Callable[[str], None]) -> None:
        """The agent that is about to run, and what it watches. Where nodes are to compare that, it asks others, and
        answers them; `warn` gets a line where it does not. Raises RuntimeError where the host refuses a thread."""
        self._agent, self._table = agent, table
        if any(each.asks_nodes for each in table.watches):

            def values() -> SharedValues | None:
                return agent.link.values()  # an agent may get another link

            self._exchange = Exchange(values, self._identity, agent.name, self._reply, warn)
            self._exchange.begin()

    def set_table(self, table: Table) -> None:
        """What is watched from now on: by it, questions of other nodes are answered."""
        self._table = table

    def close(self) -> None:
        """End the thread, and remove the directory."""
        if self._exchange is not None:
            self._exchange.close()
        import shutil  # as above

        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def round(self) -> int:
        return self._agent.status().round if self._agent else 0

    @property
    def elected(self) -> bool:
        return self._agent is not None and self._agent.status().coordinating

    @property
    def nodes(self) -> int:
        seen = self._agent.known().node.latest_round if self._agent else None
        return seen.nodes if seen is not None and seen.begun else 0

    def workers(self) -> dict[int, int]:
        return self._by_rank(self._agent.workers.alive) if self._agent else {}

    def written(self) -> dict[int, int]:
        return self._by_rank(self._agent.workers.written) if self._agent else {}

    def progress(self) -> dict[int, Progress]:
        number, found = self.round, {}
        for rank in self.workers():
            with contextlib.suppress(OSError), open(progress.file_of(self.directory, number, rank), "rb") as file:
                if (shown := _shown(file.fileno())) is not None:
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

    def ranks_of(self, node: str) -> range:
        members = self._agent.members() if self._agent else ()
        names = _names(members)
        found = next((each for each in members if names[each.node] == node), None)
        return range(found.rank_offset, found.rank_offset + found.nproc) if found else range(0)

    def ask_nodes(self, kind: str, body: Mapping[str, Any], wait_s: float) -> Answers:
        number, nodes = self.round, self._nodes()
        trouble = ""
        if self._exchange is not None and len(nodes) > 1:
            try:
                return _answers(self._exchange.ask(kind, number, body, nodes, wait_s), nodes)
            except NodesUnreachable as error:
                trouble = str(error)
        return self._own_answer(kind, body, nodes, trouble)

    def conclude(
        self,
        kind: str,
        body: Mapping[str, Any],
        wait_s: float,
        conclude_from: Callable[[Answers], Mapping[str, Any]],
        again_s: float,
    ) -> tuple[Mapping[str, Any], str]:
        number, nodes = self.round, self._nodes()
        trouble = ""
        if self._exchange is not None and len(nodes) > 1:
            try:
                return self._exchange.conclude(
                    kind, number, body, nodes, wait_s, lambda found: conclude_from(_answers(found, nodes)), again_s
                )
            except NodesUnreachable as error:
                trouble = str(error)
        return conclude_from(self._own_answer(kind, body, nodes, trouble)), ""

    def publish(self, kind: str, body: Mapping[str, Any]) -> bool:
        if self._exchange is None:
            return False
        try:
            self._exchange.publish_once(kind, self.round, body)
        except NodesUnreachable:
            return False
        return True

    def end_round(self, round_number: int, rank: int, because: str, said: str) -> None:
        if self._agent is not None:
            self._agent.hang(round_number, rank - self._offset(), because, said)

    def ask(self, act: Act, because: str) -> None:
        if self._agent is not None:
            self._agent.ask(act, because)

    def leave(self, reason: str) -> None:
        if self._agent is not None:
            self._agent.leave(reason)

    def _nodes(self) -> dict[str, str]:
        """Names of the nodes of the round, by their identities."""
        return _names(self._agent.members()) if self._agent else {}

    def _identity(self) -> str:
        """This node's, as the other nodes of the round know it; its name while it has no place."""
        status = self._agent.status() if self._agent else None
        if status is None:
            return ""
        return next((each.node for each in status.members if each.group_rank == status.group_rank), status.name)

    def _own_answer(self, kind: str, body: Mapping[str, Any], nodes: Mapping[str, str], trouble: str) -> Answers:
        own = self._identity()
        answer = self._reply(Question(kind, self.round, own, nodes.get(own, own), body))
        found = {} if answer is None else {nodes.get(own, own): answer}
        return Answers(found, tuple(name for node, name in nodes.items() if node != own), trouble)

    def _reply(self, question: Question) -> Mapping[str, Any] | None:
        return reply(self, self._table, question) if question.round == self.round else None

    def _by_rank(self, by_local: dict[int, int]) -> dict[int, int]:
        offset = self._offset()
        return {offset + local: value for local, value in by_local.items()}

    def _offset(self) -> int:
        """The global rank of this node's first worker."""
        status = self._agent.status() if self._agent else None
        if status is None or status.group_rank is None:
            return 0
        return next((each.rank_offset for each in status.members if each.group_rank == status.group_rank), 0)


def _names(members: Iterable[Member]) -> dict[str, str]:
    """Names for people by identity; two nodes of one name get their ranks behind it."""
    each = tuple(members)
    names = Counter(member.name for member in each)
    return {
        member.node: member.name if names[member.name] == 1 else f"{member.name} (node {member.group_rank})"
        for member in each
    }


def _answers(found: Mapping[str, Mapping[str, Any]], nodes: Mapping[str, str]) -> Answers:
    return Answers(found, tuple(name for name in nodes.values() if name not in found))


def _shown(descriptor: int) -> Progress | None:
    """What a worker shows in this file; None where it has shown nothing yet."""
    for _ in range(_LOOKS):
        memory = os.pread(descriptor, progress.SIZE, 0)
        afterwards = os.pread(descriptor, progress.HEADER.size, 0)
        if len(memory) == progress.SIZE and (shown := progress.read(memory, afterwards)) is not None:
            return shown
    return None
