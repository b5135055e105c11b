"""What store.py promises, sentence by sentence, on each backend."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property

import pytest

from elastic_agent.rendezvous.c10d.store import C10dStore, open_c10d
from elastic_agent.rendezvous.etcd.store import EtcdStore, Location, open_etcd
from elastic_agent.rendezvous.memory_store import MemoryStore
from elastic_agent.rendezvous.store import FIRST_EPOCH, Store, StoreFenced, StoreUnreachable
from support.etcd_servers import VERSIONS, shared_servers, start_shared_servers

BOUND_S = 10.0
"""What must happen at once may take this long on a busy machine."""
LEASE_S = 1.0


@pytest.fixture(scope="session", autouse=True)
def _first_use() -> None:
    """What the first user of a server starts is no single test's to answer for: etcd's servers, which end with the
    process, and a pipe that libuv leaves behind for good."""
    open_c10d("127.0.0.1:0", "first", is_host=True).close_host()
    start_shared_servers()


class Stage:
    """One store and a node that coordinates: its host, or whom it elected. Sessions made here are closed at the end."""

    def __init__(self, host: Store, guest: Callable[[], Store]) -> None:
        self.host = host
        self._guest = guest
        self._sessions: list[Store] = [host] if host.elects else []

    @cached_property
    def epoch(self) -> int:
        """Of the coordinator's term."""
        return lead(self.host)

    def announce(self, version: int, value: bytes) -> None:
        """As the coordinator."""
        self.host.announce(version, value, self.epoch)

    def guest(self) -> Store:
        """A connection of another node."""
        return self._kept(self._guest())

    def session(self, store: Store) -> Store:
        """A further connection of the same node."""
        return self._kept(store.session())

    def close(self) -> None:
        for session in self._sessions:
            session.close()

    def _kept(self, session: Store) -> Store:
        self._sessions.append(session)
        return session


def lead(store: Store, node: str = "host") -> int:
    """Have this node lead, at once; the epoch of its term."""
    epoch = store.lead(node, BOUND_S)
    assert epoch is not None
    return epoch


@contextmanager
def opened(kind: str, lease_s: float = 60.0) -> Iterator[Stage]:
    """A fresh store of this kind; `lease_s`: how long leases are where it elects."""
    if kind == "c10d":
        host: C10dStore = open_c10d("127.0.0.1:0", "contract/ü %2F\n", is_host=True)
        made = Stage(host, lambda: open_c10d(str(host.endpoint), "contract/ü %2F\n", is_host=False))
        try:
            yield made
        finally:
            made.close()
            host.close_host()
        return
    if kind.startswith("etcd"):
        with closing(stage_on_etcd(kind.removeprefix("etcd "), lease_s)) as made:
            yield made
        return
    shared = MemoryStore(lease_s if kind == "electing memory" else None)
    made = Stage(shared.guest() if kind == "electing memory" else shared.host(), shared.guest)
    yield made
    made.close()


def stage_on_etcd(version: str, lease_s: float) -> Stage:
    location = Location(f"contract/ü %2F {uuid.uuid4()}\n", lease_s=lease_s)

    def guest() -> EtcdStore:
        return open_etcd(shared_servers(version).endpoints, location, connect_timeout_s=BOUND_S)

    return Stage(guest(), guest)


ELECTING = ["electing memory", *(f"etcd {version}" for version in VERSIONS)]


@pytest.fixture(params=["memory", "c10d", *ELECTING])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A fresh store of each kind, with leases that no test outlives."""
    with opened(request.param) as made:
        yield made


@pytest.fixture(params=["memory", "c10d"])
def hosted(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A fresh store of each kind that is hosted."""
    with opened(request.param) as made:
        yield made


