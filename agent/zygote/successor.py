"""The process that imports beside a zygote, to take its place: the zygote goes on forking workers meanwhile.

It is forked from the zygote, so that a module which forbids a fork costs only this process: the next one is forked
from the same zygote and leaves it out. A restart that finds it importing kills it rather than share the processors.
"""

from __future__ import annotations

import _socket
import os
import select

from ..nursery.descendants import SIGKILL, SIGSTOP, Descendants, die_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .child import Parent

RETRIES_MAX = 8
"""How many successors a zygote starts anew because of a module that cannot be preloaded."""
READ_BYTES = 1 << 16


class Successor:
    """The zygote's end, and, in the process that it forks, `of_successor`."""

    def __init__(self, parent: Parent, poll: select.poll) -> None:
        """Fork it. `poll` is the zygote's. Raises OSError if the host refuses."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        zygote = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        self.of_successor: _socket.socket | None = None
        """In the successor: what it reports goes there, and from there comes a byte when it is to take over."""
        if self.pid == 0:
            ours.close()
            die_with(zygote, parent.libc)
            self.of_successor = theirs
            return
        theirs.close()
        self._descendants = Descendants(parent.libc)
        self._link = ours
        self._received = b""
        self.ended = False
        """It has exited."""
        self._poll = poll
        poll.register(self.fd, select.POLLIN)

    @property
    def fd(self) -> int:
        """The descriptor to poll."""
        return self._link.fileno()

    def receive(self) -> list[tuple[str, str]]:
        """What it reported since: the first word of each line, and the rest."""
        try:
            data = self._link.recv(READ_BYTES)
        except ConnectionResetError:
            data = b""
        self.ended = not data
        *lines, self._received = (self._received + data).split(b"\n")
        parts = (line.decode().partition(" ") for line in lines)
        return [(verb, rest) for verb, _, rest in parts]

    def take_over(self) -> NoReturn:
        """Let it serve from now on. This process, which is the one that the nursery knows, ends with it."""
        self._link.sendall(b"g")
        os.waitpid(self.pid, 0)
        os._exit(0)

    def kill(self) -> None:
        """Kill it, and what it has started. A stopped process starts no more, and its children are not reaped."""
        os.kill(self.pid, SIGSTOP)
        for pid in (*self._descendants.below(self.pid), self.pid):
            try:
                os.kill(pid, SIGKILL)
            except ProcessLookupError:
                pass  # it has lost its parent, and was reaped by the nursery

    def reap(self) -> bool:
        """Whether it has exited since it was killed, and is reaped now. Never waits: one in an uninterruptible sleep
        exits when it pleases. To be called when there is something to receive."""
        self.receive()
        if self.ended:
            self._poll.unregister(self.fd)
            self.close()
            os.waitpid(self.pid, 0)
        return self.ended

    def close(self) -> None:
        """Close its link; in a process that is not its zygote."""
        self._link.close()
