"""Files of checkpoints on their way from one rank's disk to another's, where ranks do not see the same files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointDamaged
from ..world import Party
from .files import CheckedWriter, Content, Reader, compare

CHUNK = 16 << 20
"""Bytes of one message: what a transfer needs of memory, on either side, whatever the length of the file."""


@dataclass(frozen=True)
class Homes:
    """Which ranks see the same files."""

    first_of: tuple[int, ...] = (0,)
    """For each rank the first one whose files it sees: that one commits, to the directory that all of them see."""

    @property
    def firsts(self) -> list[int]:
        return sorted(set(self.first_of))

    def members(self, first: int) -> list[int]:
        """The ranks that see the files of `first`."""
        return [rank for rank, other in enumerate(self.first_of) if other == first]


@dataclass(frozen=True)
class Transfer:
    """One file to carry."""

    name: str
    content: Content
    source: int
    target: int


def ring(homes: Homes, files: dict[int, dict[str, Content]]) -> list[Transfer]:
    """Each home's files for the next one, so that the loss of any one home loses none of them.

    files: of each home, by its first rank.
    """
    firsts = homes.firsts
    pairs = [(home, firsts[(number + 1) % len(firsts)]) for number, home in enumerate(firsts)]
    # First those of every second home, then the others: of two neighbours one sends while the other receives.
    ordered = pairs[::2] + pairs[1::2]
    return [Transfer(name, content, home, to) for home, to in ordered for name, content in files[home].items()]


def carry(party: Party, transfers: Sequence[Transfer], where: Callable[[str], Path], to: Callable[[str], Path]) -> None:
    """Carries files between ranks. Collective among those that send or receive one; the same list on all of them.

    where: of a file that this rank sends. to: where this rank writes one that it gets, which is brought to disk.
    Raises OSError, and CheckpointDamaged where what came is not what was to be sent; the others go on to the end.
    """
    failed: Exception | None = None
    for transfer in transfers:
        try:
            if party.rank == transfer.source:
                _send(party, transfer, where(transfer.name))
            elif party.rank == transfer.target:
                _receive(party, transfer, to(transfer.name))
        except (OSError, CheckpointDamaged) as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _lengths(content: Content) -> list[int]:
    return [min(CHUNK, content.length - first) for first in range(0, content.length, CHUNK)]


def _send(party: Party, transfer: Transfer, path: Path) -> None:
    left, data = _lengths(transfer.content), _room_for(transfer)
    try:
        with Reader(path) as reader:
            while left:
                if reader.readinto(memoryview(data)[: left[0]]) != left[0]:
                    raise OSError(f"{path} is shorter than the {transfer.content.length} bytes that were written to it")
                party.send(data, left[0], transfer.target)
                del left[0]
    finally:
        # The other side counts bytes: what cannot be read is sent as zeros, which its checksum finds.
        data = bytearray(len(data)) if left else data
        for length in left:
            party.send(data, length, transfer.target)


def _receive(party: Party, transfer: Transfer, path: Path) -> None:
    left, data = _lengths(transfer.content), _room_for(transfer)
    try:
        path.unlink(missing_ok=True)
        writer = CheckedWriter(path)
        try:
            while left:
                length = left.pop(0)
                party.receive(data, length, transfer.source)
                writer.write(memoryview(data)[:length])
            compare(transfer.name, writer.finish(), transfer.content)
        finally:
            writer.close()
    finally:
        for length in left:  # a full disk here keeps nobody from sending to the end
            party.receive(data, length, transfer.source)


def _room_for(transfer: Transfer) -> bytearray:
    """The only memory that a transfer takes: what is allocated for each message anew may add up, by fragmentation."""
    return bytearray(min(CHUNK, transfer.content.length))
