"""A c10d store whose host closes, restarts, is killed or freezes."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from elastic_agent.rendezvous.c10d.client import TcpStoreClient, connect
from elastic_agent.rendezvous.c10d.keys import Keys
from elastic_agent.rendezvous.c10d.opening import open_c10d
from elastic_agent.rendezvous.c10d.store import C10dStore
from elastic_agent.rendezvous.c10d.wire import MAX_VALUE_BYTES
from elastic_agent.rendezvous.endpoint import parse_endpoint
from elastic_agent.rendezvous.store import FIRST_EPOCH, StoreForeign, StoreUnreachable
from support.c10d_stores import BOUND_S, elsewhere, hosting, listening, raw_client, vacant
from support.procfs import slowed


def test_every_session_breaks_when_the_host_closes(host: C10dStore, guest: C10dStore) -> None:
    """A call that blocks too: no thread waits for a store that has ended."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(guest.wait_round, 0, 60.0)
        host.close_host()
        with pytest.raises(StoreUnreachable, match=str(host.endpoint)):
            waiting.result(BOUND_S)
    with pytest.raises(StoreUnreachable):
        guest.session()


def test_the_port_is_free_as_soon_as_its_host_has_closed() -> None:
    """Whether or not Python looks for garbage meanwhile: what torch keeps of its import held the server, so that a host
    that gave up its store found its own port taken, or joined itself."""
    script = (
        "import gc, sys; gc.disable()\n"
        "from elastic_agent.rendezvous.c10d.opening import open_c10d\n"
        "for _ in range(2):\n"
        "    open_c10d(sys.argv[1], 'job', is_host=True).close_host()\n"
    )
    command = [sys.executable, "-c", script, vacant()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stderr


def test_a_store_restarted_empty_is_not_taken_for_the_old_one() -> None:
    """Its versions begin at 1 again, so a node of the old one would wait for ever."""
    endpoint = vacant()
    with hosting(endpoint=endpoint):
        guest = open_c10d(endpoint, "job", is_host=False)
    with closing(guest), hosting("job", endpoint), pytest.raises(StoreForeign, match="was restarted"):
        guest.session()


def test_a_killed_host_is_noticed_at_once() -> None:
    """SIGKILL of the serving agent ends a blocked call, and every later one, with StoreUnreachable."""
    with (
        elsewhere() as (process, endpoint),
        closing(open_c10d(endpoint, "job")) as guest,
        ThreadPoolExecutor(1) as pool,
    ):
        assert not guest.hosted
        waiting = pool.submit(guest.wait_round, 0, 60.0)
        process.kill()
        started = time.monotonic()
        with pytest.raises(StoreUnreachable):
            waiting.result(BOUND_S)
        with pytest.raises(StoreUnreachable):
            guest.beat("n1", 1)
        assert time.monotonic() - started < slowed(3.0)


def test_calls_on_a_frozen_host_keep_their_deadline() -> None:
    """torch's own client would block for as long as the server is stopped."""
    with elsewhere() as (process, endpoint), closing(open_c10d(endpoint, "job", call_timeout_s=1.0)) as guest:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # the signal takes effect only after kill() has returned
        for call in (lambda: guest.beat("n1", 1), guest.session, lambda: guest.wait_round(0, 0.1)):
            started = time.monotonic()
            with pytest.raises(StoreUnreachable):
                call()
            assert time.monotonic() - started < slowed(5.0)
        os.kill(process.pid, signal.SIGCONT)
        with closing(guest.session()) as again:
            assert again.beat("n1", 2) == 0


# -- connections that were given up ------------------------------------------------------------------------------------


def test_bytes_of_an_abandoned_connection_are_discarded() -> None:
    """Else the kernel would send them for minutes, and an old record could arrive after a newer one."""
    with listening() as (server, endpoint), ThreadPoolExecutor(1) as pool:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that most bytes stay with the sender
        where = parse_endpoint(endpoint)
        opening = pool.submit(connect, (socket.AF_INET, (where.host, where.port)), endpoint, BOUND_S, 0.2)
        peer = server.accept()[0]
        with peer:
            peer.recv(6, socket.MSG_WAITALL)
            peer.sendall(struct.pack("=q", 3))  # the handshake asks for the number of keys
            client = opening.result(BOUND_S)
            with pytest.raises(StoreUnreachable):
                client.put("key", b"x" * MAX_VALUE_BYTES)
            with pytest.raises(ConnectionResetError):
                read_to_the_end(peer)


def read_to_the_end(peer: socket.socket) -> None:
    """What has arrived can still be read, and after that the reset, not the end of what was sent."""
    while peer.recv(65536):
        pass


def test_a_record_over_which_late_bytes_have_written_is_written_again(host: C10dStore, guest: C10dStore) -> None:
    """A request that was sent on an abandoned connection may be applied after those of the next one. With its next
    heartbeat the node sees it."""
    guest.publish_node("n1", b"first")
    guest.publish_node("n1", b"second")
    cursor, _ = host.wait_nodes(0, BOUND_S)
    with closing(raw_client(host)) as late:
        late.put(Keys("job").node("n1"), b"first")
    guest.beat("n1", 1)
    assert host.wait_nodes(cursor, BOUND_S) == (cursor + 1, {"n1": b"second"})
    guest.beat("n1", 2)
    assert host.wait_nodes(cursor + 1, 0.0) == (cursor + 1, {})


def test_a_further_session_learns_the_newest_announcement_with_its_first_request(
    host: C10dStore, guest: C10dStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a node that joins waits for the next one after one request, and not after four."""
    sent: list[bytes] = []
    send = TcpStoreClient._send

    def note_and_send(client: TcpStoreClient, request: bytes) -> None:
        sent.append(request)
        send(client, request)

    guest.beat("n1", 1)
    monkeypatch.setattr(TcpStoreClient, "_send", note_and_send)
    with closing(guest.session()) as before:
        assert before.wait_round(0, 0.01) is None
    assert len(sent) == len(["opened", "waited for it", "gave up", "looked once more"])
    host.announce(1, b"first", FIRST_EPOCH)
    guest.beat("n1", 2)
    sent.clear()
    with closing(guest.session()) as behind:
        assert behind.wait_round(0, 0.0) == (1, b"first")
        assert len(sent) == 1
        host.announce(2, b"second", FIRST_EPOCH)
        assert behind.wait_round(1, BOUND_S) == (2, b"second")
    with closing(guest.session()) as late:  # the heartbeat has not named the second yet
        assert late.wait_round(1, 0.0) == (2, b"second")


def test_no_late_request_takes_the_newest_version_back(
    host: C10dStore, guest: C10dStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would look as if another program had written it, and end the job: so it is written only over the version
    before it."""
    sent: list[bytes] = []
    client = host._client
    send = client._send

    def note_and_send(request: bytes) -> None:
        sent.append(client._queued + request)
        send(request)

    monkeypatch.setattr(client, "_send", note_and_send)
    for version in (1, 2):
        host.announce(version, b"round", FIRST_EPOCH)
    with closing(raw_client(host)) as late:
        for request in sent[: len(sent) // 2]:  # all that announced version 1, once more
            late._socket.sendall(request)
        late.have([])
        late.have(["any"])
    guest.beat("n1", 1)
    assert guest.wait_round(0, BOUND_S) == (2, b"round")
