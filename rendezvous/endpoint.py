"""Endpoints: their grammar, their addresses, and the address by which other nodes reach this one.

Grammar as torchrun's --rdzv-endpoint (torch 2.13): `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT`; empty is localhost.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from .store import StoreUnreachable

DEFAULT_PORT = 29400
"""torchrun's default for the c10d backend."""

Address = tuple[int, tuple[str, int]]
"""Address family, and what `socket.connect` takes (IPv6 carries two more fields, which only socket reads)."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a store is served, or is to be."""

    host: str
    """A name or an IP literal, without brackets."""
    port: int
    """0 to 65535; 0 lets the host choose one (--standalone)."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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


def is_exact(host: str) -> bool:
    """Whether `host` is bound as it is: "localhost" or an IP literal."""
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
        return target.host if loopback and not is_exact(target.host) else found
    raise StoreUnreachable(f"no route to {target}; give this node's own address with --local-addr")
