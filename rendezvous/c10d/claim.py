"""Whether this node hosts the c10d store: it does if it can bind the endpoint.

Binding decides, because only the node that has an address can bind it. Only where no interface here has the address of
the endpoint, because it is a virtual one or traffic arrives through NAT, its name decides, as in torchrun.
"""

from __future__ import annotations

import errno
import os
import socket

from ...proto.frozen import dataclass
from ..endpoint import Address, Endpoint, is_exact, is_loopback, names_this_host, resolve
from ..store import StoreError, StoreUnreachable

_NONLOCAL_BIND = ("/proc/sys/net/ipv4/ip_nonlocal_bind", "/proc/sys/net/ipv6/ip_nonlocal_bind")


class PortTaken(StoreError):
    """This node must host, but another process has bound the port."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of trying to bind an endpoint."""

    socket: socket.socket | None
    """Bound, not yet listening: clients of a listener without a server would connect and time out. None: not bound."""
    taken: bool = False
    """Whether that is because another process of this node has the port."""
    elsewhere: tuple[str, ...] = ()
    """Where it was bound by an address of the endpoint: others of that IP version that no interface here has. They may
    be those of other nodes, which would bind the endpoint too, or before NAT: that cannot be told from here."""


def claim(endpoint: Endpoint, *, forced: bool = False, shared: bool = False) -> Claim:
    """Try to bind the endpoint on this node. `forced`: this node hosts, whatever HOST resolves to. `shared`: nodes on
    other hosts may join.

    A name is bound on the wildcard address (both IP versions), because other nodes may resolve it to another address of
    this node; and so are "localhost" and loopback addresses, if `shared`, because only this host is reached by them.
    Other IP literals are bound as given, but "::" is the wildcard of both versions, too.

    Raises StoreUnreachable if the name does not resolve (yet), StoreError if the port is forbidden, PortTaken if
    `forced` and another process has bound it.
    """
    try:
        addresses = resolve(endpoint)
    except StoreUnreachable:
        if not forced and not names_this_host(endpoint.host):
            raise
        return _claimed(endpoint, bind_wildcard(endpoint.port), forced)
    for address in addresses:
        bound = _bind(address)
        if bound == errno.EADDRNOTAVAIL:
            continue
        if isinstance(bound, socket.socket):
            bound = _widened(bound, endpoint, shared and is_loopback(address[1][0]))
        made = _claimed(endpoint, bound, forced)
        return made if made.socket is None else Claim(made.socket, elsewhere=_elsewhere(address[0], addresses))
    # A virtual address, or NAT: no interface here has the address, but its traffic arrives here.
    if forced or any(names_this_host(name) for name in (endpoint.host, *(address[1][0] for address in addresses))):
        return _claimed(endpoint, bind_wildcard(endpoint.port), forced)
    return Claim(None)


def _elsewhere(family: int, addresses: list[Address]) -> tuple[str, ...]:
    """Those of this IP version that no interface here has. Of the other version one host often has one more address,
    which says nothing."""
    found = []
    for version, where in addresses:
        bound = _bind((version, (where[0], 0, *where[2:]))) if version == family else None
        if isinstance(bound, socket.socket):
            bound.close()
        elif bound == errno.EADDRNOTAVAIL:
            found.append(where[0])
    return tuple(found)


def _widened(bound: socket.socket, endpoint: Endpoint, loopback: bool) -> socket.socket | int:
    """A socket on the wildcard address in the place of this one, unless the endpoint is bound as given; or an errno.
    `loopback`: the socket must be reachable by an address other than its own."""
    given = is_exact(endpoint.host) and bound.getsockname()[0] != "::"
    if given and not loopback:
        return bound
    wide = bind_wildcard(endpoint.port)  # both sockets allow others on their port, as long as none of them listens
    if wide == errno.EADDRINUSE and given:
        return bound  # another process listens on that port at another address of this host
    bound.close()
    return wide


def several_hosts(endpoint: Endpoint, made: Claim) -> str:
    """The warning of a node that hosts at a name which may be that of several nodes."""
    return (
        f"{endpoint.host} is a name of this node, which hosts the store, and of {', '.join(made.elsewhere)}: if these "
        "are other nodes, each of them hosts a job of its own; name one node in --rdzv-endpoint, or list the nodes "
        "with commas between"
    )


def taken_here(endpoint: Endpoint) -> str:
    """Why a node that has the address of the endpoint does not host, for messages."""
    return (
        f"another process on this node holds port {endpoint.port}, and should be the agent that is about to serve it "
        f"(`ss -tanp sport = :{endpoint.port}` shows which)"
    )


def gave_up(where: Endpoint, after_s: float, reason: str) -> StoreUnreachable:
    """The error of a node that has waited in vain for another one to serve the store."""
    return StoreUnreachable(
        f"gave up on the store at {where} after {after_s:g} s: {reason}; check that elastic-agent runs on that node "
        "and that --rdzv-endpoint, or --master-addr, names it"
    )


def port_taken(endpoint: Endpoint) -> PortTaken:
    """The error of a node that must host the store and cannot bind the port."""
    return PortTaken(
        f"cannot host the store at {endpoint}: another process on this node holds port {endpoint.port}; "
        f"find it with `ss -tanp sport = :{endpoint.port}` and stop it, or choose another port"
    )


def _claimed(endpoint: Endpoint, bound: socket.socket | int, forced: bool) -> Claim:
    if isinstance(bound, socket.socket):
        return Claim(bound)
    if bound == errno.EADDRINUSE:
        if forced:
            raise port_taken(endpoint)
        return Claim(None, taken=True)
    raise StoreError(f"cannot bind {endpoint}: {os.strerror(bound)}; choose another port (above 1023) or address")


def _bind(address: Address) -> socket.socket | int:
    """A bound socket, or the errno of the failure."""
    family, where = address
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return errno.EADDRNOTAVAIL  # this kernel lacks the address family, so no interface here has the address
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
    except OSError as why:
        made.close()
        return why.errno or errno.EADDRNOTAVAIL
    if _nonlocal_bind_enabled() and not _is_local(family, where[0]):
        made.close()
        return errno.EADDRNOTAVAIL
    return made


def bind_wildcard(port: int) -> socket.socket | int:
    """A socket bound on every address of this node, of both IP versions if the kernel has both; or an errno."""
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
        if why.errno == errno.EADDRNOTAVAIL:  # IPv6 is compiled in but disabled
            return _bind((socket.AF_INET, ("0.0.0.0", port)))  # noqa: S104 - peers come from anywhere
        return why.errno or errno.EADDRNOTAVAIL
    return made


def _nonlocal_bind_enabled() -> bool:
    """Whether this kernel lets processes bind addresses that no interface has (hosts with floating addresses)."""
    for path in _NONLOCAL_BIND:
        try:
            with open(path, encoding="ascii") as file:
                if file.read().strip() == "1":
                    return True
        except OSError:  # this kernel has no such setting, so it is not enabled
            continue
    return False


def _is_local(family: int, host: str) -> bool:
    """Whether a datagram sent to `host` arrives here at once, as the kernel delivers those to its own addresses."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return True
    with socket.socket(family, socket.SOCK_DGRAM) as here, socket.socket(family, socket.SOCK_DGRAM) as out:
        try:
            here.bind((host, 0))
            here.settimeout(0.2)
            out.sendto(b"?", here.getsockname())
            return here.recv(1) == b"?"
        except OSError:  # no route, or lost: not an address of this node
            return False
