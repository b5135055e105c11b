"""What a scheduler may do for a job: how many nodes would help, which node is suspect, which may be taken. Pure."""

from __future__ import annotations

from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class NodeCapacity(Protocol):
        """As `control/service/messages.py` has it."""

        @property
        def name(self) -> str: ...
        @property
        def state(self) -> str: ...
        @property
        def group_rank(self) -> int | None: ...
        @property
        def heard_age_s(self) -> float | None: ...
        @property
        def own(self) -> bool: ...


SILENT_PART_OF_LEASE = 0.5
"""The part of the lease after which a node without a sign is suspect, and shown as silent."""
GONE = ("lost", "ended", "leaving")
CALM = ("working", "finished", "unknown", "waiting", "joining", "ended")
"""States in which a node needs nobody's attention."""


def needed(nodes: Sequence[NodeCapacity], minimum: int, *, over: bool) -> int:
    """Nodes without which no round begins."""
    return 0 if over else max(0, minimum - len(_there(nodes)))


def helpful(nodes: Sequence[NodeCapacity], maximum: int, *, over: bool) -> int:
    """Nodes that would get a place, those that are needed among them; none while the job ends."""
    return 0 if over else max(0, maximum - len(_there(nodes)))


def suspects(nodes: Sequence[NodeCapacity], lease_s: float, charged: str) -> tuple[str, ...]:
    """Names of nodes that should be looked at, or replaced: silent or lost, and the one that the
    last failure was charged to."""
    return tuple(
        node.name
        for node in nodes
        if node.state == "lost" or (node.state not in GONE and (node.name == charged or _is_silent(node, lease_s)))
    )


def needs_attention(node: NodeCapacity, lease_s: float) -> bool:
    """Whether a screen of many nodes shows this one. `lease_s`: 0 where nodes have none."""
    return node.state not in CALM or (node.state != "ended" and _is_silent(node, lease_s))


def _is_silent(node: NodeCapacity, lease_s: float) -> bool:
    return bool(lease_s) and not node.own and (node.heard_age_s or 0.0) > SILENT_PART_OF_LEASE * lease_s


def spare(nodes: Sequence[NodeCapacity], minimum: int, keeps: str, *, over: bool, busy: bool) -> tuple[str, ...]:
    """Names of nodes that may be drained, one after the other in this order: first those without a place, then the
    members of the highest group rank, down to `minimum`. `keeps`: the node without which the job ends, as it hosts the
    store. None while the job ends, or all ranks are about to do something together."""
    if over or busy:
        return ()
    there = _there(nodes)
    waiting = [node for node in there if node.group_rank is None]
    members = sorted((node for node in there if node.group_rank is not None), key=_rank, reverse=True)
    taken = [node for node in (*waiting, *members) if node.name != keeps]
    return tuple(node.name for node in taken[: max(0, len(there) - minimum)])


def _rank(node: NodeCapacity) -> int:
    return node.group_rank or 0


def _there(nodes: Sequence[NodeCapacity]) -> list[NodeCapacity]:
    return [node for node in nodes if node.state not in GONE]