@pytest.fixture(params=ELECTING)
def electing(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A fresh store of each kind that elects, with leases that no test outlives."""
    with opened(request.param) as made:
        yield made


@pytest.fixture(params=ELECTING)
def leasing(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """The same with leases as short as can be: nobody renews one here by itself."""
    with opened(request.param, LEASE_S) as made:
        yield made


def test_only_the_hosts_connection_is_hosted(hosted: Stage) -> None:
    """Exactly the process that serves the store provides the coordinator, in every session of it."""
    assert hosted.host.hosted
    assert hosted.session(hosted.host).hosted
    guest = hosted.guest()
    assert not guest.hosted
    assert not hosted.session(guest).hosted
    assert not guest.elects


def test_the_host_leads_from_the_beginning_and_for_good(hosted: Stage) -> None:
    """One term, whatever happens; nobody else stands."""
    assert hosted.host.lead("host", BOUND_S) == FIRST_EPOCH
    assert hosted.guest().lead("guest", BOUND_S) is None
    hosted.host.resign(FIRST_EPOCH)
    assert not hosted.host.wait_deposed(FIRST_EPOCH, 0.0)
    hosted.host.announce(1, b"round 1", FIRST_EPOCH)


def test_the_first_record_of_the_job_stands(stage: Stage) -> None:
    """write_job is create-only: who comes later learns what the first one wrote, on any connection."""
    assert stage.guest().write_job(b"first") == b"first"
    assert stage.host.write_job(b"second") == b"first"
    assert stage.guest().write_job(b"first") == b"first"
    assert stage.session(stage.host).write_job(b"third") == b"first"


def test_only_one_of_many_creates_the_job(stage: Stage) -> None:
    """Under a race too, and all are told the same."""
    rivals = [stage.guest() for _ in range(6)]
    start = threading.Barrier(6)

    def create(number: int) -> bytes:
        start.wait(BOUND_S)
        return rivals[number].write_job(b"of rival %d" % number)

    with ThreadPoolExecutor(6) as pool:
        told = set(pool.map(create, range(6)))
    assert len(told) == 1
    assert told < {b"of rival %d" % number for number in range(6)}


def test_the_jobs_record_is_replaced_only_by_who_knows_what_it_holds(stage: Stage) -> None:
    """Of two who would replace the same record one does, and may say so again."""
    stage.host.write_job(b"begun")
    assert stage.guest().write_job(b"mine", over=b"never was") == b"begun"
    assert stage.host.write_job(b"ended", over=b"begun") == b"ended"
    assert stage.guest().write_job(b"ended otherwise", over=b"begun") == b"ended"
    assert stage.host.write_job(b"ended", over=b"begun") == b"ended"
    assert stage.host.write_job(b"later") == b"ended"


def test_a_record_that_is_not_there_is_not_replaced(stage: Stage) -> None:
    """Nothing is written, and the answer says that there is none."""
    assert stage.host.write_job(b"ended", over=b"begun") == b""
    assert stage.host.write_job(b"first") == b"first"


def test_an_incarnation_sees_nothing_of_another(stage: Stage) -> None:
    """Records, heartbeats and announcements of the job that had the id before are not there; the job's record is."""
    stage.host.write_job(b"the job")
    stage.announce(1, b"an old round")
    earlier = stage.guest()
    earlier.publish_node("n1", b"an old node")
    earlier.beat("n1", 7)
    host = stage.session(stage.host)
    host.use_incarnation(2)
    assert host.wait_round(0, 0.0) is None
    assert host.wait_nodes(0, 0.0) == (0, {})
    assert host.elects or host.read_beats(["n1"]) == {}  # where leases end, a store may want to be sure
    assert host.beat("n2", 1) == 0
    host.announce(1, b"a new round", lead(host))
    assert host.write_job(b"another") == b"the job"
    assert earlier.wait_round(0, BOUND_S) == (1, b"an old round")


def test_nodes_of_one_incarnation_see_each_other(stage: Stage) -> None:
    """Whoever turns to it first; and a session has its connection's incarnation."""
    host, guest = stage.session(stage.host), stage.guest()
    guest.use_incarnation(2)
    guest.publish_node("n1", b"one")
    host.use_incarnation(2)
    assert stage.session(host).wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}
    host.announce(1, b"round 1", lead(host))
    assert stage.session(guest).wait_round(0, BOUND_S) == (1, b"round 1")


def test_turning_to_an_incarnation_loses_nothing_of_it(stage: Stage) -> None:
    """Many come at once, and who is late does not undo what was counted by then."""
    guests = [stage.guest() for _ in range(8)]
    start = threading.Barrier(8)

    def turn(number: int) -> None:
        start.wait(BOUND_S)
        guests[number].use_incarnation(2)
        guests[number].publish_node(f"n{number}", b"here")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(turn, range(8)))
    host = stage.session(stage.host)
    host.use_incarnation(2)
    assert host.wait_nodes(0, BOUND_S)[1] == {f"n{number}": b"here" for number in range(8)}


