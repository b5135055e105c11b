"""Opening a c10d store: which node hosts it, how long the others wait, and servers that are not this job's store."""

from __future__ import annotations

import io
import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from elastic_agent.rendezvous.c10d import claim as claim_module
from elastic_agent.rendezvous.c10d import client
from elastic_agent.rendezvous.c10d import server as server_module
from elastic_agent.rendezvous.c10d.claim import claim
from elastic_agent.rendezvous.c10d.opening import Hosting, open_c10d
from elastic_agent.rendezvous.c10d.server import serve
from elastic_agent.rendezvous.c10d.store import C10dStore
from elastic_agent.rendezvous.c10d.turn import Turn, take_turn
from elastic_agent.rendezvous.codec import job as jobs
from elastic_agent.rendezvous.driver import join
from elastic_agent.rendezvous.endpoint import Endpoint, parse_endpoint
from elastic_agent.rendezvous.records import JobSpec, Outcome
from elastic_agent.rendezvous.store import FIRST_EPOCH, JobMismatch, Store, StoreError, StoreForeign, StoreUnreachable
from support.c10d_stores import BOUND_S, hosting, listening, seconds_to_raise, vacant
from support.procfs import slowed

# -- waiting for the host ---------------------------------------------------------------------------------------------


def test_a_refused_endpoint_is_waited_for_and_then_given_up() -> None:
    """The wait is reported once, in one line, and ends in time with what to do."""
    endpoint = vacant()
    lines: list[str] = []
    started = time.monotonic()
    with pytest.raises(StoreUnreachable, match=rf"gave up on the store at {endpoint} after 0.4 s.*--rdzv-endpoint"):
        open_c10d(endpoint, "job", is_host=False, connect_timeout_s=0.4, on_wait=lines.append)
    assert 0.4 <= time.monotonic() - started < BOUND_S
    assert lines == [
        f"waiting for {endpoint}: nothing listens there yet (connection refused); giving up in 0 s",
    ]


def test_a_port_that_another_process_here_holds_is_named() -> None:
    """Such as a port forwarder's on the loopback address: the agent on that node does not look for one elsewhere."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with pytest.raises(StoreUnreachable, match=rf"another process on this node holds port {port}"):
            open_c10d(f"127.0.0.1:{port}", "job", connect_timeout_s=0.2)


def test_an_address_of_an_ip_version_that_the_kernel_lacks_ends_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may have one, where IPv6 is turned off. What is said is what the other address answered."""
    endpoint = parse_endpoint(vacant())
    lacking = 255
    addresses = [(socket.AF_INET, (endpoint.host, endpoint.port)), (lacking, ("::1", endpoint.port))]
    monkeypatch.setattr(client, "resolve", lambda _: addresses)
    with pytest.raises(StoreUnreachable, match=r"connection refused\); check that"):
        open_c10d(str(endpoint), "job", is_host=False, connect_timeout_s=0.2)


def test_a_client_that_starts_first_connects_once_the_host_serves() -> None:
    """Nodes start in any order."""
    endpoint = vacant()
    waiting = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_c10d, endpoint, "job", is_host=False, on_wait=lambda _: waiting.set())
        assert waiting.wait(BOUND_S)
        with hosting(endpoint=endpoint) as host, closing(opening.result(BOUND_S)) as guest:
            guest.publish_node("n1", b"one")
            assert host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}


def test_waiting_for_a_host_can_be_cancelled() -> None:
    """An agent that is asked to stop does not wait for its connect timeout."""
    endpoint = vacant()
    cancelled = threading.Event()
    with pytest.raises(StoreUnreachable, match="asked to stop while it waited for the store"):
        open_c10d(endpoint, "job", is_host=False, on_wait=lambda _: cancelled.set(), cancelled=cancelled)


