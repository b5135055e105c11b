"""The store contract: the job's record, incarnations, and the end of a job."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from support.store_stages import BOUND_S, Stage, lead


def test_the_first_record_of_the_job_stands(stage: Stage) -> None:
    """write_job is create-only: later writers get what the first one wrote, on any connection."""
    assert stage.guest().write_job(b"first") == b"first"
    assert stage.host.write_job(b"second") == b"first"
    assert stage.guest().write_job(b"first") == b"first"
    assert stage.session(stage.host).write_job(b"third") == b"first"


def test_only_one_of_many_creates_the_job(stage: Stage) -> None:
    """Also in a race, and all writers get the same record."""
    rivals = [stage.guest() for _ in range(6)]
    start = threading.Barrier(6)

    def create(number: int) -> bytes:
        start.wait(BOUND_S)
        return rivals[number].write_job(b"of rival %d" % number)

    with ThreadPoolExecutor(6) as pool:
        answers = set(pool.map(create, range(6)))
    assert len(answers) == 1
    assert answers < {b"of rival %d" % number for number in range(6)}


def test_the_jobs_record_is_replaced_only_in_place_of_what_it_holds(stage: Stage) -> None:
    """Of two writers that replace the same record one succeeds, and may repeat the write."""
    stage.host.write_job(b"begun")
    assert stage.guest().write_job(b"mine", over=b"never was") == b"begun"
    assert stage.host.write_job(b"ended", over=b"begun") == b"ended"
    assert stage.guest().write_job(b"ended otherwise", over=b"begun") == b"ended"
    assert stage.host.write_job(b"ended", over=b"begun") == b"ended"
    assert stage.host.write_job(b"later") == b"ended"


def test_a_record_that_is_not_there_is_not_replaced(stage: Stage) -> None:
    """Nothing is written, and the empty answer means that there is no record."""
    assert stage.host.write_job(b"ended", over=b"begun") == b""
    assert stage.host.write_job(b"first") == b"first"


def test_an_incarnation_sees_nothing_of_another(stage: Stage) -> None:
    """Records, heartbeats and announcements of the previous job with the id are not visible; the job's record is."""
    stage.host.write_job(b"the job")
    stage.announce(1, b"an old round")
    earlier = stage.guest()
    earlier.publish_node("n1", b"an old node")
    earlier.beat("n1", 7)
    host = stage.session(stage.host)
    host.use_incarnation(2)
    assert host.wait_round(0, 0.0) is None
    assert host.wait_nodes(0, 0.0) == (0, {})
    assert host.elects or host.read_beats(["n1"]) == {}  # an electing store may not be sure yet
    assert host.beat("n2", 1) == 0
    host.announce(1, b"a new round", lead(host))
    assert host.write_job(b"another") == b"the job"
    assert earlier.wait_round(0, BOUND_S) == (1, b"an old round")


def test_nodes_of_one_incarnation_see_each_other(stage: Stage) -> None:
    """Whichever node uses it first; and a session has the incarnation of its connection."""
    host, guest = stage.session(stage.host), stage.guest()
    guest.use_incarnation(2)
    guest.publish_node("n1", b"one")
    host.use_incarnation(2)
    assert stage.session(host).wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}
    host.announce(1, b"round 1", lead(host))
    assert stage.session(guest).wait_round(0, BOUND_S) == (1, b"round 1")


def test_using_an_incarnation_loses_nothing_of_it(stage: Stage) -> None:
    """Many nodes switch to it at once; a late one does not reset the counters that others have incremented."""
    guests = [stage.guest() for _ in range(8)]
    start = threading.Barrier(8)

    def switch(number: int) -> None:
        start.wait(BOUND_S)
        guests[number].use_incarnation(2)
        guests[number].publish_node(f"n{number}", b"here")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(switch, range(8)))
    host = stage.session(stage.host)
    host.use_incarnation(2)
    assert host.wait_nodes(0, BOUND_S)[1] == {f"n{number}": b"here" for number in range(8)}


def test_announce_end_writes_the_jobs_record(stage: Stage) -> None:
    """A node that receives the last announcement finds the outcome in the job's record; the call may be repeated."""
    stage.host.write_job(b"begun")
    for _ in range(2):
        assert stage.host.announce_end(1, b"over", stage.epoch, b"ended", over=b"begun")
    assert stage.guest().wait_round(0, BOUND_S) == (1, b"over")
    assert stage.guest().write_job(b"?") == b"ended"


def test_announce_end_announces_even_if_another_program_changed_the_jobs_record(stage: Stage) -> None:
    """The nodes of this incarnation must end in any case; a record that is not the expected one is left alone."""
    stage.host.write_job(b"another job")
    assert not stage.host.announce_end(1, b"over", stage.epoch, b"ended", over=b"begun")
    assert stage.guest().wait_round(0, BOUND_S) == (1, b"over")
    assert stage.guest().write_job(b"?") == b"another job"
