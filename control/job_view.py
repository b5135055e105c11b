"""What watches read of the job around them, where they run in one of its agents, and what they may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..proto.frozen import dataclass
from ..proto.progress import Progress
from ..rendezvous.agreements import Act


@dataclass(frozen=True)
class Answers:
    """What the nodes of the round have answered."""

    found: Mapping[str, Mapping[str, Any]]
    """By the name of the node; what is in them is not checked yet."""
    silent: tuple[str, ...] = ()
    """Nodes that have not answered in time."""
    trouble: str = ""
    """Why none but this node was asked, if so."""


class JobView(Protocol):
    """This node's part of the job. Every method may be called from any thread, and returns at once but for `ask_nodes`
    and `conclude`."""

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

    def ranks_of(self, node: str) -> range:
        """The ranks of a node of the round, by its name."""
        ...

    def ask_nodes(self, kind: str, body: Mapping[str, Any], wait_s: float) -> Answers:
        """Ask all nodes of the round, this one too, and wait so long for answers. Where others cannot be asked, only
        this one has answered."""
        ...

    def conclude(
        self,
        kind: str,
        body: Mapping[str, Any],
        wait_s: float,
        conclude_from: Callable[[Answers], Mapping[str, Any]],
        again_s: float,
    ) -> tuple[Mapping[str, Any], str]:
        """What `conclude_from` makes of such answers, and an empty name; or the conclusion of another node that has
        asked the same in the last `again_s` of this round, and its name. At most three times as long."""
        ...

    def publish(self, kind: str, body: Mapping[str, Any]) -> bool:
        """Let the agents of the round know this, once in a round. Whether that was possible."""
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