def test_a_server_that_closes_the_connection_is_tried_again() -> None:
    """A port forwarder accepts and closes while the node behind it is not there yet; and so does a server that has no
    descriptor left, which only the error can name here."""
    with listening() as (server, endpoint), ThreadPoolExecutor(1) as pool:

        def close_every_connection() -> None:
            try:
                while True:
                    server.accept()[0].close()
            except OSError:
                return  # the listener was shut down, which ends the test

        closing_all = pool.submit(close_every_connection)
        why = r"gave up.*before it answered.*no file descriptor left \(`ulimit -n` there\)"
        assert seconds_to_raise(StoreUnreachable, why, endpoint, connect_timeout_s=0.5) >= 0.5
        server.shutdown(socket.SHUT_RDWR)
        closing_all.result(BOUND_S)


# -- servers that are not this job's store ----------------------------------------------------------------------------


def test_an_http_server_is_recognised_within_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the end of a line and so sends nothing (the time limit is shortened here)."""
    monkeypatch.setattr(client, "HANDSHAKE_S", 0.5)

    class Answering(BaseHTTPRequestHandler):
        def log_message(self, *_args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answering) as server, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(server.serve_forever, 0.01)
        try:
            assert seconds_to_raise(StoreForeign, "it is not a TCPStore", f"127.0.0.1:{server.server_port}") < slowed(
                5.0
            )
        finally:
            server.shutdown()
            serving.result(BOUND_S)


def test_a_server_that_answers_something_else_is_recognised_at_once() -> None:
    """An SSH server sends first."""
    with listening() as (server, endpoint), ThreadPoolExecutor(1) as pool:

        def greet() -> None:
            with server.accept()[0] as peer:
                peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                peer.recv(100)

        greeting = pool.submit(greet)
        assert seconds_to_raise(StoreForeign, r"is not a TCPStore: it answered b'SSH-2.0-'", endpoint) < slowed(3.0)
        greeting.result(BOUND_S)


def test_a_silent_listener_is_recognised_within_five_seconds() -> None:
    """torch's own client never gives up on one."""
    with listening() as (_, endpoint):
        assert seconds_to_raise(StoreForeign, "sends nothing", endpoint) < slowed(5.0)


def test_another_job_on_the_port_is_named(host: C10dStore) -> None:
    """Two jobs that share an endpoint by mistake do not mix."""
    with pytest.raises(StoreForeign, match=rf"{host.endpoint} serves job 'job', not 'mine'.*--rdzv-id"):
        open_c10d(str(host.endpoint), "mine", is_host=False)


def test_a_job_that_is_over_is_waited_for_by_the_next_one_on_its_port() -> None:
    """As where each node starts one program after the other, and this one was quicker than the host of the first."""
    before, said = open_c10d("127.0.0.1:0", "before", is_host=True), queue.SimpleQueue[str]()
    endpoint = str(before.endpoint)
    before.write_job(b"runs")
    before.announce_end(1, b"closed", 1, b"ended", b"runs")
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(open_c10d, endpoint, "next", on_wait=said.put)
        assert "still serves job 'before', which is over" in said.get(timeout=BOUND_S)
        before.close_host()
        made = opened.result(BOUND_S)
    assert made.hosted
    made.close_host()


def test_a_tcpstore_without_an_agent_is_recognised() -> None:
    """A training script's own TCPStore on the port is not the job's store."""
    found = claim(Endpoint("127.0.0.1", 0)).socket  # does not listen: torch before 2.8 listens itself
    assert found is not None
    endpoint = Endpoint("127.0.0.1", found.getsockname()[1])
    foreign = serve(found, endpoint, forced=True)
    assert foreign is not None
    try:
        seconds_to_raise(
            StoreForeign, "is a TCPStore, but no elastic-agent hosts a job there", str(endpoint), connect_timeout_s=0.3
        )
    finally:
        foreign.close()


# -- which node hosts -------------------------------------------------------------------------------------------------


