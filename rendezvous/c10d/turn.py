"""Which of several agents of one host imports torch to serve the store, where all of them have bound its port.

A bound port is not taken before somebody listens on it, and torch has to be imported first, at 1.2 s of processor time
for each agent of which but one then serves. The first to come holds a unix socket whose name is that of the port; the
others wait for its end. The name lies in the network namespace of the port, without a file, and the kernel drops it
with the process that holds it.
"""

from __future__ import annotations

import errno
import socket
import time

MOST_S = 10.0
"""How long an agent waits for those whose turn it is: they may be frozen, read torch from a slow disk, or be no agents.
Then it imports torch itself, so nobody keeps this host from serving: who listens first serves."""


class Turn:
    """Whose turn it is to serve at the address of a bound socket."""

    def __init__(self, bound: socket.socket) -> None:
        """Take it if nobody has it."""
        host, port = bound.getsockname()[:2]
        self._name = f"\0elastic-agent/{host}/{port}".encode()
        self._own: socket.socket | None = None
        self.taken = True
        """Whether it is that of this process; also where the kernel or a sandbox has no such sockets, or no more."""
        try:
            self._own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._own.bind(self._name)
            self._own.listen(socket.SOMAXCONN)
        except OSError as why:
            self.taken = why.errno != errno.EADDRINUSE
            self.close()

    def outlast(self, most_s: float) -> bool:
        """Wait, at most so long, until the process whose turn it is has done with it or is dead. Whether it has."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
            there.settimeout(most_s)
            try:
                there.connect(self._name)
                there.recv(1)  # nothing is ever sent
            except TimeoutError:
                return False
            except OSError:  # reset, or refused
                return True
        return True

    def close(self) -> None:
        """It is over. Idempotent."""
        own, self._own = self._own, None
        if own is not None:
            own.close()


def take_turn(bound: socket.socket, most_s: float = MOST_S) -> Turn | None:
    """The turn to serve at the address of this socket, once no other agent of this host has it, or so long has passed.
    None: another process listens there by now."""
    until = time.monotonic() + most_s
    while True:
        turn = Turn(bound)
        left_s = until - time.monotonic()
        if turn.taken or left_s <= 0 or not turn.outlast(left_s):
            return turn
        if _is_served(bound):
            return None


def _is_served(bound: socket.socket) -> bool:
    """Whether another process listens at the address of this socket: then it cannot be bound once more."""
    with socket.socket(bound.family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(bound.getsockname())
        except OSError:
            return True
    return False
