"""A c10d store at one endpoint, which another node hosts later: who finds it, and who begins a job there."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from elastic_agent.agent.worker_store.in_thread import ServerThread
from elastic_agent.proto.frozen import replace
from elastic_agent.rendezvous.c10d.addressed import AddressedStore, open_addressed
from elastic_agent.rendezvous.c10d.claim import PortTaken
from elastic_agent.rendezvous.c10d.client import connect
from elastic_agent.rendezvous.c10d.keys import Keys, create_keys, mark_served
from elastic_agent.rendezvous.c10d.listed import Pointer, read_pointer
from elastic_agent.rendezvous.c10d.one_endpoint import OneEndpoint
from elastic_agent.rendezvous.c10d.opening import Hosting
from elastic_agent.rendezvous.endpoint import parse_endpoint, resolve
from elastic_agent.rendezvous.store import (
    StoreElsewhere,
    StoreForeign,
    StoreReplaced,
    StoreSpoiled,
    StoreUnreachable,
)
from support.c10d_stores import FasterAgent, bound_to
from support.network import Switch, free_port, virtual_switch, why_unavailable
from support.outside import endpoint_node as endpoint_node_module

BOUND_S = 20.0
LEASE_S = 1.0


class Nodes:
    """Nodes of one job at one endpoint of this host."""

    def __init__(self) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.told: dict[str, list[Pointer]] = {}
        self.warned: list[str] = []
        self.made = ExitStack()

    def open(self, node: str, *, hosts: bool = False, wait_s: float = BOUND_S, run_id: str = "one") -> AddressedStore:
        """As the agent `node`; again, as one that opens its store anew."""
        opening = replace(
            endpoint_node_module.opening(node, hosts),
            told=self.told.setdefault(node, []),
            connect_timeout_s=wait_s,
            hosting=Hosting(warn=self.warned.append),
        )
        listed = OneEndpoint(parse_endpoint(self.endpoint), Keys(run_id), LEASE_S)
        opened = open_addressed(listed, run_id, opening)
        self.made.callback(opened.close_host)
        return opened

    def orphaned(self, *guests: str) -> list[AddressedStore]:
        """The sessions of these guests of `a`, which has begun the job at the endpoint and hosts no more."""
        a = self.open("a", hosts=True)
        opened = [self.open(guest) for guest in guests]
        a.found()
        a.close_host()
        return opened

    def takes_over(self, store: AddressedStore, node: str, epoch: int = 2) -> str:
        """This node is elected. Returns where it hosts."""
        at = f"127.0.0.1{store.reserved}"
        store.host(epoch, node, b"a", (10_001, b"announced"), at)
        return at

    def tells(self, store: AddressedStore) -> list[BaseException]:
        """Let this node tell the endpoint, as its herald. Returns what that raises."""
        raised: list[BaseException] = []

        def tell() -> None:
            try:
                store.tell()
            except StoreReplaced as error:
                raised.append(error)

        thread = threading.Thread(target=tell, daemon=True, name="test-herald")
        thread.start()
        self.made.callback(thread.join, BOUND_S)
        self.made.callback(store.home.close)
        return raised

    def pointer(self) -> Pointer | None:
        """What the server at the endpoint says."""
        keys = Keys("one")
        for address in resolve(parse_endpoint(self.endpoint)):
            with suppress(StoreUnreachable), closing(connect(address, self.endpoint, BOUND_S, BOUND_S)) as client:
                return read_pointer(client.get([keys.pointer]).get(keys.pointer, b""))
        return None


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not happened():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def elsewhere_after_beats(store: AddressedStore) -> StoreElsewhere:
    """The host of an unbegun job is told within some heartbeats."""
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        try:
            store.beat("x", 1)
        except StoreElsewhere as error:
            return error
        threading.Event().wait(0.05)
    raise AssertionError("nobody told it")


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    with made.made:
        yield made


def test_a_guest_reserves_a_port_at_which_nothing_listens(nodes: Nodes) -> None:
    a, b = nodes.open("a", hosts=True), nodes.open("b")
    assert (a.reserved, a.hosted, a.epoch, b.hosted, b.epoch) == (nodes.endpoint, True, 1, False, 1)
    assert b.reserved.startswith(":")
    with pytest.raises(StoreUnreachable, match="refused"):
        connect(resolve(parse_endpoint(f"127.0.0.1{b.reserved}"))[0], "b", 1.0, 1.0)


def test_sessions_find_the_next_host_at_the_port_that_it_had_reserved(nodes: Nodes) -> None:
    b, c = nodes.orphaned("b", "c")
    c.expect((nodes.endpoint, f"127.0.0.1{b.reserved}"))
    at = nodes.takes_over(b, "b")
    with closing(c.session()) as moved:
        assert (moved.epoch, str(moved.endpoint)) == (2, at)
        assert moved.wait_round(7, 0.0) == (10_001, b"announced")


def test_the_node_of_the_endpoint_is_told_before_it_has_begun_and_joins_the_job(nodes: Nodes) -> None:
    """Whoever knows the endpoint only finds the job there from then on; the next host is told there as well."""
    b, c = nodes.orphaned("b", "c")
    c.expect((nodes.endpoint, f"127.0.0.1{b.reserved}"))
    at = nodes.takes_over(b, "b")
    nodes.tells(b)
    back = nodes.open("a2", hosts=True)
    assert at in str(elsewhere_after_beats(back))
    with pytest.raises(StoreElsewhere):
        back.found()
    back.close_host()
    joined = nodes.open("a2", hosts=True)
    assert (joined.hosted, joined.epoch, joined.reserved) == (False, 2, nodes.endpoint)
    newcomer = nodes.open("d")
    assert (newcomer.epoch, newcomer.write_job(b"d")) == (2, b"a")
    with closing(c.session()):
        nodes.tells(c)
    b.close_host()
    c.host(3, "c", b"a", (20_001, b"announced"), f"127.0.0.1{c.reserved}")
    until(lambda: (found := nodes.pointer()) is not None and (found.epoch, found.node) == (3, "c"))
    assert nodes.open("e").epoch == 3


def test_a_newcomer_joins_no_job_whose_host_is_told_that_it_goes_on_elsewhere(nodes: Nodes) -> None:
    """It waits until that host has left, and joins the older job."""
    (b,) = nodes.orphaned("b")
    at = nodes.takes_over(b, "b")
    back = nodes.open("a2", hosts=True)
    nodes.tells(b)
    until(lambda: nodes.pointer() is not None)
    with pytest.raises(StoreUnreachable, match=f"about to leave its own job for the one at {at}"):
        nodes.open("d", wait_s=0.3)
    elsewhere_after_beats(back)
    back.close_host()
    nodes.open("a2", hosts=True)
    assert nodes.open("d").epoch == 2


def test_a_guest_of_a_job_that_has_not_begun_is_sent_elsewhere_as_well(nodes: Nodes) -> None:
    (b,) = nodes.orphaned("b")
    b.expect((nodes.endpoint,))
    nodes.takes_over(b, "b")
    back = nodes.open("a2", hosts=True)
    guest = nodes.open("g")
    nodes.tells(b)
    elsewhere_after_beats(back)
    back.close_host()
    nodes.open("a2", hosts=True)
    with pytest.raises(StoreElsewhere, match="goes on without"):
        guest.session()


def test_a_job_that_has_begun_at_the_endpoint_ends_the_one_that_was_cut_off_from_it(nodes: Nodes) -> None:
    (b,) = nodes.orphaned("b")
    nodes.takes_over(b, "b")
    back = nodes.open("a2", hosts=True)
    back.found()
    raised = nodes.tells(b)
    until(lambda: raised)
    assert "was restarted and has lost the records" in str(raised[0])
    assert not isinstance(raised[0], StoreElsewhere)
    back.beat("a2", 1)


def told_to_wait(nodes: Nodes) -> AddressedStore:
    """Node a2, back at the endpoint, was asked to wait for the next host, and opens its store anew now. The session of
    the node that has asked."""
    (b,) = nodes.orphaned("b")
    b.expect((nodes.endpoint,))
    back = nodes.open("a2", hosts=True)
    with pytest.raises(StoreUnreachable):
        b.session()
    assert f"has lost its host at {nodes.endpoint}, and awaits the next one" in str(elsewhere_after_beats(back))
    back.close_host()
    return b


def test_members_that_expect_a_host_ask_the_node_of_the_endpoint_to_wait_for_it(nodes: Nodes) -> None:
    """It begins a job once nobody can follow any more, and a member that is late ends."""
    b = told_to_wait(nodes)
    began = time.monotonic()
    begun = nodes.open("a2", hosts=True)
    assert time.monotonic() - began >= LEASE_S
    assert (begun.hosted, begun.epoch, begun.write_job(b"x")) == (True, 1, b"a2")
    with pytest.raises(StoreReplaced):
        b.session()


def test_the_node_of_the_endpoint_waits_for_a_next_host_though_it_gives_up_sooner_elsewhere(nodes: Nodes) -> None:
    """With a connect timeout that is shorter than members hope it still begins a job, and does not end."""
    told_to_wait(nodes)
    begun = nodes.open("a2", hosts=True, wait_s=LEASE_S / 2)
    assert (begun.hosted, begun.epoch) == (True, 1)


def test_a_node_that_another_agent_on_its_host_forestalls_joins_where_it_was_told(nodes: Nodes) -> None:
    (b,) = nodes.orphaned("b")
    at = nodes.takes_over(b, "b")
    with closing(FasterAgent(nodes.endpoint)) as faster:
        told = [Pointer(2, "b", at, b.home.place.pointer.job)]
        opening = replace(endpoint_node_module.opening("a2", False), told=told, is_host=None, start=faster.start)
        joined = open_addressed(OneEndpoint(parse_endpoint(nodes.endpoint), Keys("one"), LEASE_S), "one", opening)
        nodes.made.callback(joined.close_host)
        assert (joined.hosted, joined.epoch) == (False, 2)
        assert joined.reserved.startswith(":")


def test_a_node_that_must_host_says_that_another_agent_has_its_port(nodes: Nodes) -> None:
    told_to_wait(nodes)
    with closing(FasterAgent(nodes.endpoint)) as faster:
        opening = replace(endpoint_node_module.opening("a2", True), told=nodes.told["a2"], start=faster.start)
        with pytest.raises(PortTaken, match="another process on this node holds port"):
            open_addressed(OneEndpoint(parse_endpoint(nodes.endpoint), Keys("one"), LEASE_S), "one", opening)


def test_members_that_expect_no_host_end_where_the_endpoint_serves_anew(nodes: Nodes) -> None:
    """As one that knows of no other node that could host; so the node begins a job at once."""
    (b,) = nodes.orphaned("b")
    back = nodes.open("a2", hosts=True)
    with pytest.raises(StoreReplaced):
        b.session()
    back.found()


def test_a_member_that_finds_no_next_host_says_once_where_it_looked(nodes: Nodes) -> None:
    """Once none can follow any more: the ports may be closed between the nodes."""
    b, c = nodes.orphaned("b", "c")
    place = f"127.0.0.1{c.reserved}"
    b.expect((nodes.endpoint, place))
    with pytest.raises(StoreUnreachable, match=rf"asked at {place}; .*list several nodes in --rdzv-endpoint"):
        b.session()
    assert nodes.warned == []

    def says() -> bool:
        with pytest.raises(StoreUnreachable):
            b.session()
        return bool(nodes.warned)

    until(says)
    with pytest.raises(StoreUnreachable):
        b.session()
    assert len(nodes.warned) == 1
    assert place in nodes.warned[0]


def test_a_host_that_was_silent_finds_that_another_node_hosts(nodes: Nodes) -> None:
    a, b = nodes.open("a", hosts=True), nodes.open("b")
    a.found()
    nodes.takes_over(b, "b")
    nodes.tells(b)
    until(lambda: (found := nodes.pointer()) is not None and found.epoch == 2)
    with pytest.raises(StoreReplaced, match="hosts the job now"):
        a.beat("a", 2)


def test_the_server_of_another_job_is_left_alone(nodes: Nodes) -> None:
    (b,) = nodes.orphaned("b")
    nodes.takes_over(b, "b")
    other = nodes.open("x", hosts=True, run_id="other")
    nodes.tells(b)
    with pytest.raises(StoreForeign, match="serves job"):
        nodes.open("c", wait_s=1.0)
    other.beat("x", 1)
    assert nodes.pointer() is None


def test_a_member_whose_endpoint_another_job_has_ends_once_nobody_follows(nodes: Nodes) -> None:
    """It says whose job that is, as before its host was lost."""
    (b,) = nodes.orphaned("b")
    nodes.open("x", hosts=True, run_id="other")
    with pytest.raises(StoreForeign, match="serves job"):
        b.session()


def test_a_member_learns_at_once_that_the_jobs_own_store_is_spoiled(nodes: Nodes) -> None:
    """It awaits no next host: the server is the one it was with, and the host ends as well."""
    nodes.open("a", hosts=True)
    b = nodes.open("b")
    counter = Keys("one").log_head
    with closing(connect(resolve(parse_endpoint(nodes.endpoint))[0], "x", BOUND_S, BOUND_S)) as stranger:
        stranger.put(counter, b"\xde\xad")
    with pytest.raises(StoreUnreachable):
        b.publish_node("b", b"record")  # torch's server ends a connection that adds to what is no number
    with pytest.raises(StoreSpoiled, match=f"key {counter} holds"):
        b.session()


def test_a_newcomer_names_the_port_that_it_does_not_reach(nodes: Nodes) -> None:
    """The endpoint points to a host whose port is closed."""
    closed = f"127.0.0.1:{free_port()}"
    keys = Keys("one")
    with closing(ServerThread(bound_to(nodes.endpoint))) as server:
        with closing(connect(server.address, "x", BOUND_S, BOUND_S)) as client:
            client.put(keys.pointer, Pointer(2, "b", closed, "job").encode())
        with pytest.raises(StoreUnreachable, match=rf"hosted at {closed} now.*list several nodes in --rdzv-endpoint"):
            nodes.open("c", wait_s=0.3)
        with closing(connect(server.address, "x", BOUND_S, BOUND_S)) as client:
            create_keys(client, keys)
            mark_served(client, keys)


@contextmanager
def endpoint_node(switch: Switch, endpoint: str, *more: str) -> Iterator[str]:
    """The node of the endpoint, in a namespace of its own, until it is killed; what it says."""
    command = [*switch.within("old"), sys.executable, endpoint_node_module.__file__, endpoint, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def test_the_node_of_the_endpoint_is_told_after_it_lost_its_power() -> None:
    """No packet says that its connections are gone. It boots, starts its agent again, and begins no second job."""
    if why := why_unavailable():
        pytest.skip(why)
    with virtual_switch() as switch:
        switch.add("old")
        endpoint = f"{switch.addresses['old']}:{free_port()}"
        with endpoint_node(switch, endpoint) as said:
            assert said == "hosts"
            listed = OneEndpoint(parse_endpoint(endpoint), Keys("one"), endpoint_node_module.LEASE_S)
            next_host = open_addressed(listed, "one", endpoint_node_module.opening("next", False))
        next_host.host(2, "next", b"old", (10_001, b"announced"), f"{switch.address}{next_host.reserved}")
        herald = threading.Thread(target=next_host.tell, daemon=True, name="test-herald")
        herald.start()
        try:
            with endpoint_node(switch, endpoint, "again") as said:
                assert said == "told"
                switch.cut("old")
            switch.mend("old")
            with endpoint_node(switch, endpoint, "again") as said:
                assert said == "told"
        finally:
            next_host.close_host()
            herald.join(BOUND_S)