def test_the_first_agent_on_a_host_hosts_and_the_second_does_not() -> None:
    """With is_host left open, binding decides."""
    endpoint = vacant()
    first = open_c10d(endpoint, "job")
    try:
        with closing(open_c10d(endpoint, "job")) as second:
            assert (first.hosted, second.hosted) == (True, False)
    finally:
        first.close_host()


@pytest.mark.parametrize("shared", [True, False])
def test_a_host_at_a_name_of_several_nodes_says_what_that_does(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them hosts a job of its own, where others may join at all: nothing else would show it."""
    names = [(socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET, ("192.0.2.77", 0))]
    monkeypatch.setattr(claim_module, "resolve", lambda _: names)
    said: list[str] = []
    open_c10d("train.svc:0", "job", hosting=Hosting(shared=shared, warn=said.append)).close_host()
    assert len(said) == shared
    assert all(
        "name of this node, which hosts the store, and of 192.0.2.77: if these are other" in each for each in said
    )


def test_of_agents_that_start_together_exactly_one_hosts() -> None:
    """Also if all of them bind the port before one listens."""
    endpoint = vacant()
    with ThreadPoolExecutor(6) as pool, ExitStack() as cleanup:
        stores = [future.result(30) for future in [pool.submit(open_c10d, endpoint, "job") for _ in range(6)]]
        for store in stores:
            cleanup.callback(store.close_host)
        assert [store.hosted for store in stores].count(True) == 1


def test_of_agents_of_one_host_that_start_together_one_imports_torch() -> None:
    """The others join once it serves. It costs each of them a second of a processor."""
    endpoint = vacant()
    script = (
        "import sys\n"
        "from elastic_agent.rendezvous.c10d.opening import open_c10d\n"
        f"store = open_c10d({endpoint!r}, 'job')\n"
        "print(store.hosted, 'torch' in sys.modules, flush=True)\n"
        "sys.stdin.read()\n"
    )
    agents = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    with ExitStack() as cleanup:
        for agent in agents:
            cleanup.enter_context(agent)
            cleanup.callback(agent.kill)
        found = sorted((agent.stdout or io.StringIO()).readline().strip() for agent in agents)
    assert found == ["False False", "False False", "False False", "True True"]


@pytest.mark.parametrize("answers", [False, True])
def test_who_takes_the_turn_to_serve_and_does_not_serve_delays_a_host_and_stops_none(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be frozen, or another program: behind the limit the host serves without its turn."""
    where = parse_endpoint(vacant())
    monkeypatch.setattr(server_module, "take_turn", partial(take_turn, most_s=0.3))
    bound = claim(where).socket
    assert bound is not None
    with closing(Turn(bound)) as turn:
        bound.close()
        if answers:
            turn.close()
            squatter = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            squatter.bind(f"\0elastic-agent/{where.host}/{where.port}".encode())  # refuses who waits for its end
            with squatter:
                open_c10d(str(where), "job").close_host()
        else:
            open_c10d(str(where), "job").close_host()


def test_a_process_that_dies_in_its_turn_to_serve_is_followed_by_the_next() -> None:
    """The kernel ends its turn."""
    where = parse_endpoint(vacant())
    bound = claim(where).socket
    assert bound is not None
    turn = Turn(bound)
    with ThreadPoolExecutor(1) as pool, closing(bound):
        after = pool.submit(take_turn, bound, BOUND_S)
        turn.close()
        found = after.result(BOUND_S)
        assert found is not None
        assert found.taken
        found.close()


def test_a_node_that_must_host_and_cannot_names_the_port(host: C10dStore) -> None:
    """The error says how to find the process that has bound the port."""
    with pytest.raises(StoreError, match=rf"port {host.endpoint.port}.*ss -tanp"):
        open_c10d(str(host.endpoint), "other", is_host=True)


def test_a_node_that_must_not_host_leaves_a_free_port_alone() -> None:
    """is_host False never binds."""
    endpoint = vacant()
    seconds_to_raise(StoreUnreachable, "connection refused", endpoint, connect_timeout_s=0.1)


def test_port_zero_is_for_hosts_only() -> None:
    """A store at port 0 cannot be connected to."""
    with pytest.raises(ValueError, match="port 0"):
        open_c10d("127.0.0.1:0", "job", is_host=False)


def test_ipv6_endpoints_work() -> None:
    """[::1]:PORT is served and connected to."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    with hosting(endpoint="[::1]:0") as host, closing(open_c10d(str(host.endpoint), "job", is_host=False)) as guest:
        assert str(host.endpoint).startswith("[::1]:")
        guest.publish_node("n1", b"one")
        assert host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}


def test_a_closed_host_frees_its_port() -> None:
    """The next job can be served there at once."""
    endpoint = vacant()
    with hosting(endpoint=endpoint) as first:
        assert str(first.endpoint) == endpoint
    with hosting("next", endpoint) as second:
        assert str(second.endpoint) == endpoint


# -- joining while the store is opened --------------------------------------------------------------------------------


def test_no_other_node_is_let_in_before_the_host_has_joined_its_job() -> None:
    """A node that waits for the host cannot take the run id from it."""
    endpoint = vacant()
    with ThreadPoolExecutor(1) as pool, ExitStack() as cleanup:

        def join_as_host(store: Store) -> None:
            assert store.write_job(b"of the host") == b"of the host"
            with pytest.raises(StoreForeign, match="no elastic-agent hosts"):
                open_c10d(endpoint, "job", is_host=False, connect_timeout_s=0.2)
            opening.append(pool.submit(open_c10d, endpoint, "job", is_host=False, join=join_as_guest))

        def join_as_guest(store: Store) -> None:
            assert store.write_job(b"of the guest") == b"of the host"

        opening: list[Future[C10dStore]] = []
        host = open_c10d(endpoint, "job", is_host=True, join=join_as_host)
        cleanup.callback(host.close_host)
        opening[0].result(BOUND_S).close()


def test_a_node_that_joins_after_the_end_gets_the_outcome_and_begins_nothing(host: C10dStore, guest: C10dStore) -> None:
    """The store is about to end with its host, so no next incarnation begins there."""
    spec = JobSpec("job", ("train.py",))
    record = join.join(host, spec, "id-a", "a")
    assert host.announce_end(1, b"over", FIRST_EPOCH, jobs.with_outcome(record, Outcome.SUCCEEDED), record)
    found = jobs.decode_job(join.join(guest, spec, "id-b", "b"))
    assert (found.incarnation, found.outcome, found.name) == (1, Outcome.SUCCEEDED, "a")
    with pytest.raises(JobMismatch, match=r"started by a at .*, succeeded\)"):
        join.join(guest, replace(spec, command=("other.py",)), "id-c", "c")


def test_a_refused_join_leaves_nothing_behind(host: C10dStore) -> None:
    """The connection, or the server, is closed, and the error is passed on to the caller."""

    def refuse(store: Store) -> None:
        raise JobMismatch("no")

    with pytest.raises(JobMismatch):
        open_c10d(str(host.endpoint), "job", is_host=False, join=refuse)
    endpoint = vacant()
    with pytest.raises(JobMismatch):
        open_c10d(endpoint, "job", is_host=True, join=refuse)
    with hosting("job", endpoint) as second:
        assert str(second.endpoint) == endpoint


@pytest.mark.parametrize("run_id", ["a/b c", "ünï", "%2F", "line\nbreak", "", "\udcff", "x" * 300])
def test_any_run_id_works_and_matches_only_itself(run_id: str) -> None:
    """Run ids come from users and schedulers."""
    with hosting(run_id) as host, closing(open_c10d(str(host.endpoint), run_id, is_host=False)) as guest:
        guest.publish_node("n1", b"one")
        assert host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}
        with pytest.raises(StoreForeign):
            open_c10d(str(host.endpoint), run_id + "x", is_host=False)
