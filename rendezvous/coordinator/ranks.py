"""Which node gets which rank: pure arithmetic over the records of the nodes that will be in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..records import Member, NodeRecord


class RankConflict(ValueError):
    """Static ranks that exclude each other: two nodes with one --node-rank, or one outside the round."""

    def __init__(self, what: str, *claimants: NodeRecord) -> None:
        super().__init__(what)
        self.claimants = tuple(record.node for record in claimants)
        """Identities of the nodes whose claims it is about."""


def choose(waiting: Sequence[NodeRecord], last: Mapping[str, int], places: int) -> tuple[NodeRecord, ...]:
    """The nodes of `waiting` (in order of arrival) that get one of `places`: members of the last round first."""
    returning = [record for record in waiting if record.node in last]
    newcomers = [record for record in waiting if record.node not in last]
    return tuple((returning + newcomers)[:places])


def assign(chosen: Sequence[NodeRecord], last: Mapping[str, int], *, static: bool = False) -> tuple[Member, ...]:
    """Give each chosen node its place, ordered by group rank.

    `last` maps a node to its group rank in the last round. A node's --node-rank goes first, then the rank it had,
    then free ranks in order of arrival. With `static`, --node-rank decides: raises RankConflict where it cannot.
    """
    ranks = _static_ranks(chosen) if static else _ranks(chosen, last)
    ordered = sorted(chosen, key=lambda record: ranks[record.node])
    members: list[Member] = []
    offset = 0
    role_offsets: dict[str, int] = {}
    for group_rank, record in enumerate(ordered):
        role_offset = role_offsets.get(record.role, 0)
        places = (group_rank, offset, record.nproc, record.role, role_offset)
        members.append(Member(record.node, record.name, *places, record.control))
        offset += record.nproc
        role_offsets[record.role] = role_offset + record.nproc
    return tuple(members)


def _static_ranks(chosen: Sequence[NodeRecord]) -> dict[str, int]:
    holders: dict[int, NodeRecord] = {}
    for record in chosen:
        rank = record.preferred_rank if record.preferred_rank is not None else -1
        if not 0 <= rank < len(chosen):
            raise RankConflict(
                f"{record.name} has --node-rank {rank}; with {len(chosen)} nodes it must be 0 to {len(chosen) - 1}",
                record,
            )
        if rank in holders:
            raise RankConflict(
                f"{holders[rank].name} and {record.name} both have --node-rank {rank}; give each node its own",
                holders[rank],
                record,
            )
        holders[rank] = record
    return {record.node: rank for rank, record in holders.items()}


def _ranks(chosen: Sequence[NodeRecord], last: Mapping[str, int]) -> dict[str, int]:
    free = set(range(len(chosen)))
    ranks: dict[str, int] = {}

    def take(record: NodeRecord, rank: int | None) -> None:
        if record.node not in ranks and rank in free:
            free.remove(rank)
            ranks[record.node] = rank

    for record in chosen:
        take(record, record.preferred_rank)
    for record in chosen:
        take(record, last.get(record.node))
    left = iter(sorted(free))
    return ranks | {record.node: next(left) for record in chosen if record.node not in ranks}
