"""The store contract: elections, terms and leases, on the stores that elect the coordinator."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastic_agent.rendezvous.store import Store, StoreFenced
from support.store_stages import BOUND_S, LEASE_S, Stage, lead


def wait_alive(store: Store, nodes: list[str], alive: set[str]) -> None:
    """Block until exactly these of the nodes count as alive: a store may take a while to be sure of a lease's end."""
    deadline = time.monotonic() + BOUND_S
    while store.read_beats(nodes).keys() != alive:
        assert time.monotonic() < deadline
        store.wait_nodes(10**6, LEASE_S / 5)


# -- elections --------------------------------------------------------------------------------------------------------


def test_no_connection_to_a_store_that_elects_is_hosted(electing: Stage) -> None:
    """No node serves the store."""
    guest = electing.guest()
    assert (guest.elects, guest.hosted) == (True, False)
    assert electing.session(guest).elects


def test_one_of_many_candidates_leads(electing: Stage) -> None:
    """All campaign at once; one gets its epoch, the others wait."""
    rivals = [electing.guest() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        epochs = list(pool.map(lambda number: rivals[number].lead(f"n{number}", 0.3), range(6)))
    assert len([epoch for epoch in epochs if epoch is not None]) == 1


def test_leading_again_during_a_term_returns_the_same_epoch(electing: Stage) -> None:
    """A node whose call was not answered repeats it, perhaps on another connection."""
    epoch = lead(electing.host)
    assert epoch > 0
    assert electing.session(electing.host).lead("host", 0.0) == epoch


def test_a_later_term_has_a_greater_epoch(electing: Stage) -> None:
    """Whichever node leads."""
    guest = electing.guest()
    epochs = []
    for store, node in ((electing.host, "host"), (guest, "guest"), (guest, "guest"), (electing.host, "host")):
        epochs.append(lead(store, node))
        store.resign(epochs[-1])
    assert epochs == sorted(set(epochs))


def test_a_candidate_wakes_up_when_the_leader_resigns(electing: Stage) -> None:
    """It does not wait for the lease to run out."""
    epoch, candidate = lead(electing.host), electing.guest()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(candidate.lead, "n1", 60.0)
        electing.host.resign(epoch)
        assert (waiting.result(BOUND_S) or 0) > epoch


def test_wait_deposed_returns_when_the_term_is_over(electing: Stage) -> None:
    """It blocks until then; for a term that ended earlier it returns at once."""
    epoch, waiter = lead(electing.host), electing.session(electing.host)
    assert not waiter.wait_deposed(epoch, 0.1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_deposed, epoch, 60.0)
        electing.host.resign(epoch)
        assert waiting.result(BOUND_S)
    assert lead(electing.guest(), "guest") > epoch
    assert waiter.wait_deposed(epoch, 60.0)


def test_resigning_ends_no_other_term(electing: Stage) -> None:
    """A node that resigns late, or twice, does not depose its successor."""
    first = lead(electing.host)
    electing.host.resign(first)
    second = lead(electing.guest(), "guest")
    electing.host.resign(first)
    assert not electing.host.wait_deposed(second, 0.0)


def test_a_deposed_coordinator_is_fenced(electing: Stage) -> None:
    """What it announces after its term is refused and never read, even before its successor has announced anything."""
    electing.announce(1, b"round 1")
    electing.host.resign(electing.epoch)
    with pytest.raises(StoreFenced, match=f"epoch {electing.epoch}"):
        electing.announce(2, b"of no term")
    guest = electing.guest()
    epoch = lead(guest, "guest")
    with pytest.raises(StoreFenced, match=f"epoch {electing.epoch}"):
        electing.announce(2, b"of the deposed")
    guest.announce(2, b"of the successor", epoch)
    assert guest.wait_round(0, BOUND_S) == (2, b"of the successor")


def test_an_announcement_may_be_repeated_after_the_term(electing: Stage) -> None:
    """The answer was lost, then the leadership; the announcement is stored, so repeating it is no error."""
    electing.announce(1, b"round 1")
    electing.host.resign(electing.epoch)
    electing.announce(1, b"round 1")


def test_a_deposed_coordinator_does_not_end_the_job(electing: Stage) -> None:
    """The job's record is fenced together with the last announcement."""
    electing.host.write_job(b"begun")
    electing.host.resign(electing.epoch)
    with pytest.raises(StoreFenced):
        electing.host.announce_end(1, b"over", electing.epoch, b"ended", over=b"begun")
    assert electing.guest().write_job(b"?") == b"begun"
    assert electing.guest().wait_round(0, 0.0) is None


def test_a_new_coordinator_finds_all_records_and_the_newest_announcement(electing: Stage) -> None:
    """From these it rebuilds the state of its predecessor."""
    for number in range(3):
        electing.guest().publish_node(f"n{number}", b"%d" % number)
    for version in (1, 2):
        electing.announce(version, b"round %d" % version)
    electing.host.resign(electing.epoch)
    successor = electing.guest()
    lead(successor, "n1")
    assert successor.wait_round(0, 0.0) == (2, b"round 2")
    assert successor.wait_nodes(0, 0.0)[1] == {f"n{number}": b"%d" % number for number in range(3)}


def test_each_incarnation_elects_its_own_coordinator(electing: Stage) -> None:
    """A coordinator that still runs in an old incarnation does not affect the new one."""
    old = lead(electing.host)
    guest = electing.guest()
    guest.use_incarnation(2)
    assert lead(guest, "guest") > old
    assert not electing.host.wait_deposed(old, 0.0)


def test_after_clearing_only_the_jobs_record_is_left(electing: Stage) -> None:
    """And a call with the epoch of another term clears nothing."""
    electing.host.write_job(b"ended")
    electing.announce(1, b"over")
    electing.guest().publish_node("n1", b"ended")
    electing.guest().clear(electing.epoch + 1)
    assert electing.guest().wait_round(0, 0.0) == (1, b"over")
    electing.host.clear(electing.epoch)
    assert electing.guest().wait_round(0, 0.0) is None
    assert electing.guest().wait_nodes(0, 0.0)[1] == {}
    assert electing.guest().write_job(b"?") == b"ended"


# -- leases -----------------------------------------------------------------------------------------------------------


def test_a_node_has_a_lease_from_its_first_record_on(electing: Stage) -> None:
    """No coordinator reads the record of a node that would count as lost."""
    electing.guest().publish_node("n1", b"one")
    lead(electing.guest(), "n2")
    assert electing.host.read_beats(["n1", "n2"]).keys() == {"n1", "n2"}


def test_a_lease_that_is_not_renewed_ends(leasing: Stage) -> None:
    """A node that sends heartbeats keeps its own lease."""
    living = leasing.guest()
    leasing.guest().publish_node("n1", b"one")
    deadline = time.monotonic() + BOUND_S
    while "n1" in leasing.host.read_beats(["n1", "n2"]):
        living.beat("n2", 1)
        assert time.monotonic() < deadline
        leasing.host.wait_nodes(10**6, LEASE_S / 5)
    living.beat("n2", 1)
    assert leasing.host.read_beats(["n1", "n2"]).keys() == {"n2"}


def test_the_end_of_a_lease_wakes_the_coordinator(leasing: Stage) -> None:
    """It need not poll, and the node's record is still there."""
    leasing.guest().publish_node("n1", b"one")
    cursor, _ = leasing.host.wait_nodes(0, BOUND_S)
    began = time.monotonic()
    assert leasing.host.wait_nodes(cursor, 60.0)[1] == {"n1": b"one"}
    assert time.monotonic() - began < BOUND_S
    wait_alive(leasing.host, ["n1"], set())


def test_a_node_that_beats_again_has_a_lease_again(leasing: Stage) -> None:
    """A frozen node that runs again has a lease again, and wait_nodes returns for it."""
    guest = leasing.guest()
    guest.publish_node("n1", b"one")
    cursor, _ = leasing.host.wait_nodes(0, BOUND_S)
    cursor, _ = leasing.host.wait_nodes(cursor, BOUND_S)
    guest.beat("n1", 7)
    assert leasing.host.wait_nodes(cursor, BOUND_S)[1] == {"n1": b"one"}
    assert leasing.host.read_beats(["n1"]).keys() == {"n1"}


def test_the_leaders_term_ends_with_its_lease(leasing: Stage) -> None:
    """Another node leads, wait_deposed returns, announcements are fenced; a later heartbeat does not renew the term."""
    epoch, candidate = leasing.epoch, leasing.guest()
    assert (candidate.lead("n1", 60.0) or 0) > epoch
    assert leasing.host.wait_deposed(epoch, 60.0)
    leasing.host.beat("host", 2)
    with pytest.raises(StoreFenced):
        leasing.announce(1, b"of the deposed")


def test_a_leader_that_sends_heartbeats_keeps_its_term(leasing: Stage) -> None:
    """For far longer than a lease. Where this host held the test up for most of a lease, nothing is shown; it goes on
    in the next term."""
    watch = leasing.session(leasing.host)
    for _ in range(10):
        epoch, began = lead(leasing.host), time.monotonic()
        beaten, late = began, False
        while time.monotonic() < began + 3 * LEASE_S and not late:
            leasing.host.beat("host", 1)
            deposed = watch.wait_deposed(epoch, LEASE_S / 5)
            late, beaten = time.monotonic() - beaten > LEASE_S / 2, time.monotonic()
            assert late or not deposed
        if not late:
            leasing.host.announce(1, b"round 1", epoch)
            return
    raise AssertionError("no 3 leases in which every heartbeat was in time")