def test_a_published_record_is_read_by_the_coordinator(stage: Stage) -> None:
    """publish_node lets wait_nodes notice, whichever connection it came from."""
    stage.guest().publish_node("n1", b"one")
    cursor, found = stage.host.wait_nodes(0, BOUND_S)
    assert found == {"n1": b"one"}
    assert cursor > 0


def test_publishing_replaces_the_nodes_own_record(stage: Stage) -> None:
    """Only the current record of a node is read, once."""
    guest = stage.guest()
    for value in (b"first", b"second", b"\x00\xff third"):
        guest.publish_node("n1", value)
    assert stage.host.wait_nodes(0, BOUND_S)[1] == {"n1": b"\x00\xff third"}


def test_publishing_is_acknowledged(stage: Stage) -> None:
    """Once publish_node returns, any other connection sees the record without waiting."""
    guest = stage.guest()
    cursor = 0
    for count in range(50):
        guest.publish_node("n1", b"%d" % count)
        cursor, found = stage.host.wait_nodes(cursor, 0.0)
        assert found == {"n1": b"%d" % count}


def test_wait_nodes_returns_only_nodes_that_published_after_the_cursor(stage: Stage) -> None:
    """A cursor is where the last call ended."""
    guest = stage.guest()
    guest.publish_node("n1", b"one")
    guest.publish_node("n2", b"two")
    cursor, found = stage.host.wait_nodes(0, BOUND_S)
    assert found == {"n1": b"one", "n2": b"two"}
    guest.publish_node("n2", b"two again")
    cursor, found = stage.host.wait_nodes(cursor, BOUND_S)
    assert found == {"n2": b"two again"}


def test_a_cursor_of_zero_reads_from_the_beginning(stage: Stage) -> None:
    """A coordinator that starts anew finds every node."""
    guest = stage.guest()
    for number in range(20):
        guest.publish_node(f"n{number}", b"%d" % number)
    cursor, _ = stage.host.wait_nodes(0, BOUND_S)
    assert stage.host.wait_nodes(cursor, 0.0) == (cursor, {})
    assert stage.session(stage.host).wait_nodes(0, BOUND_S)[1] == {f"n{number}": b"%d" % number for number in range(20)}


def test_wait_nodes_is_empty_when_its_time_has_passed(stage: Stage) -> None:
    """The cursor stays, and the time is kept."""
    started = time.monotonic()
    assert stage.host.wait_nodes(0, 0.2) == (0, {})
    assert 0.15 < time.monotonic() - started < BOUND_S


def test_a_waiting_coordinator_wakes_up_for_a_record(stage: Stage) -> None:
    """wait_nodes blocks until some node publishes, and not longer."""
    guest, waiter = stage.guest(), stage.session(stage.host)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_nodes, 0, 60.0)
        guest.publish_node("n1", b"one")
        assert waiting.result(BOUND_S)[1] == {"n1": b"one"}


