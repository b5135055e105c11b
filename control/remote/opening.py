"""Makes the gRPC server from what `--control-address` and its companions name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ...agent.errors import UsageError
from ..control_socket import Service
from ..service.serving import ALL_ADDRESSES
from .memory import share_arena
from .tokens import Tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .server import Remote, Tell

WILDCARDS = (*ALL_ADDRESSES, "[::]", "*")
"""Hosts that stand for all addresses of this one, as gRPC writes them."""
BEGIN = b"-----BEGIN "
VERBOSITY = "GRPC_VERBOSITY"


def opened(
    service: Service,
    address: str,
    cert: str | os.PathLike[str],
    key: str | os.PathLike[str],
    tokens: str | os.PathLike[str],
    tell: Tell,
) -> Remote:
    """The server, whose port is taken. Raises UsageError for files that cannot be used."""
    files = _pem("--control-cert", cert), _pem("--control-key", key)
    known = Tokens(os.fspath(tokens))
    share_arena()
    with _quiet():
        from .server import Remote

        return Remote(service, address, files, known, tell)


@contextmanager
def _quiet() -> Iterator[None]:
    """gRPC's C core would write a line on stderr for each header and handshake of a stranger that it cannot read. It
    looks at the variable when it is loaded."""
    given = os.environ.get(VERBOSITY)
    os.environ.setdefault(VERBOSITY, "NONE")
    try:
        yield
    finally:
        if given is None:
            del os.environ[VERBOSITY]


def announced(remote: Remote) -> str:
    """Where other nodes reach it: HOST:PORT; :PORT where HOST is any address of this node; empty: nowhere."""
    host, _, port = remote.address.rpartition(":")
    return f":{port}" if host in WILDCARDS else remote.address


def _pem(flag: str, path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(1 << 20)
    except OSError as error:
        raise UsageError(f"{flag} {os.fspath(path)}: {error.strerror}; give a file in PEM") from None
    if BEGIN not in data:
        raise UsageError(f"{flag} {os.fspath(path)} is not in PEM; give a file with {BEGIN.decode()}...")
    return data
