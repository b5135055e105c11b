"""Files whose content is known: written with checksums on the way, and read against them."""

from __future__ import annotations

import errno
import io
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import torch

from ..errors import CheckpointDamaged
from ..threads import share
from .crc import crc32

PIECE = 16 << 20
"""Bytes that one checksum is for."""
_ATTEMPTS = 1000
"""To give a file its name: each other start removes it once at most."""
_BUFFER = 256 << 10
"""Bytes read at a time: they are still in the processor's cache when their checksum is computed."""


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
            self._now = crc32(part, self._now)
            self.length += len(part)
            if self.length % PIECE == 0:
                self._done.append(self._now)
                self._now = 0
            data = data[len(part) :]

    def content(self) -> Content:
        rest = (self._now,) if self.length % PIECE else ()
        return Content(self.length, (*self._done, *rest))


def _named(error: OSError, path: Path) -> OSError:
    """The error with the file that it is of, which calls by a descriptor do not know."""
    if error.filename is None:
        error.filename = str(path)
    return error


class CheckedWriter(io.RawIOBase):
    """A file that is written once, from its beginning to its end, and synced when it is closed."""

    _fd = -1
    """Of one that could not be opened, which the interpreter closes all the same."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._path, self.sums = path, Sums()
        self.failed: OSError | None = None
        """What the disk said first; torch.save raises an error of its own about it."""

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.sums.length

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        rest = view
        try:
            while len(rest):
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self.failed = self.failed or _named(error, self._path)
            raise
        self.sums.add(view)
        return len(view)

    def finish(self) -> Content:
        """Brings the file to disk and closes it."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise _named(error, self._path) from None
        self.close()
        return self.sums.content()

    def close(self) -> None:
        if not self.closed:
            if self._fd >= 0:
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


def place_file(aside: Path, named: Path, data: bytes, check: Callable[[], None] = lambda: None) -> None:
    """A small file that appears whole, or not at all; `check` is called just before it gets its name. Another start in
    this directory may remove what it takes for left behind, `aside`: that costs another attempt. Raises OSError, and
    what `check` raises."""
    for left in reversed(range(_ATTEMPTS)):
        aside.unlink(missing_ok=True)
        try:
            write_file(aside, data)
            check()
            os.rename(aside, named)
            break
        except FileNotFoundError:
            if not left:
                raise
        finally:
            aside.unlink(missing_ok=True)
    sync_directory(named.parent)


class Reader(io.RawIOBase):
    """A file to read, of which torch.load and others may take what they like. Closed at the end of `with`."""

    _fd = -1
    """As of a `CheckedWriter`."""

    def __init__(self, path: Path, first: int = 0, length: int | None = None) -> None:
        """first, length: the bytes that are shown; without them, all."""
        super().__init__()
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._path, self._first, self._at = path, first, 0
        self.length = os.fstat(self._fd).st_size - first if length is None else length
        self.failed: OSError | None = None
        """What the disk said first; torch.load raises an error of its own about it."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.length}[whence]
        if at < 0:
            raise ValueError(f"a seek to byte {at}, which is before the beginning of the file")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        rest = memoryview(buffer).cast("B")[: max(0, self.length - self._at)]
        count = 0
        try:
            # One call reads 2 GiB at most, and torch takes less than it asked for to be the end of the file.
            while len(rest) and (got := os.preadv(self._fd, [rest], self._first + self._at + count)):
                count, rest = count + got, rest[got:]
        except OSError as error:
            self.failed = self.failed or _named(error, self._path)
            raise
        self._at += count
        return count

    def close(self) -> None:
        if not self.closed:
            if self._fd >= 0:
                os.close(self._fd)
            super().close()


def load_tensors(path: Path, first: int = 0, length: int | None = None) -> Any:
    """What torch.save wrote to a file, or to a part of it; on the CPU. Runs no code from it.

    Raises OSError where it cannot be read, and what torch.load(weights_only=True) raises.
    """
    with Reader(path, first, length) as file:
        try:
            return torch.load(cast("IO[bytes]", file), weights_only=True, map_location="cpu")
        except Exception:
            if file.failed is not None:
                raise file.failed from None
            raise


def why_unreadable(state: Any) -> str:
    """Why `load_tensors` would refuse a state that holds this, without its tensors; empty where it would not."""
    file = io.BytesIO()
    try:
        torch.save(state, file)
    except Exception as error:  # noqa: BLE001 - it runs the code of whatever the state holds
        return f"it cannot be written: {error}"
    file.seek(0)
    try:
        torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # noqa: BLE001 - whatever it is, a start would end with it
        if (unsafe := getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)) is not None:  # torch 2.6
            file.seek(0)
            with suppress(Exception):  # of what it cannot read either, the first error says why
                if classes := unsafe(file):
                    return f"it holds {', '.join(sorted(classes))}, which torch does not load by default"
        return str(error).partition("\n")[0]
    return ""


def read_file(path: Path) -> bytes:
    """All of a small file."""
    with Reader(path) as file:
        return file.read()


def sums_of(path: Path) -> Content:
    """Reads a whole file and gives what it holds. A long one is read by several threads, pieces at a time."""
    length = os.stat(path).st_size
    sums = [0] * -(-length // PIECE)
    numbers = iter(range(len(sums)))  # gives each piece to one thread

    def add() -> None:
        # It begins with a page. A large bytearray begins 16 bytes behind one, and there the kernel's copy out of its
        # own pages takes some processors (AMD's Zen 3) two and a half times as long.
        buffer = memoryview(mmap.mmap(-1, _BUFFER))
        with Reader(path, 0, length) as file:
            for number in numbers:
                left, value = min(PIECE, length - number * PIECE), 0
                file.seek(number * PIECE)
                while left and (count := file.readinto(buffer[:left])):
                    value, left = crc32(buffer[:count], value), left - count
                sums[number] = value

    share(add, len(sums), "checkpoint-reader")
    return Content(length, tuple(sums))


def check_file(path: Path, content: Content) -> None:
    """Raises CheckpointDamaged where the file is not what it must be, and OSError where it cannot be read."""
    length = os.stat(path).st_size
    if length != content.length:
        raise CheckpointDamaged(f"{path.name} has {length} bytes and must have {content.length}")
    compare(path.name, sums_of(path), content)


def compare(name: str, found: Content, wanted: Content) -> None:
    """Raises CheckpointDamaged where a file that should hold `wanted` holds something else."""
    if found.length != wanted.length or len(found.sums) != len(wanted.sums):
        raise CheckpointDamaged(f"{name} has {found.length} bytes and must have {wanted.length}")
    for number, (there, written) in enumerate(zip(found.sums, wanted.sums, strict=True)):
        if there != written:
            raise CheckpointDamaged(
                f"{name}: CRC-32 {there:08x} of the bytes from {number * PIECE} on, where {written:08x} was written"
            )


def sync_directory(path: Path) -> None:
    """Brings the entries of a directory to disk, where the file system does that for directories."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)
