"""Keeping a free TCP port reserved: for a worker that will listen on it, or listening already."""

from __future__ import annotations

# The C module: nothing that `socket` adds is used, and importing it would lengthen the agent's start-up.
import _socket
import errno
import os

BACKLOG = 4096
"""All workers of a job may connect before anybody accepts; the kernel limits it to net.core.somaxconn."""


class PortHold:
    """A TCP port that the kernel gives to no other process, but that a worker can listen on.

    A socket bound with SO_REUSEADDR that does not listen: Linux never gives its port to bind(0) or to a connection,
    and lets another socket with SO_REUSEADDR bind and listen (socket(7); torch's TCPStore sets it, with libuv and
    without). A server that does not set it is refused. Dual-stack, or IPv4 where the host has no IPv6.

    One that listens is for whom its socket is handed to; no other process can listen there.
    """

    def __init__(self, port: int = 0, *, listening: bool = False) -> None:
        """Hold `port`; 0 takes a free one. Raises OSError if it is taken or there is none left."""
        try:
            self._socket = bound(port)
            if listening:
                self._socket.listen(BACKLOG)
        except OSError as error:
            what = f"TCP port {port}" if port else "any free TCP port"
            step = (
                "; stop the process that has it (ss -tanp) or choose another port"
                if error.errno == errno.EADDRINUSE
                else ""
            )
            raise OSError(error.errno, f"cannot hold {what}: {os.strerror(error.errno or 0)}{step}") from error
        self.port: int = self._socket.getsockname()[1]
        """The port's number."""

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Release the port. A process that listens on it by then is not affected."""
        self._socket.close()


def bound(port: int) -> _socket.socket:
    """A TCP socket bound to this port of all addresses, which does not listen. Raises OSError."""
    try:
        return bound_in(_socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT):
            raise
        return bound_in(_socket.AF_INET, "0.0.0.0", port)  # noqa: S104 (workers of other nodes must reach it)


def bound_in(family: int, address: str, port: int) -> _socket.socket:
    """The same for one address family."""
    made = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        made.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        if family == _socket.AF_INET6:
            made.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made
