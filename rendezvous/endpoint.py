"""Endpoints: parsing, name resolution, a port of all addresses, and the address at which other nodes reach this one.

Grammar of torchrun's --rdzv-endpoint (torch 2.13): `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT`; empty is localhost.
"""

from __future__ import annotations

import functools
import socket

from ..proto.frozen import dataclass
from .store import StoreUnreachable

DEFAULT_PORT = 29400
"""torchrun's default for the c10d backend."""

Address = tuple[int, tuple[str, int]]
"""Address family, and what `socket.connect` takes (IPv6 carries two more fields, which only socket reads)."""

_ELSEWHERE: tuple[Address, ...] = ((socket.AF_INET, ("203.0.113.1", 9)), (socket.AF_INET6, ("2001:db8::1", 9)))
"""Addresses for documentation, which no host has: the route to them is the default route."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The host and port at which a store is served."""

    host: str
    """A name or an IP literal, without brackets."""
    port: int
    """0 to 65535; 0 lets the hosting node choose a free one (--standalone)."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, default_port: int = DEFAULT_PORT) -> Endpoint:
    """Parse `text`. Raises ValueError that names what is wrong and how to write it."""
    text = text.strip()
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError(f"endpoint {text!r}: write an IPv6 endpoint as [::1]:{default_port}")
        has_port, port = bool(port), port[1:]
    elif text.count(":") > 1:
        raise ValueError(f"endpoint {text!r}: more than one colon; write HOST:PORT, or [{text}]:PORT for IPv6")
    else:
        host, colon, port = text.partition(":")
        has_port = bool(colon)
    if has_port and not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"endpoint {text!r}: port {port!r} is not a number from 0 to 65535; write HOST:PORT")
    if text and not _is_host(host):
        raise ValueError(f"endpoint {text!r}: {host!r} is neither a host name nor an IP address; write HOST:PORT")
    return Endpoint(host or "localhost", int(port) if has_port else default_port)


def resolve(endpoint: Endpoint) -> list[Address]:
    """The endpoint's TCP addresses, in the resolver's order. Raises StoreUnreachable if the name does not resolve."""
    name = for_resolver(endpoint.host)
    try:
        found = socket.getaddrinfo(name, endpoint.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as why:
        reason = why.strerror if isinstance(why, OSError) else "not a legal host name"
        raise StoreUnreachable(f"{endpoint.host} does not resolve ({reason})") from why
    return [(family, (str(address[0]), int(address[1]), *address[2:])) for family, _, _, _, address in found]


def for_resolver(host: str) -> str | bytes:
    """A name or address as getaddrinfo is to get it: for a str Python loads Unicode tables for 2 ms, 0.7 MiB that
    nothing else needs."""
    return host.encode() if host.isascii() else host


def is_exact(host: str) -> bool:
    """Whether the host is bound as given: it is "localhost" or an IP literal, not a name."""
    return host == "localhost" or _is_literal(host)


def _is_literal(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except OSError:
            continue  # not an address of this family
        return True
    return False


def _is_host(host: str) -> bool:
    return _is_literal(host) or (bool(host) and all(char.isalnum() or char in "._-" for char in host))


def is_loopback(host: str) -> bool:
    """Whether this is a loopback address or "localhost": on every host, it means that host itself."""
    host = host.removeprefix("::ffff:")
    return host in ("localhost", "::1") or (host.startswith("127.") and _is_literal(host))


def names_this_host(host: str) -> bool:
    """Whether torchrun would take the name or IP literal for this host's (torch 2.13, `_matches_machine_hostname`),
    also if no interface here has its address: it is the host's name, short or full, or an address of that name."""
    own = socket.gethostname()
    if host in (own, own.partition(".")[0]):
        return True
    try:
        return host in _names_and_addresses(own.encode("utf-8", "surrogateescape"))
    except (OSError, UnicodeError):
        return False  # this host's name does not resolve


@functools.cache  # a name is looked up on the network, and a node that waits for the store asks twice a second
def _names_and_addresses(own: bytes) -> frozenset[str]:
    """The canonical name and the addresses of this host's name."""
    found = socket.getaddrinfo(own, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
    return frozenset(filter(None, (text for _, _, _, name, address in found for text in (name, str(address[0])))))


def local_address(endpoint: str) -> str:
    """This node's source address on the route to the endpoint. Reads the kernel's routes; sends nothing. If that is a
    loopback address and the endpoint is this host's own name (in Debian's /etc/hosts it is 127.0.1.1), the name, by
    which the other nodes reach the store.

    Raises ValueError for a malformed endpoint, StoreUnreachable if there is no route."""
    target = parse_endpoint(endpoint)
    found = next(filter(None, map(_source, resolve(target))), None)
    if found is None:
        raise StoreUnreachable(f"no route to {target}; give this node's own address with --local-addr")
    return target.host if is_loopback(found) and not is_exact(target.host) and names_this_host(target.host) else found


def outward_address() -> str | None:
    """The address from which this host reaches others: on its default route, or else one that its name resolves to.
    None if it has but loopback addresses. Sends nothing."""
    for address in _ELSEWHERE:
        if (found := _source(address)) is not None and not is_loopback(found):
            return found
    try:
        named = resolve(Endpoint(socket.gethostname(), 0))
    except StoreUnreachable:
        return None
    return next((where[0] for _, where in named if not is_loopback(where[0])), None)


def _source(address: Address) -> str | None:
    """The source address on the route to this address; None if there is no route."""
    family, where = address
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:  # no route, or this kernel lacks the address family
        return None


def bound_anywhere() -> socket.socket:
    """A socket on a free port of all addresses of this host, of both families where it has both. It does not listen; no
    other process gets the port. Raises OSError."""
    try:
        return _bound(socket.AF_INET6, "::")
    except OSError:  # this kernel has no IPv6, or it is switched off
        return _bound(socket.AF_INET, "")


def _bound(family: int, host: str) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((host, 0))
    except OSError:
        made.close()
        raise
    return made


def probe_peer(connection: socket.socket, idle_s: int, every_s: int, probes: int) -> None:
    """Have the kernel ask the peer for a sign of life after `idle_s` of silence, again every `every_s`, and break the
    connection where so many probes stay without: at once where the peer's host has booted since. Connections inherit it
    from the socket that listens (tcp(7), SO_KEEPALIVE)."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
