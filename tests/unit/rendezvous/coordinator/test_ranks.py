"""Which node gets which rank, for any set of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.rendezvous.coordinator import ranks
from elastic_agent.rendezvous.records import NodeRecord
from support.builders import record

PREFERRED = st.one_of(st.none(), st.integers(-3, 9))
NODES = st.lists(
    st.tuples(st.integers(1, 8), PREFERRED, st.sampled_from(["trainer", "reader"])), min_size=1, max_size=8
).map(
    lambda drawn: [
        record(f"n{index}", nproc=nproc, preferred_rank=rank, role=role)
        for index, (nproc, rank, role) in enumerate(drawn)
    ]
)
LAST = st.dictionaries(st.sampled_from([f"n{index}" for index in range(10)]), st.integers(0, 9))


@given(NODES, LAST)
def test_ranks_are_dense_and_unique(chosen: list[NodeRecord], last: dict[str, int]) -> None:
    """Workers get 0 to W-1, each once, whatever ranks the nodes prefer and however many workers each has."""
    members = ranks.assign(chosen, last)
    assert [member.group_rank for member in members] == list(range(len(chosen)))
    world = [member.rank_offset + local for member in members for local in range(member.nproc)]
    assert world == list(range(sum(node.nproc for node in chosen)))


@given(NODES, LAST)
def test_role_ranks_are_dense_within_each_role(chosen: list[NodeRecord], last: dict[str, int]) -> None:
    """Workers of a role get 0 to n-1, each once."""
    members = ranks.assign(chosen, last)
    for role in {node.role for node in chosen}:
        mine = [member for member in members if member.role == role]
        counted = [member.role_offset + local for member in mine for local in range(member.nproc)]
        assert counted == list(range(len(counted)))


@given(NODES, LAST)
def test_every_chosen_node_has_one_place(chosen: list[NodeRecord], last: dict[str, int]) -> None:
    """Each chosen node is a member, once."""
    assert sorted(member.node for member in ranks.assign(chosen, last)) == sorted(node.node for node in chosen)


@given(st.integers(1, 8))
def test_a_whole_round_that_returns_keeps_its_ranks(size: int) -> None:
    """In whatever order its nodes come back."""
    last = {f"n{index}": (index * 5 + 3) % 11 for index in range(size)}
    order = sorted(last, key=last.__getitem__)
    dense = {name: rank for rank, name in enumerate(order)}
    members = ranks.assign([record(name) for name in last], dense)
    assert {member.node: member.group_rank for member in members} == dense


def test_a_survivor_keeps_its_rank_and_newcomers_fill_the_gap() -> None:
    """Node b takes the rank of a, which was lost; c keeps its own."""
    members = ranks.assign([record("c"), record("b")], {"a": 0, "c": 1})
    assert [member.node for member in members] == ["b", "c"]


def test_a_preferred_rank_goes_before_an_old_rank() -> None:
    """--node-rank is a preference; of two nodes with the same one the earlier gets it."""
    members = ranks.assign([record("a"), record("b", preferred_rank=0), record("c", preferred_rank=0)], {"a": 0})
    assert members[0].node == "b"


def test_equal_input_gives_equal_ranks() -> None:
    """Ranks depend neither on the order of a set nor on chance."""
    chosen = [record(f"n{index}", preferred_rank=index % 3) for index in range(6)]
    assert len({ranks.assign(chosen, {"n1": 4}) for _ in range(20)}) == 1


def test_members_of_the_last_round_are_chosen_before_newcomers() -> None:
    """A spare does not replace a member, however early it joined."""
    chosen = ranks.choose([record("spare"), record("a"), record("b")], {"a": 0, "b": 1}, 2)
    assert [node.node for node in chosen] == ["a", "b"]


@given(st.permutations(range(5)))
def test_static_ranks_are_followed(order: list[int]) -> None:
    """In a static rendezvous --node-rank alone decides."""
    members = ranks.assign([record(f"n{rank}", preferred_rank=rank) for rank in order], {}, static=True)
    assert [member.node for member in members] == [f"n{rank}" for rank in range(5)]


@pytest.mark.parametrize(
    ("preferred", "message"),
    [((0, 0), "a and b both have --node-rank 0"), ((0, 2), "b has --node-rank 2"), ((0, None), "b has --node-rank")],
)
def test_impossible_static_ranks_raise(preferred: tuple[int | None, ...], message: str) -> None:
    """The error names the nodes and the rank."""
    chosen = [record(name, preferred_rank=rank) for name, rank in zip("ab", preferred, strict=True)]
    with pytest.raises(ranks.RankConflict, match=message):
        ranks.assign(chosen, {}, static=True)
