"""Files whose content is known: written with checksums on the way, and read against them."""

from __future__ import annotations

import io
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointDamaged

PIECE = 16 << 20
"""Bytes that one checksum is for."""


@dataclass(frozen=True)
class Content:
    """What a file must hold: its length in bytes and the CRC-32 of each 16 MiB."""

    length: int
    sums: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"length": self.length, "crc32": [f"{value:08x}" for value in self.sums]}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Content:
        return cls(int(kept["length"]), tuple(int(value, 16) for value in kept["crc32"]))


@dataclass
class Sums:
    """Checksums of a stream of bytes, piece by piece."""

    length: int = 0
    _done: list[int] = field(default_factory=list)
    _now: int = 0

    def add(self, data: memoryview) -> None:
        while len(data):
            part = data[: PIECE - self.length % PIECE]
            self._now = zlib.crc32(part, self._now)
            self.length += len(part)
            if self.length % PIECE == 0:
                self._done.append(self._now)
                self._now = 0
            data = data[len(part) :]

    def content(self) -> Content:
        rest = (self._now,) if self.length % PIECE else ()
        return Content(self.length, (*self._done, *rest))


class CheckedWriter(io.RawIOBase):
    """A file that is written once, from its beginning to its end, and synced when it is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self.sums = Sums()
        self.failed: OSError | None = None
        """What the disk said first; torch.save raises an error of its own about it."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        rest = view
        try:
            while len(rest):
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self.failed = self.failed or error
            raise
        self.sums.add(view)
        return len(view)

    def finish(self) -> Content:
        """Brings the file to disk and closes it."""
        os.fsync(self._fd)
        self.close()
        return self.sums.content()

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
            super().close()


def write_file(path: Path, data: bytes) -> Content:
    """A small file, brought to disk."""
    file = CheckedWriter(path)
    try:
        file.write(data)
        return file.finish()
    finally:
        file.close()


def check_file(path: Path, content: Content) -> None:
    """Raises CheckpointDamaged where the file is not what it must be, and OSError where it cannot be read."""
    length = path.stat().st_size
    if length != content.length:
        raise CheckpointDamaged(f"{path.name} has {length} bytes and must have {content.length}")
    buffer = memoryview(bytearray(1 << 20))
    sums = Sums()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            sums.add(buffer[:count])
    for number, (found, wanted) in enumerate(zip(sums.content().sums, content.sums, strict=True)):
        if found != wanted:
            raise CheckpointDamaged(
                f"{path.name}: CRC-32 {found:08x} of the bytes from {number * PIECE} on, where {wanted:08x} was written"
            )


def sync_directory(path: Path) -> None:
    """Brings the entries of a directory to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
