"""What watches know of the job around them, where they run in one of its agents, and what they may ask of it."""

from __future__ import annotations

from typing import Protocol

from ..proto.progress import Progress
from ..rendezvous.agreements import Act


class Job(Protocol):
    """This node's part of the job. Every method may be called from any thread, and returns at once."""

    @property
    def round(self) -> int:
        """The number of the round that this node's workers belong to; another one has other processes."""
        ...

    @property
    def elected(self) -> bool:
        """Whether this is the one node that watches what concerns the whole job."""
        ...

    @property
    def nodes(self) -> int:
        """Nodes of the round."""
        ...

    def workers(self) -> dict[int, int]:
        """Process ids by global rank, of this node's workers that run."""
        ...

    def written(self) -> dict[int, int]:
        """Bytes of output by global rank."""
        ...

    def progress(self) -> dict[int, Progress]:
        """By global rank, of the workers whose script uses the worker library."""
        ...

    def directories(self) -> list[str]:
        """Where the job writes, as far as is known: its logs, and the checkpoints of the worker library."""
        ...

    def answers(self, rank: int) -> str:
        """Path of the socket at which a worker's library answers questions; it may not be there."""
        ...

    def end_round(self, round_number: int, rank: int, because: str, said: str) -> None:
        """End this round as by a failure of that worker, which is charged like one."""
        ...

    def ask(self, act: Act, because: str) -> None:
        """Have all ranks of the job do this at their next step boundary. Scripts that use the worker library do."""
        ...

    def leave(self, reason: str) -> None:
        """Have this node leave the job in order."""
        ...
