"""The c10d store and torch: the same protocol, the servers of several torch versions, effects of importing torch."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.rendezvous.c10d import opening, server
from elastic_agent.rendezvous.c10d.claim import PortTaken, claim
from elastic_agent.rendezvous.c10d.opening import open_c10d
from elastic_agent.rendezvous.c10d.store import C10dStore
from elastic_agent.rendezvous.endpoint import Endpoint, parse_endpoint
from elastic_agent.rendezvous.store import StoreUnreachable
from support.c10d_stores import BOUND_S, hosting, listening, raw_client, vacant


def test_our_client_and_torchs_see_the_same_keys(host: C10dStore) -> None:
    """Both use the same protocol, so torch's own tools can read the store."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without saying so

    # A long time-out: torch's client may make a reverse look-up.
    theirs = TCPStore(host.endpoint.host, host.endpoint.port, timeout=timedelta(seconds=30), wait_for_workers=False)
    with closing(raw_client(host)) as ours:
        ours.put("key", b"\x00value")
        assert theirs.get("key") == b"\x00value"
        theirs.set("other", "theirs")
        assert ours.get(["other", "none"]) == {"other": b"theirs"}
        assert (theirs.add("n", 5), ours.add("n", 2), theirs.get("n")) == (5, 7, b"7")
        assert ours.create("n", b"0") == b"7"
        ours.delete(["n", "none"])
        assert ours.have(["n", "key"]) == [False, True]


@pytest.fixture(params=["2.13", "2.13 with USE_LIBUV=0", "2.7.1"])
def torch_setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The torch that is installed, as it is, with its switch for the older server, and taken for an older version."""
    import torch
    from torch.torch_version import TorchVersion

    monkeypatch.delenv("USE_LIBUV", raising=False)
    if request.param.endswith("USE_LIBUV=0"):
        monkeypatch.setenv("USE_LIBUV", "0")
    if request.param == "2.7.1":
        monkeypatch.setattr(torch, "__version__", TorchVersion("2.7.1"))
    return str(request.param)


@pytest.mark.usefixtures("torch_setting")
def test_a_stranger_that_sends_one_byte_and_waits_stops_nobody() -> None:
    """torch's older server reads a request to its end before it looks at another connection; ours is never that one."""
    with hosting() as host, socket.create_connection((host.endpoint.host, host.endpoint.port)) as stranger:
        stranger.sendall(b"\x00")  # the beginning of the first request, VALIDATE
        with closing(open_c10d(str(host.endpoint), "job", is_host=False, connect_timeout_s=BOUND_S)) as guest:
            guest.publish_node("n1", b"one")
            assert host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}
            assert guest.beat("n1", 1) == 0


@pytest.mark.usefixtures("torch_setting")
def test_every_torch_serves_with_libuv() -> None:
    """Before 2.8 it listens itself, on every address, as its libuv server takes no listening socket."""
    import torch

    endpoint = vacant()
    where = parse_endpoint(endpoint)
    found = claim(where).socket
    assert found is not None
    made: Any = server.serve(found, where, forced=True)
    assert made._store.libuvBackend
    exactly = server.takes_listener(torch.__version__)
    with pytest.raises(ConnectionRefusedError) if exactly else nullcontext():
        socket.create_connection(("127.0.0.3", where.port)).close()
    made.close()


