"""Parsing endpoints, and deciding by binding whether this node hosts the store."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.agent.spec import RendezvousSpec
from elastic_agent.launcher.store_link import address
from elastic_agent.rendezvous import endpoint as rendezvous_endpoint
from elastic_agent.rendezvous.c10d import claim as c10d_claim
from elastic_agent.rendezvous.c10d.claim import claim
from elastic_agent.rendezvous.endpoint import Endpoint, is_loopback, outward_address, parse_endpoint
from elastic_agent.rendezvous.store import StoreError, StoreUnreachable
from support.network import free_port

VIRTUAL = "192.0.2.77"
"""An address that no interface here has: of another node, a virtual one, or one before NAT."""


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("", "localhost", 29400),
        ("node-1", "node-1", 29400),
        ("node_1.example.org:80", "node_1.example.org", 80),
        (" 10.0.0.1:0 ", "10.0.0.1", 0),
        ("[::1]", "::1", 29400),
        ("[::1]:1234", "::1", 1234),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("localhost:65535", "localhost", 65535),
    ],
)
def test_endpoints_are_parsed_as_torchrun_parses_them(text: str, host: str, port: int) -> None:
    """HOST, HOST:PORT, [V6] and [V6]:PORT; the port is 29400 if none is given."""
    assert parse_endpoint(text) == Endpoint(host, port)


@pytest.mark.parametrize(
    "text",
    ["::1", "a:b", "a:", "a:-1", "a:65536", "a:²", "http://a:1", "a b:1", "[::1", "[::1]1", "[]:1", ":80", "a/b"],
)
def test_a_malformed_endpoint_is_refused_with_advice(text: str) -> None:
    """The error names the text and says how to write it."""
    with pytest.raises(ValueError, match=r"write ") as caught:
        parse_endpoint(text)
    assert repr(text) in str(caught.value)


@given(st.text(max_size=30))
def test_no_text_raises_anything_but_value_error(text: str) -> None:
    """Any text is an endpoint or raises ValueError, and an endpoint written as text parses to itself."""
    try:
        found = parse_endpoint(text)
    except ValueError:
        return
    assert parse_endpoint(str(found)) == found


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of 127.0.0.1 on which a socket listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_literal_of_this_node_is_bound_exactly() -> None:
    """A loopback endpoint is not reachable from the network."""
    port = free_port()
    found = claim(Endpoint("127.0.0.1", port)).socket
    assert found is not None
    with closing(found):
        assert found.getsockname() == ("127.0.0.1", port)


def test_localhost_is_bound_to_loopback_only() -> None:
    """Other nodes cannot reach this node as `localhost`."""
    found = claim(Endpoint("localhost", 0)).socket
    assert found is not None
    with closing(found):
        assert found.getsockname()[0] in ("127.0.0.1", "::1")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2"])
def test_a_loopback_endpoint_of_a_shared_job_is_bound_on_every_address(host: str) -> None:
    """Node 0 may call itself so, while other hosts come by one of its addresses."""
    found = claim(Endpoint(host, free_port()), shared=True).socket
    assert found is not None
    with closing(found):
        assert found.getsockname()[0] in ("::", "0.0.0.0")


def test_a_shared_loopback_endpoint_is_bound_exactly_if_another_address_has_its_port_taken() -> None:
    """Else agents on this host, which need no other address, could not use a port that is free for them."""
    port = free_port()
    with socket.create_server(("127.0.0.2", port)):
        found = claim(Endpoint("127.0.0.1", port), shared=True).socket
        assert found is not None
        with closing(found):
            assert found.getsockname() == ("127.0.0.1", port)


def test_a_name_of_this_node_is_bound_on_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers may resolve the name to another address of this node than the node itself does."""
    monkeypatch.setattr(c10d_claim, "resolve", lambda _: [(socket.AF_INET, ("127.0.0.1", 0))])
    found = claim(Endpoint("this-node", 0)).socket
    assert found is not None
    with closing(found):
        assert found.getsockname()[0] in ("::", "0.0.0.0")


HERE, HERE_TOO, THERE = (
    (socket.AF_INET, ("127.0.0.1", 0)),
    (socket.AF_INET6, ("::1", 0)),
    (socket.AF_INET, (VIRTUAL, 0)),
)


