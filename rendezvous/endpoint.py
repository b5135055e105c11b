"""Where the c10d store is served: the endpoint's grammar, and finding out whether that place is this node.

Grammar as torchrun's --rdzv-endpoint (torch 2.13): `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT`; empty is localhost.
Whether HOST is this node is not guessed from names but tried: only its owner can bind an address.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass

from .store import StoreError, StoreUnreachable

DEFAULT_PORT = 29400
"""torchrun's default for the c10d backend."""

Address = tuple[int, tuple[str, int]]
"""Address family, and what `socket.connect` takes (IPv6 carries two more fields, which only socket reads)."""

_NONLOCAL_BIND = ("/proc/sys/net/ipv4/ip_nonlocal_bind", "/proc/sys/net/ipv6/ip_nonlocal_bind")


class PortTaken(StoreError):
    """This node must host, and another process has the port."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a store is served, or is to be."""

    host: str
    """A name or an IP literal, without brackets."""
    port: int
    """0 to 65535; 0 lets the host choose one (--standalone)."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Claim:
    """What came of trying to bind an endpoint."""

    socket: socket.socket | None
    """Bound, not yet listening: a listener that nobody serves would look like a silent foreigner. None: not ours."""
    why: str
    """Why not, for people."""


def parse_endpoint(text: str, default_port: int = DEFAULT_PORT) -> Endpoint:
    """The endpoint that `text` names. Raises ValueError naming what is wrong with it."""
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
    """The TCP addresses of the endpoint, best first. Raises StoreUnreachable if its name resolves to nothing."""
    name: str | bytes = endpoint.host
    if endpoint.host.isascii():
        name = endpoint.host.encode()  # a str makes Python load its tables of Unicode, 0.7 MiB that nothing else needs
    try:
        found = socket.getaddrinfo(name, endpoint.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as why:
        reason = why.strerror if isinstance(why, OSError) else "not a legal host name"
        raise StoreUnreachable(f"{endpoint.host} does not resolve ({reason})") from why
    return [(family, (str(address[0]), int(address[1]), *address[2:])) for family, _, _, _, address in found]


def claim(endpoint: Endpoint, *, forced: bool = False) -> Claim:
    """Try to take the endpoint for this node; `forced`: this node hosts whatever HOST resolves to.

    An IP literal or "localhost" is bound as it is, a name by the wildcard address (both IP versions), as peers may
    know it by another address than this node does. Raises StoreUnreachable if the name does not resolve (yet),
    StoreError if the port is forbidden or, when forced, already taken.
    """
    try:
        addresses = resolve(endpoint)
    except StoreUnreachable:
        if not forced and endpoint.host not in (socket.gethostname(), socket.gethostname().partition(".")[0]):
            raise
        return _claimed(endpoint, _bind_wildcard(endpoint.port), forced)
    for address in addresses:
        bound = _bind(address)
        if bound == errno.EADDRNOTAVAIL:
            continue
        if isinstance(bound, socket.socket) and not _is_exact(endpoint.host):
            bound.close()
            bound = _bind_wildcard(endpoint.port)
        return _claimed(endpoint, bound, forced)
    if forced:  # behind NAT or a virtual address: no interface has it, yet it leads here
        return _claimed(endpoint, _bind_wildcard(endpoint.port), forced)
    return Claim(None, f"{endpoint.host} is no address of this node")


def taken(endpoint: Endpoint) -> PortTaken:
    """What to tell a node that must host and cannot."""
    return PortTaken(
        f"cannot host the store at {endpoint}: another process on this node holds port {endpoint.port}; "
        f"find it with `ss -ltnp sport = :{endpoint.port}` and stop it, or choose another port"
    )


def _claimed(endpoint: Endpoint, bound: socket.socket | int, forced: bool) -> Claim:
    if isinstance(bound, socket.socket):
        return Claim(bound, "")
    if bound == errno.EADDRINUSE:
        if forced:
            raise taken(endpoint)
        return Claim(None, f"port {endpoint.port} of this node is taken, so somebody here serves it already")
    raise StoreError(f"cannot bind {endpoint}: {os.strerror(bound)}; choose another port (above 1023) or address")


def _bind(address: Address) -> socket.socket | int:
    """A bound socket, or the errno that says why not."""
    family, where = address
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return errno.EADDRNOTAVAIL  # a family that this kernel does not have is no address of this node
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
    except OSError as why:
        made.close()
        return why.errno or errno.EADDRNOTAVAIL
    if _binds_anything() and not _reaches_us(family, where[0]):
        made.close()
        return errno.EADDRNOTAVAIL
    return made


def _bind_wildcard(port: int) -> socket.socket | int:
    """Every address of this node, of both IP versions where the kernel has both."""
    try:
        made = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return _bind((socket.AF_INET, ("0.0.0.0", port)))  # noqa: S104 - peers come from anywhere
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(("::", port))
    except OSError as why:
        made.close()
        if why.errno == errno.EADDRNOTAVAIL:  # IPv6 compiled in and switched off
            return _bind((socket.AF_INET, ("0.0.0.0", port)))  # noqa: S104 - peers come from anywhere
        return why.errno or errno.EADDRNOTAVAIL
    return made


def _binds_anything() -> bool:
    """Whether this kernel lets a process bind addresses that are not its own (nodes with floating addresses)."""
    for path in _NONLOCAL_BIND:
        try:
            with open(path, encoding="ascii") as file:
                if file.read().strip() == "1":
                    return True
        except OSError:  # no such switch here, so it is not on
            continue
    return False


def _reaches_us(family: int, host: str) -> bool:
    """Whether a datagram sent to `host` comes back to this node: the kernel delivers its own at once."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return True
    with socket.socket(family, socket.SOCK_DGRAM) as here, socket.socket(family, socket.SOCK_DGRAM) as out:
        try:
            here.bind((host, 0))
            here.settimeout(0.2)
            out.sendto(b"?", here.getsockname())
            return here.recv(1) == b"?"
        except OSError:  # unroutable or lost: not ours
            return False


def _is_exact(host: str) -> bool:
    return host == "localhost" or _is_literal(host)


def _is_literal(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except OSError:
            continue  # not of this family
        return True
    return False


def _is_host(host: str) -> bool:
    return _is_literal(host) or (bool(host) and all(char.isalnum() or char in "._-" for char in host))


def local_address(endpoint: str) -> str:
    """The address of this node on the way to the endpoint, which is how other nodes reach it. Asks the kernel's routes
    only; nothing is sent. A name that means the loopback here (as Debian's /etc/hosts has a host's own name) is
    returned as it is: others reach the store by it. Raises ValueError for a malformed endpoint,
    StoreUnreachable if there is no way."""
    target = parse_endpoint(endpoint)
    for family, address in resolve(target):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(address)
            except OSError:  # no route by this one; the next may have one
                continue
            found = str(probe.getsockname()[0])
        loopback = found.startswith("127.") or found == "::1"
        return target.host if loopback and not _is_exact(target.host) else found
    raise StoreUnreachable(f"no route to {target}; give this node's own address with --local-addr")