def test_a_waiting_node_wakes_up_for_a_round(stage: Stage) -> None:
    """wait_round blocks until a newer version is announced, and not longer."""
    waiters = [stage.guest() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for version in range(1, 20):
            waiting = [pool.submit(waiter.wait_round, version - 1, 60.0) for waiter in waiters]
            stage.announce(version, b"round %d" % version)
            assert [future.result(BOUND_S) for future in waiting] == [(version, b"round %d" % version)] * 4


def test_waking_up_takes_milliseconds(stage: Stage) -> None:
    """The median of 30 wake-ups is far below a tenth of a second: nothing polls on a clock."""
    waiter = stage.guest()
    delays = []
    with ThreadPoolExecutor(1) as pool:
        for version in range(1, 31):
            waiting = pool.submit(lambda after: (waiter.wait_round(after, 60.0), time.monotonic()), version - 1)
            told = time.monotonic()
            stage.announce(version, b"x")
            delays.append(waiting.result(BOUND_S)[1] - told)
    assert sorted(delays)[15] < 0.1


def test_wait_round_returns_the_newest_and_skips_those_in_between(stage: Stage) -> None:
    """A node that was away learns where things stand, not how they came about."""
    for version in range(1, 6):
        stage.announce(version, b"round %d" % version)
    assert stage.guest().wait_round(0, BOUND_S) == (5, b"round 5")
    assert stage.guest().wait_round(4, BOUND_S) == (5, b"round 5")


def test_wait_round_is_none_when_its_time_has_passed(stage: Stage) -> None:
    """Nothing newer is an answer, not an error."""
    stage.announce(1, b"round 1")
    started = time.monotonic()
    assert stage.guest().wait_round(1, 0.2) is None
    assert 0.15 < time.monotonic() - started < BOUND_S
    assert stage.guest().wait_round(1, 0.0) is None


def test_wait_round_copes_with_a_node_far_behind(stage: Stage) -> None:
    """Versions far behind are deleted, and who asks for them gets the newest."""
    for version in range(1, 201):
        stage.announce(version, b"round %d" % version)
    assert stage.guest().wait_round(3, BOUND_S) == (200, b"round 200")


def test_at_least_the_newest_16_versions_remain(stage: Stage) -> None:
    """Announcing one of them again, with equal bytes, is still an idempotent repeat."""
    for version in range(1, 201):
        stage.announce(version, b"round %d" % version)
    for version in range(185, 201):
        stage.announce(version, b"round %d" % version)


def test_announcing_the_same_again_changes_nothing(stage: Stage) -> None:
    """A coordinator that never heard the answer may say the same thing again."""
    stage.announce(1, b"round 1")
    stage.announce(2, b"round 2")
    stage.announce(1, b"round 1")
    stage.session(stage.host).announce(2, b"round 2", stage.epoch)
    assert stage.guest().wait_round(0, BOUND_S) == (2, b"round 2")


def test_announcing_something_else_under_a_taken_version_is_fenced(stage: Stage) -> None:
    """Of two coordinators the second is refused, and nothing of what it said is seen."""
    stage.announce(1, b"round 1")
    stage.announce(2, b"round 2")
    for version in (1, 2):
        with pytest.raises(StoreFenced, match=f"version {version}"):
            stage.session(stage.host).announce(version, b"something else", stage.epoch)
    assert stage.guest().wait_round(0, BOUND_S) == (2, b"round 2")


def test_announcing_a_version_long_past_is_fenced(stage: Stage) -> None:
    """A version that was deleted cannot be announced anew, and the newest does not go back."""
    for version in range(1, 201):
        stage.announce(version, b"round %d" % version)
    with pytest.raises(StoreFenced):
        stage.announce(1, b"something else")
    assert stage.guest().beat("n1", 1) == 200


def test_only_one_of_many_coordinators_wins_a_version(stage: Stage) -> None:
    """Announcing is create-only also under a race."""
    rivals = [stage.guest() for _ in range(6)]
    start = threading.Barrier(6)
    epoch = stage.epoch

    def announce(number: int) -> bool:
        start.wait(BOUND_S)
        try:
            rivals[number].announce(1, b"of rival %d" % number, epoch)
        except StoreFenced:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(announce, range(6)))
    assert won.count(True) == 1
    assert stage.guest().wait_round(0, BOUND_S) == (1, b"of rival %d" % won.index(True))


def test_beat_returns_the_newest_announced_version(stage: Stage) -> None:
    """A node whose watch is lost notices at its next heartbeat; 0 means none yet."""
    guest = stage.guest()
    assert guest.beat("n1", 1) == 0
    stage.announce(1, b"round 1")
    stage.announce(2, b"round 2")
    assert guest.beat("n1", 2) == 2


def test_heartbeats_are_read_as_counted(hosted: Stage) -> None:
    """read_beats gives the newest counter of each node asked for; one that never beat is absent."""
    hosted.guest().beat("n1", 1)
    hosted.guest().beat("n1", 7)
    hosted.guest().beat("n2", 3)
    assert hosted.host.read_beats(["n1", "n2", "never"]) == {"n1": 7, "n2": 3}
    assert hosted.host.read_beats(["n2"]) == {"n2": 3}
    assert hosted.host.read_beats([]) == {}