@pytest.mark.parametrize(
    ("addresses", "elsewhere"),
    [
        ([HERE], ()),
        ([HERE_TOO, HERE], ()),
        ([HERE, (socket.AF_INET, ("127.0.0.2", 0))], ()),
        ([HERE, (socket.AF_INET6, ("2001:db8::1", 0))], ()),
        ([THERE, HERE], (VIRTUAL,)),
        ([HERE, HERE_TOO, THERE], (VIRTUAL,)),
    ],
    ids=["one", "of both versions", "two of this host", "one before NAT of the other version", "two nodes", "and IPv6"],
)
def test_who_claims_a_name_of_several_nodes_knows_of_the_others(
    addresses: list[tuple[int, tuple[str, int]]], elsewhere: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would claim it, and host a job of its own. Addresses of one host, also of the other IP version, are
    no other nodes."""
    monkeypatch.setattr(c10d_claim, "resolve", lambda _: addresses)
    made = claim(Endpoint("train.svc", 0))
    assert made.socket is not None
    made.socket.close()
    assert made.elsewhere == elsewhere


def test_an_address_of_another_node_is_not_claimed() -> None:
    """192.0.2.1 is reserved for documentation, so no host has it."""
    found = claim(Endpoint("192.0.2.1", 29400))
    assert (found.socket, found.taken) == (None, False)


def test_an_address_of_another_node_is_not_claimed_where_any_can_be_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On nodes with floating addresses (ip_nonlocal_bind) binding proves nothing, so a datagram must come back."""
    switch = tmp_path / "ip_nonlocal_bind"
    switch.write_text("1\n")
    monkeypatch.setattr(c10d_claim, "_NONLOCAL_BIND", (str(switch),))
    assert claim(Endpoint("192.0.2.1", 29400)).socket is None
    found = claim(Endpoint("127.0.0.1", 0)).socket
    assert found is not None
    found.close()


def test_a_taken_port_means_that_another_process_serves_already(taken_port: int) -> None:
    """The second agent on a host becomes a client."""
    found = claim(Endpoint("127.0.0.1", taken_port))
    assert found.socket is None
    assert found.taken


def test_the_wildcard_of_ipv6_takes_ipv4_too() -> None:
    """torch's server makes its own first connection to 127.0.0.1 there."""
    found = claim(Endpoint("::", 0)).socket
    assert found is not None
    with closing(found):
        assert found.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 0


def test_the_error_of_a_node_that_must_host_and_cannot_bind(taken_port: int) -> None:
    """It names the port and the command that finds the process that has bound it."""
    with pytest.raises(StoreError, match=rf"port {taken_port}.*ss -tanp"):
        claim(Endpoint("127.0.0.1", taken_port), forced=True)


def test_a_forced_host_binds_every_address_if_no_interface_has_the_endpoints() -> None:
    """Behind NAT the endpoint is not an address of the node that serves it."""
    found = claim(Endpoint("192.0.2.1", 0), forced=True).socket
    assert found is not None
    with closing(found):
        assert found.getsockname()[0] in ("::", "0.0.0.0")


def test_a_port_left_in_time_wait_is_claimed_again() -> None:
    """A job may start on the port of the one that has just ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # the server's side closes first and so keeps the port in TIME_WAIT
            assert client.recv(1) == b""
    found = claim(Endpoint("127.0.0.1", port)).socket
    assert found is not None
    found.close()


def test_an_ipv6_literal_of_this_node_is_claimed() -> None:
    """[::1] is bound like 127.0.0.1."""
    try:
        port = free_port("::1")
    except OSError as why:
        if why.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            pytest.skip("this host has no IPv6 loopback")
        raise
    found = claim(Endpoint("::1", port)).socket
    assert found is not None
    with closing(found):
        assert found.getsockname()[:2] == ("::1", port)


def test_a_name_that_does_not_resolve_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its DNS record may be added later, so the agent waits and tries again."""

    def fail(*_args: object, **_kwargs: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(StoreUnreachable, match=r"nowhere does not resolve \(Name or service not known\)"):
        claim(Endpoint("nowhere", 29400))


OWN = "node-0.cluster.example"


@pytest.mark.parametrize("endpoint", [OWN, "node-0", "alias.example", VIRTUAL])
def test_an_endpoint_that_is_this_hosts_name_is_hosted_here_whatever_it_resolves_to(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun has it: the host's name, its short and its canonical name, and the address that its name has."""
    resolver(monkeypatch, {OWN: VIRTUAL, "node-0": VIRTUAL, "alias.example": VIRTUAL, VIRTUAL: VIRTUAL})
    monkeypatch.setattr(socket, "gethostname", lambda: OWN)
    found = claim(Endpoint(endpoint, 0)).socket
    assert found is not None
    with closing(found):
        assert found.getsockname()[0] in ("::", "0.0.0.0")


def test_an_endpoint_that_is_another_hosts_name_is_not_hosted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by its name nor by its address."""
    resolver(monkeypatch, {OWN: VIRTUAL, "node-1": "192.0.2.78"})
    monkeypatch.setattr(socket, "gethostname", lambda: OWN)
    found = claim(Endpoint("node-1", 0))
    assert (found.socket, found.taken) == (None, False)


def resolver(monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
    """Names have these addresses, and no others exist."""

    def look_up(host: str | bytes, port: int | None, *_args: object, **_flags: object) -> list[object]:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, name, (names[name], port or 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    uncached = rendezvous_endpoint._names_and_addresses.__wrapped__
    monkeypatch.setattr(rendezvous_endpoint, "_names_and_addresses", uncached)


def test_a_node_hosts_under_its_own_name_before_that_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's DNS name often resolves only once the pod is ready."""

    def fail(*_args: object, **_kwargs: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-0.job.svc")
    for name in ("pod-0", "pod-0.job.svc"):
        found = claim(Endpoint(name, 0)).socket
        assert found is not None
        found.close()


# -- this node's own address -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False), ("127.example", False), ("2001:db8::1", False), ("0.0.0.0", False), ("node-0", False),
    ],
)  # fmt: skip
def test_which_addresses_mean_this_host_on_every_host(host: str, loopback: bool) -> None:
    """All of 127.0.0.0/8, ::1 and `localhost`."""
    assert is_loopback(host) is loopback


def spec(endpoint: str, **fields: object) -> RendezvousSpec:
    return replace(RendezvousSpec("c10d", endpoint, max_nodes=2), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:29400", "localhost", "0.0.0.0:29400", "[::1]:1", "127.0.0.1:1,127.0.0.2:2"]
)
def test_a_loopback_address_is_not_offered_to_other_nodes(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port forwarder, or a proxy beside the agent, makes a store look as if it were here; and node 0 may name itself
    so. Others get the address of the default route, or else one of this host's name."""
    monkeypatch.setattr(rendezvous_endpoint, "_ELSEWHERE", [(socket.AF_INET, ("127.0.0.1", 9))])
    here = {name: name for name in ("127.0.0.1", "127.0.0.2", "0.0.0.0")}
    resolver(monkeypatch, {**here, "localhost": "127.0.0.1", "::1": "127.0.0.1", OWN: "10.1.2.3"})
    monkeypatch.setattr(socket, "gethostname", lambda: OWN)
    assert address(spec(endpoint)) == "10.1.2.3"
    assert address(spec(endpoint, max_nodes=1)).startswith("127.")
    assert address(spec(endpoint, local_addr="127.0.0.9")) == "127.0.0.9"


def test_the_address_of_the_default_route_comes_first() -> None:
    """Wherever there is one; nothing is sent."""
    found = outward_address()
    if found is None:
        pytest.skip("this host has loopback addresses only")
    assert not is_loopback(found)
    assert address(spec("127.0.0.1:29400")) == found
    with socket.create_server((found, 0), family=socket.AF_INET6 if ":" in found else socket.AF_INET):
        pass


def test_a_host_with_loopback_addresses_only_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose nodes are all here works; others need --local-addr."""
    monkeypatch.setattr(rendezvous_endpoint, "_ELSEWHERE", [])
    resolver(monkeypatch, {"localhost": "127.0.0.1", OWN: "127.0.1.1"})
    monkeypatch.setattr(socket, "gethostname", lambda: OWN)
    told: list[str] = []
    assert address(spec("localhost:29400"), lambda text, routine: told.append(text)) == "127.0.0.1"
    assert len(told) == 1
    assert "--local-addr" in told[0]


@pytest.mark.parametrize(("endpoint", "expected"), [(OWN, OWN), ("sidecar.example", "10.1.2.3")])
def test_a_name_with_a_loopback_address_is_offered_if_it_is_this_hosts_own(
    endpoint: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Debian's /etc/hosts the host's name has the address 127.0.1.1; the other nodes resolve it to a true one."""
    monkeypatch.setattr("elastic_agent.launcher.store_link.outward_address", lambda: "10.1.2.3")
    resolver(monkeypatch, {OWN: "127.0.1.1", "sidecar.example": "127.0.0.1"})
    monkeypatch.setattr(socket, "gethostname", lambda: OWN)
    assert address(spec(endpoint)) == expected
