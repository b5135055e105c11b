"""Whether this node hosts the c10d store: it does if it can bind the endpoint.

Not guessed from names but tried: only the owner of an address can bind it.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass

from ..endpoint import Address, Endpoint, is_exact, resolve
from ..store import StoreError, StoreUnreachable

_NONLOCAL_BIND = ("/proc/sys/net/ipv4/ip_nonlocal_bind", "/proc/sys/net/ipv6/ip_nonlocal_bind")


class PortTaken(StoreError):
    """This node must host, and another process has the port."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What came of trying to bind an endpoint."""

    socket: socket.socket | None
    """Bound, not yet listening: a listener that nobody serves would look like a silent foreigner. None: not ours."""
    why: str
    """Why not, for people."""


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
        if isinstance(bound, socket.socket) and not is_exact(endpoint.host):
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
