"""The members of a large round on pages: small, whatever the number of nodes, and found by a node's id alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_agent.rendezvous.codec import limits, member_pages
from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.codec.fields import ForeignBytes
from elastic_agent.rendezvous.records import Member, Round, RoundPhase

A_ROUND = Round(version=7, epoch=1, number=3, phase=RoundPhase.RUNNING, because="all 301 nodes are here")


def crowd_of(count: int, role: str) -> tuple[Member, ...]:
    """With the longest names of hosts, and the largest worlds."""
    name = "h" * 64 + ":4194304"
    return tuple(Member(f"{at:016x}", name, at, at * 4096, 4096, role, at * 4096) for at in range(count))


@pytest.mark.parametrize("role", ["default", "ü" * 200])
def test_an_announcement_and_a_page_of_ten_thousand_nodes_are_small(role: str) -> None:
    members = crowd_of(10_000, role)
    found = member_pages.paged(members)
    assert found is not None
    crowd, pages = found
    header = codec.encode_round(member_pages.without_members(replace(A_ROUND, members=members), crowd))
    assert len(header) <= len(codec.encode_round(A_ROUND)) + 64
    longest = max(map(len, pages.values()))
    assert longest <= 3 * limits.PAGE_MEMBERS * (150 + len(role.encode()))


def test_a_node_finds_its_own_place_on_its_page() -> None:
    """By its id alone; the page also has how many workers of the whole round have its role."""
    members = (*crowd_of(300, "trainer"), Member("judge", "judge", 300, 300 * 4096, 2, "judge"))
    found = member_pages.paged(members)
    assert found is not None
    crowd, pages = found
    announced = codec.decode_round(
        codec.encode_round(member_pages.without_members(replace(A_ROUND, members=members), crowd))
    )
    assert announced.crowd == crowd
    for member in members:
        page = member_pages.decode_page(pages[member_pages.own_page(crowd, member.node)])
        seen = member_pages.with_page(announced, crowd, page)
        assert seen.member(member.node) == member
        assert (seen.nodes, seen.world_size) == (301, 300 * 4096 + 2)
        assert seen.role_world_size(member.role) == (2 if member.role == "judge" else 300 * 4096)


def test_all_pages_together_are_the_whole_membership() -> None:
    """In the order of group ranks, as the coordinator announced it."""
    members = crowd_of(300, "trainer")
    found = member_pages.paged(members)
    assert found is not None
    crowd, pages = found
    every = [member_pages.decode_page(pages[name]) for name in member_pages.all_pages(crowd)]
    announced = member_pages.without_members(replace(A_ROUND, members=members), crowd)
    assert member_pages.whole(announced, every) == replace(A_ROUND, members=members)


def test_a_small_round_lists_its_members_in_the_announcement() -> None:
    """Up to 64, so that every agent of a small job has them all."""
    assert member_pages.paged(crowd_of(64, "trainer")) is None
    assert member_pages.paged(crowd_of(65, "trainer")) is not None


def test_the_same_members_have_the_same_pages() -> None:
    """So a node that holds its page need not read it again, and late bytes of a page change nothing."""
    assert member_pages.paged(crowd_of(100, "trainer")) == member_pages.paged(crowd_of(100, "trainer"))
    assert member_pages.paged(crowd_of(100, "trainer")) != member_pages.paged(crowd_of(101, "trainer"))


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"\xff" * 100])
def test_what_is_no_page_is_refused(garbage: bytes) -> None:
    with pytest.raises(ForeignBytes):
        member_pages.decode_page(garbage)
