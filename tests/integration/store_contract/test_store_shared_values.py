"""The store contract: values that nodes share beside their records."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastic_agent.rendezvous.codec import member_pages
from elastic_agent.rendezvous.driver.inbound import OwnPlace, with_all_members
from elastic_agent.rendezvous.records import Member, Round, RoundPhase
from elastic_agent.rendezvous.shared_values import SharedValues
from elastic_agent.rendezvous.store import Store, StoreForeign, StoreUnreachable
from support.procfs import slowed
from support.store_stages import BOUND_S, Stage


def values(store: Store) -> SharedValues:
    assert isinstance(store, SharedValues)
    return store


def test_of_several_writers_of_one_name_one_succeeds(stage: Stage) -> None:
    """Whoever comes later finds the first one's value; a repeated call of the first is no second writer."""
    one, two = values(stage.guest()), values(stage.host)
    assert one.write_value("question/1", b"by one")
    assert not two.write_value("question/1", b"by two")
    assert one.write_value("question/1", b"by one")
    assert two.wait_values(["question/1"], 0.0) == {"question/1": b"by one"}


def test_a_value_is_written_over_only_where_the_writer_says_so(stage: Stage) -> None:
    """The newest counts."""
    one, two = values(stage.guest()), values(stage.guest())
    assert one.write_value("question/newest", b"1", over=True)
    assert two.write_value("question/newest", b"2", over=True)
    assert one.wait_values(["question/newest"], BOUND_S) == {"question/newest": b"2"}


def test_a_reader_wakes_up_when_all_values_are_there(stage: Stage) -> None:
    """Not by the first; within milliseconds of the last."""
    reader, writer = values(stage.guest()), values(stage.guest())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: (reader.wait_values(["answer/7/a", "answer/7/b"], 60.0), time.monotonic()))
        writer.write_value("answer/7/b", b"B")
        writer.write_value("answer/8/a", b"another question's")
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        written_at = time.monotonic()
        writer.write_value("answer/7/a", b"A")
        found, woken_at = waiting.result(BOUND_S)
    assert found == {"answer/7/a": b"A", "answer/7/b": b"B"}
    assert woken_at - written_at < slowed(1.0)


def test_a_wait_ends_in_time_with_those_values_that_are_there(stage: Stage) -> None:
    """A node that writes nothing is not waited for any longer."""
    store = values(stage.guest())
    store.write_value("answer/7/b", b"B")
    began = time.monotonic()
    assert store.wait_values(["answer/7/a", "answer/7/b"], 0.7) == {"answer/7/b": b"B"}
    assert 0.6 < time.monotonic() - began < BOUND_S


def test_deleted_values_are_gone_and_their_names_free(stage: Stage) -> None:
    """Of more than etcd deletes at once; those that are not there are no error."""
    one, two = values(stage.guest()), values(stage.guest())
    names = [f"answer/7/{number}" for number in range(150)]
    for name in names[::10]:
        one.write_value(name, b"x")
    two.delete_values(names)
    assert one.wait_values(names, 0.0) == {}
    assert two.write_value(names[0], b"anew")


def test_closing_the_connection_ends_a_wait_for_values(stage: Stage) -> None:
    """From another thread; what is waited for may never come."""
    reader = values(stage.guest())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.wait_values, ["question/1"], 60.0)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        reader.close()
        with pytest.raises(StoreUnreachable):
            waiting.result(BOUND_S)


def test_values_of_another_incarnation_are_not_there(stage: Stage) -> None:
    """As with nodes and announcements."""
    before, after = stage.guest(), stage.guest()
    values(before).write_value("question/1", b"of the first")
    after.use_incarnation(2)
    assert values(after).wait_values(["question/1"], 0.0) == {}


def test_many_values_are_written_and_read_at_once(stage: Stage) -> None:
    """More than one request of any store takes; a read does not wait for those that are not there."""
    many = {f"places/one/{number}": b"page %d" % number for number in range(150)}
    stage.host.write_values(many)
    stage.host.write_values({"places/one/7": b"over"})
    wanted = [*many, "places/one/150", "places/two/1"]
    assert stage.guest().read_values(wanted) == many | {"places/one/7": b"over"}
    assert stage.guest().read_values([]) == {}


def test_a_node_reads_its_place_in_a_large_round(stage: Stage) -> None:
    """One page, once for each membership; who asks for all members reads all pages."""
    members = tuple(Member(f"n{at}", f"host{at}:1", at, at, 1) for at in range(200))
    announced = Round(1, 1, 1, RoundPhase.RUNNING, "all 200 nodes are here", members=members)
    found = member_pages.paged(members)
    assert found is not None
    stage.host.write_values(found[1])
    reader, place = stage.guest(), OwnPlace("n123")
    seen = place.read(member_pages.without_members(announced, found[0]), reader)
    assert seen is not None
    assert (seen.member("n123"), seen.nodes, seen.world_size) == (members[123], 200, 200)
    assert with_all_members(reader, seen) == announced
    stage.host.delete_values(member_pages.all_pages(found[0]))
    again = place.read(member_pages.without_members(announced, found[0]), reader)
    assert again == seen


def test_a_page_that_is_gone_sends_a_node_to_the_newest_announcement(stage: Stage) -> None:
    """As a node finds it that is many memberships behind. Where the newest announcement has no page, it is named."""
    members = tuple(Member(f"n{at}", f"host{at}:1", at, at, 1) for at in range(200))
    found = member_pages.paged(members)
    assert found is not None
    announced = Round(1, 1, 1, RoundPhase.RUNNING, "all 200 nodes are here", crowd=found[0])
    place, reader = OwnPlace("n123"), stage.guest()
    assert place.read(announced, reader) is None
    with pytest.raises(StoreForeign, match=r"members of a round in the store's key value/places/.* cannot be read"):
        place.read(announced, reader)