@pytest.mark.parametrize(("forced", "raises"), [(True, PortTaken), (False, None)])
def test_an_old_torch_finds_its_port_taken(
    forced: bool, raises: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that began to listen after this one had bound it."""
    import torch
    from torch.torch_version import TorchVersion

    monkeypatch.setattr(torch, "__version__", TorchVersion("2.4.1+cu121"))
    endpoint = vacant()
    where = parse_endpoint(endpoint)
    found = claim(where).socket
    assert found is not None
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((where.host, where.port))
        other.listen()
        with pytest.raises(raises, match="another process") if raises else nullcontext():
            assert server.serve(found, where, forced=forced) is None


@contextmanager
def connection_from(host: str) -> Iterator[int]:
    """The port that a connection has at an address of this host."""
    with listening() as (peer, _), socket.create_connection(peer.getsockname(), source_address=(host, 0)) as made:
        yield made.getsockname()[1]


@pytest.mark.parametrize("is_host", [True, None])
def test_an_old_torch_needs_its_port_on_every_address(is_host: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel chooses a port for one address that a connection has at another. With port 0 the next one is tried; a
    port that was asked for is taken."""
    import torch
    from torch.torch_version import TorchVersion

    monkeypatch.setattr(torch, "__version__", TorchVersion("2.7.1"))
    with connection_from("127.0.0.2") as taken:
        claims = iter([taken])
        monkeypatch.setattr(
            opening, "claim", lambda where, **how: claim(Endpoint(where.host, next(claims, where.port)), **how)
        )
        with closing(open_c10d("127.0.0.1:0", "job", is_host=is_host)) as host:
            assert host.endpoint.port != taken
            host.close_host()
        with pytest.raises(PortTaken if is_host else StoreUnreachable, match="another process on this node"):
            open_c10d(f"127.0.0.1:{taken}", "job", is_host=is_host, connect_timeout_s=0.1)


@pytest.mark.parametrize(
    ("version", "takes"),
    [("2.4.1+cu121", False), ("2.7.1", False), ("2.8.0", True), ("2.10.0a0+git1", True), ("2.13.0+cpu", True)],
)
def test_which_torch_takes_a_listening_socket(version: str, takes: bool) -> None:
    """Seen with 2.4.1 and 2.5.0, which do not, and with 2.8.0, which does."""
    assert server.takes_listener(version) is takes


def test_connections_of_hosts_that_are_gone_are_closed(host: C10dStore) -> None:
    """The server never sends to a node that only writes, so without probes the connection of one that lost its power
    would hold a descriptor for ever. What accepted sockets inherit is set on the listening one."""
    import torch

    if not server.takes_listener(torch.__version__):
        pytest.skip("this torch listens itself")
    with closing(raw_client(host)) as client:
        accepted = _peer_of(client._socket.getsockname())
        assert accepted is not None
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            for option, value in (("TCP_KEEPIDLE", server.PEER_IDLE_S), ("TCP_KEEPCNT", server.PEER_PROBES)):
                assert accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, option)) == value


def _peer_of(address: tuple[str, int]) -> socket.socket | None:
    """The socket of this process whose peer has this address."""
    for link in Path("/proc/self/fd").iterdir():
        if not link.is_socket():
            continue
        found = socket.socket(fileno=os.dup(int(link.name)))
        with suppress(OSError):  # it listens, or is of another kind
            if found.getpeername() == address:
                return found
        found.close()
    return None


def test_a_client_does_not_import_torch(host: C10dStore) -> None:
    """Only the node that serves imports it."""
    code = (
        "import sys\n"
        "from elastic_agent.rendezvous.c10d.opening import open_c10d\n"
        f"open_c10d('{host.endpoint}', 'job', is_host=False).close()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_connections_cause_no_reverse_look_up(host: C10dStore) -> None:
    """The server asks no name server about its clients; one that does not answer would block it for seconds."""
    slowest = 0.0
    for _ in range(60):
        started = time.monotonic()
        raw_client(host).close()
        slowest = max(slowest, time.monotonic() - started)
    assert slowest < 4.0, "a name server that does not answer is asked for 5 s and more"


def test_hosting_leaves_no_trace_in_the_environment(host: C10dStore) -> None:
    """Workers inherit neither torch's log level nor anything else that the agent sets for itself; garbage is collected
    as before."""
    inherited = subprocess.run(["env"], check=True, capture_output=True, text=True).stdout
    assert "TORCH_CPP_LOG_LEVEL" not in os.environ
    assert "TORCH_CPP_LOG_LEVEL" not in inherited
    assert gc.isenabled()
    assert host.hosted


def test_the_error_of_a_host_without_torch() -> None:
    """The line names the endpoint and what to install; a program that embeds the agent goes on collecting garbage."""
    code = (
        "import gc, sys\n"
        "sys.modules['torch'] = None\n"
        "from elastic_agent.rendezvous.c10d.opening import open_c10d\n"
        "from elastic_agent.rendezvous.store import StoreError\n"
        "try:\n"
        "    open_c10d('127.0.0.1:0', 'job')\n"
        "except StoreError as why:\n"
        "    print(why, gc.isenabled())\n"
    )
    error = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30).stdout
    assert error.endswith(" True\n")
    assert "needs torch" in error
    assert "install torch" in error