def test_a_heartbeat_wakes_no_coordinator(stage: Stage) -> None:
    """Liveness is read when the coordinator wants to; it is no news."""
    stage.guest().beat("n1", 1)
    assert stage.host.wait_nodes(0, 0.05) == (0, {})


def test_nothing_is_missed_when_many_publish_at_once(stage: Stage) -> None:
    """Eight writers, fifty records each, one coordinator: it ends up with everybody's last record."""
    writers = [stage.guest() for _ in range(8)]

    def write(number: int) -> None:
        for count in range(50):
            writers[number].publish_node(f"n{number}", b"%d" % count)
            writers[number].beat(f"n{number}", count)

    last: dict[str, bytes] = {}
    with ThreadPoolExecutor(8) as pool:
        writing = [pool.submit(write, number) for number in range(8)]
        cursor, deadline = 0, time.monotonic() + 30
        while set(last.values()) != {b"49"} or len(last) < 8:
            assert time.monotonic() < deadline
            cursor, found = stage.host.wait_nodes(cursor, 5.0)
            last.update(found)
        for future in writing:
            future.result(BOUND_S)
    assert last == {f"n{number}": b"49" for number in range(8)}
    counts = stage.host.read_beats(list(last))
    assert counts.keys() == last.keys()
    assert stage.host.elects or set(counts.values()) == {49}


def test_many_bytes_are_kept_as_they_are(stage: Stage) -> None:
    """A round of a megabyte and a record of 64 KiB arrive whole."""
    stage.announce(1, bytes(range(256)) * 4096)
    stage.guest().publish_node("n1", bytes(range(256)) * 256)
    assert stage.guest().wait_round(0, BOUND_S) == (1, bytes(range(256)) * 4096)
    assert stage.host.wait_nodes(0, BOUND_S)[1] == {"n1": bytes(range(256)) * 256}


def test_a_closed_session_raises_store_unreachable(stage: Stage) -> None:
    """Closing gives one connection up; it may be done twice and leaves the others alone."""
    guest = stage.guest()
    other = stage.session(guest)
    guest.close()
    guest.close()
    with pytest.raises(StoreUnreachable):
        guest.beat("n1", 1)
    assert other.beat("n1", 1) == 0


def test_closing_a_session_ends_its_wait(stage: Stage) -> None:
    """A thread that waits can be told to stop by another one."""
    guest = stage.guest()
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        guest.wait_round(0, 60.0)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert begun.wait(BOUND_S)
        guest.close()
        with pytest.raises(StoreUnreachable):
            waiting.result(BOUND_S)


def test_the_store_outlives_the_hosts_own_session(stage: Stage) -> None:
    """close() gives a connection up, not the store."""
    guest = stage.guest()
    stage.session(stage.host).close()
    guest.publish_node("n1", b"one")
    assert stage.host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}


# -- the job's end ----------------------------------------------------------------------------------------------------


def test_the_last_word_goes_with_the_jobs_record(stage: Stage) -> None:
    """Who learns of the end finds the outcome in the job's record; it may be said again."""
    stage.host.write_job(b"begun")
    for _ in range(2):
        assert stage.host.announce_end(1, b"over", stage.epoch, b"ended", over=b"begun")
    assert stage.guest().wait_round(0, BOUND_S) == (1, b"over")
    assert stage.guest().write_job(b"?") == b"ended"


def test_the_last_word_is_heard_whoever_changed_the_jobs_record(stage: Stage) -> None:
    """The nodes of this incarnation must end in any case; what is not ours is left alone."""
    stage.host.write_job(b"another job")
    assert not stage.host.announce_end(1, b"over", stage.epoch, b"ended", over=b"begun")
    assert stage.guest().wait_round(0, BOUND_S) == (1, b"over")
    assert stage.guest().write_job(b"?") == b"another job"


# -- elections --------------------------------------------------------------------------------------------------------


def test_no_connection_to_a_store_that_elects_is_hosted(electing: Stage) -> None:
    """Nobody of us serves it."""
    guest = electing.guest()
    assert (guest.elects, guest.hosted) == (True, False)
    assert electing.session(guest).elects


