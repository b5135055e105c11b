"""Frames on a stream socket, with descriptors: how orders reach the nursery, and how fork requests reach the zygote.

A frame is its length (4 bytes, big-endian), then fields joined by NUL, the first being the verb. Descriptors come by
SCM_RIGHTS (unix(7)), in the order of the frames that they belong to. Part of the nursery; imports as little as it does.
"""

from __future__ import annotations

import _socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

READ_BYTES = 1 << 18
DESCRIPTORS_MAX = 5
"""As many come with a frame."""


def framed(fields: Sequence[bytes]) -> bytes:
    """The frame with these fields, none of which may hold a NUL."""
    body = b"\0".join(fields)
    return len(body).to_bytes(4, "big") + body


def rights(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    """The ancillary data by which sendmsg sends these descriptors along; an empty list for none."""
    packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    return [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if fds else []


class Frames:
    """The receiving end."""

    def __init__(self) -> None:
        self._received = bytearray()
        self.fds: list[int] = []
        """Descriptors that were received and not taken yet. All are close-on-exec."""
        self.ended = False
        """The other side will send nothing more."""

    def receive(self, link: _socket.socket, flags: int = 0) -> Iterator[list[bytes]]:
        """Read once, and yield the frames that are complete by then. Raises what `recvmsg` does."""
        room = _socket.CMSG_SPACE(4 * DESCRIPTORS_MAX)
        data, extras, _, _ = link.recvmsg(READ_BYTES, room, flags | _socket.MSG_CMSG_CLOEXEC)
        for _, _, raw in extras:
            self.fds += [int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw), 4)]
        self._received += data
        self.ended = not data
        while len(self._received) >= 4 and len(self._received) >= (
            end := 4 + int.from_bytes(self._received[:4], "big")
        ):
            fields = bytes(self._received[4:end]).split(b"\0")
            del self._received[:end]
            yield fields

    def keep(self) -> None:
        """The descriptor of one frame stays open until this process ends."""
        self.fds.pop(0)

    def take(self, present: Sequence[bytes]) -> list[int]:
        """The descriptors of one frame: one for each b"1", and -1 for each b"0"."""
        return [self.fds.pop(0) if each == b"1" else -1 for each in present]
