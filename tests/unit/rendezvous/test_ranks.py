"""Who gets which rank, for any set of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.rendezvous.coordinator import ranks
from elastic_agent.rendezvous.records import NodeRecord, NodeState


def node(name: str, nproc: int = 1, preferred_rank: int | None = None, role: str = "default") -> NodeRecord:
    return NodeRecord(name, name, NodeState.WAITING, 1, nproc=nproc, preferred_rank=preferred_rank, role=role)


WISHES = st.one_of(st.none(), st.integers(-3, 9))
NODES = st.lists(
    st.tuples(st.integers(1, 8), WISHES, st.sampled_from(["trainer", "reader"])), min_size=1, max_size=8
).map(lambda drawn: [node(f"n{index}", nproc, rank, role) for index, (nproc, rank, role) in enumerate(drawn)])
LAST = st.dictionaries(st.sampled_from([f"n{index}" for index in range(10)]), st.integers(0, 9))


@given(NODES, LAST)
def test_ranks_are_dense_and_unique(chosen: list[NodeRecord], last: dict[str, int]) -> None:
    """Workers get 0 to W-1, each once, whatever ranks the nodes prefer and however many workers each has."""
    members = ranks.assign(chosen, last)
    assert [member.group_rank for member in members] == list(range(len(chosen)))
    world = [member.rank_offset + local for member in members for local in range(member.nproc)]
    assert world == list(range(sum(record.nproc for record in chosen)))


@given(NODES, LAST)
def test_role_ranks_are_dense_within_each_role(chosen: list[NodeRecord], last: dict[str, int]) -> None:
    """ROLE_RANK counts within the role, ROLE_WORLD_SIZE is its sum."""
    members = ranks.assign(chosen, last)
    for role in {record.role for record in chosen}:
        mine = [member for member in members if member.role == role]
        counted = [member.role_offset + local for member in mine for local in range(member.nproc)]
        assert counted == list(range(len(counted)))


@given(NODES, LAST)
def test_everybody_chosen_has_one_place(chosen: list[NodeRecord], last: dict[str, int]) -> None:
    """Nobody is forgotten, nobody is there twice."""
    assert sorted(member.node for member in ranks.assign(chosen, last)) == sorted(record.node for record in chosen)


@given(st.integers(1, 8))
def test_a_whole_round_that_returns_keeps_its_ranks(size: int) -> None:
    """In whatever order they come back after a restart."""
    last = {f"n{index}": (index * 5 + 3) % 11 for index in range(size)}
    order = sorted(last, key=last.__getitem__)
    dense = {name: rank for rank, name in enumerate(order)}
    members = ranks.assign([node(name) for name in last], dense)
    assert {member.node: member.group_rank for member in members} == dense


def test_a_survivor_keeps_its_rank_and_newcomers_fill_the_gap() -> None:
    """Node b replaces the dead a; c stays where it was."""
    members = ranks.assign([node("c"), node("b")], {"a": 0, "c": 1})
    assert [member.node for member in members] == ["b", "c"]


def test_a_wish_is_honoured_before_an_old_rank() -> None:
    """--node-rank is a preference on every backend, and the first node to ask gets the rank."""
    members = ranks.assign([node("a"), node("b", preferred_rank=0), node("c", preferred_rank=0)], {"a": 0})
    assert members[0].node == "b"


def test_equal_input_gives_equal_ranks() -> None:
    """Nothing here depends on the order of a set or on chance."""
    chosen = [node(f"n{index}", preferred_rank=index % 3) for index in range(6)]
    assert len({ranks.assign(chosen, {"n1": 4}) for _ in range(20)}) == 1


def test_members_of_the_last_round_are_chosen_before_newcomers() -> None:
    """A spare does not push a member out, however early it came."""
    chosen = ranks.choose([node("spare"), node("a"), node("b")], {"a": 0, "b": 1}, 2)
    assert [record.node for record in chosen] == ["a", "b"]


@given(st.permutations(range(5)))
def test_static_ranks_are_law(order: list[int]) -> None:
    """With a static rendezvous --node-rank alone decides."""
    members = ranks.assign([node(f"n{rank}", preferred_rank=rank) for rank in order], {}, static=True)
    assert [member.node for member in members] == [f"n{rank}" for rank in range(5)]


@pytest.mark.parametrize(
    ("preferred", "said"),
    [((0, 0), "a and b both have --node-rank 0"), ((0, 2), "b has --node-rank 2"), ((0, None), "b has --node-rank")],
)
def test_static_ranks_that_cannot_be_are_named(preferred: tuple[int | None, ...], said: str) -> None:
    """The error names the nodes and the rank."""
    chosen = [node(name, preferred_rank=rank) for name, rank in zip("ab", preferred, strict=True)]
    with pytest.raises(ranks.RankConflict, match=said):
        ranks.assign(chosen, {}, static=True)