def test_one_of_many_leads(electing: Stage) -> None:
    """All stand at once; one learns its epoch, the others wait."""
    rivals = [electing.guest() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(lambda number: rivals[number].lead(f"n{number}", 0.3), range(6)))
    assert len([epoch for epoch in told if epoch is not None]) == 1


def test_a_term_asked_for_again_is_the_same(electing: Stage) -> None:
    """A node that never heard the answer asks again, on another connection too."""
    epoch = lead(electing.host)
    assert epoch > 0
    assert electing.session(electing.host).lead("host", 0.0) == epoch


def test_a_later_term_has_a_greater_epoch(electing: Stage) -> None:
    """Whoever leads it."""
    guest = electing.guest()
    epochs = []
    for store, node in ((electing.host, "host"), (guest, "guest"), (guest, "guest"), (electing.host, "host")):
        epochs.append(lead(store, node))
        store.resign(epochs[-1])
    assert epochs == sorted(set(epochs))


def test_a_candidate_wakes_up_when_the_leader_resigns(electing: Stage) -> None:
    """It waits no longer than it must, and not for a lease."""
    epoch, candidate = lead(electing.host), electing.guest()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(candidate.lead, "n1", 60.0)
        electing.host.resign(epoch)
        assert (waiting.result(BOUND_S) or 0) > epoch


def test_a_leader_learns_that_its_term_is_over(electing: Stage) -> None:
    """wait_deposed blocks until then; a term long over is over at once."""
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
    """What it says after its term is over is refused and never seen, before its successor has said anything too."""
    electing.announce(1, b"round 1")
    electing.host.resign(electing.epoch)
    with pytest.raises(StoreFenced, match=f"epoch {electing.epoch}"):
        electing.announce(2, b"of nobody's")
    guest = electing.guest()
    epoch = lead(guest, "guest")
    with pytest.raises(StoreFenced, match=f"epoch {electing.epoch}"):
        electing.announce(2, b"of the deposed")
    guest.announce(2, b"of the new", epoch)
    assert guest.wait_round(0, BOUND_S) == (2, b"of the new")


def test_what_was_announced_may_be_said_again_after_the_term(electing: Stage) -> None:
    """The answer was lost, and then the leadership; what was said has been said."""
    electing.announce(1, b"round 1")
    electing.host.resign(electing.epoch)
    electing.announce(1, b"round 1")


def test_a_deposed_coordinator_does_not_end_the_job(electing: Stage) -> None:
    """The job's record is fenced with the last word."""
    electing.host.write_job(b"begun")
    electing.host.resign(electing.epoch)
    with pytest.raises(StoreFenced):
        electing.host.announce_end(1, b"over", electing.epoch, b"ended", over=b"begun")
    assert electing.guest().write_job(b"?") == b"begun"
    assert electing.guest().wait_round(0, 0.0) is None


def test_a_new_coordinator_finds_all_records_and_the_newest_word(electing: Stage) -> None:
    """From them it rebuilds what its predecessor knew."""
    for number in range(3):
        electing.guest().publish_node(f"n{number}", b"%d" % number)
    for version in (1, 2):
        electing.announce(version, b"round %d" % version)
    electing.host.resign(electing.epoch)
    successor = electing.guest()
    lead(successor, "n1")
    assert successor.wait_round(0, 0.0) == (2, b"round 2")
    assert successor.wait_nodes(0, 0.0)[1] == {f"n{number}": b"%d" % number for number in range(3)}


def test_each_incarnation_elects_its_own(electing: Stage) -> None:
    """A coordinator that lives on in an old incarnation is none of the new one's business."""
    old = lead(electing.host)
    guest = electing.guest()
    guest.use_incarnation(2)
    assert lead(guest, "guest") > old
    assert not electing.host.wait_deposed(old, 0.0)


def test_after_clearing_only_the_jobs_record_is_left(electing: Stage) -> None:
    """Nobody but the coordinator clears."""
    electing.host.write_job(b"ended")
    electing.announce(1, b"over")
    electing.guest().publish_node("n1", b"ended")
    electing.guest().clear(electing.epoch + 1)
    assert electing.guest().wait_round(0, 0.0) == (1, b"over")
    electing.host.clear(electing.epoch)
    assert electing.guest().wait_round(0, 0.0) is None
    assert electing.guest().wait_nodes(0, 0.0)[1] == {}
    assert electing.guest().write_job(b"?") == b"ended"


def wait_living(store: Store, nodes: list[str], living: set[str]) -> None:
    """Until just these of the nodes count as living: a store may want to be sure of a lease's end."""
    deadline = time.monotonic() + BOUND_S
    while store.read_beats(nodes).keys() != living:
        assert time.monotonic() < deadline
        store.wait_nodes(10**6, LEASE_S / 5)


# -- leases -----------------------------------------------------------------------------------------------------------


def test_a_node_has_a_lease_from_its_first_record_on(electing: Stage) -> None:
    """No coordinator sees a record of a node that would look dead."""
    electing.guest().publish_node("n1", b"one")
    lead(electing.guest(), "n2")
    assert electing.host.read_beats(["n1", "n2"]).keys() == {"n1", "n2"}


def test_a_lease_that_is_not_renewed_ends(leasing: Stage) -> None:
    """Whoever beats keeps its own."""
    living = leasing.guest()
    leasing.guest().publish_node("n1", b"one")
    deadline = time.monotonic() + BOUND_S
    while "n1" in leasing.host.read_beats(["n1", "n2"]):
        living.beat("n2", 1)
        assert time.monotonic() < deadline
        leasing.host.wait_nodes(10**6, LEASE_S / 5)
    assert leasing.host.read_beats(["n1", "n2"]).keys() == {"n2"}


def test_the_end_of_a_lease_wakes_the_coordinator(leasing: Stage) -> None:
    """It need not look again and again, and the node's record is still there."""
    leasing.guest().publish_node("n1", b"one")
    cursor, _ = leasing.host.wait_nodes(0, BOUND_S)
    began = time.monotonic()
    assert leasing.host.wait_nodes(cursor, 60.0)[1] == {"n1": b"one"}
    assert time.monotonic() - began < BOUND_S
    wait_living(leasing.host, ["n1"], set())


def test_a_node_that_beats_again_has_a_lease_again(leasing: Stage) -> None:
    """A frozen node that goes on is counted in, and the coordinator woken up for it."""
    guest = leasing.guest()
    guest.publish_node("n1", b"one")
    cursor, _ = leasing.host.wait_nodes(0, BOUND_S)
    cursor, _ = leasing.host.wait_nodes(cursor, BOUND_S)
    guest.beat("n1", 7)
    assert leasing.host.wait_nodes(cursor, BOUND_S)[1] == {"n1": b"one"}
    assert leasing.host.read_beats(["n1"]).keys() == {"n1"}


def test_the_leaders_term_ends_with_its_lease(leasing: Stage) -> None:
    """It is told, it is fenced, another takes over; when it beats again it does not lead again."""
    epoch, candidate = leasing.epoch, leasing.guest()
    assert (candidate.lead("n1", 60.0) or 0) > epoch
    assert leasing.host.wait_deposed(epoch, 60.0)
    leasing.host.beat("host", 2)
    with pytest.raises(StoreFenced):
        leasing.announce(1, b"of the deposed")


def test_a_leader_that_beats_leads_on(leasing: Stage) -> None:
    """For far longer than a lease."""
    epoch, until = leasing.epoch, time.monotonic() + 3 * LEASE_S
    watch = leasing.session(leasing.host)
    while time.monotonic() < until:
        leasing.host.beat("host", 1)
        assert not watch.wait_deposed(epoch, LEASE_S / 5)
    leasing.announce(1, b"round 1")


def test_a_memory_store_that_is_taken_away_ends_every_call() -> None:
    """MemoryStore.close is how tests lose a store."""
    shared = MemoryStore()
    guest = shared.guest()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(guest.wait_nodes, 0, 60.0)
        shared.close()
        with pytest.raises(StoreUnreachable):
            waiting.result(BOUND_S)
    with pytest.raises(StoreUnreachable):
        guest.session()


def test_a_memory_store_that_elects_has_no_host() -> None:
    """A test that asks for one is mistaken."""
    with pytest.raises(ValueError, match="has no host"):
        MemoryStore(LEASE_S).host()
