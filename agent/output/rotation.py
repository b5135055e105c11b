"""Log files of bounded size: full files are renamed to `stdout.log.1`, `stdout.log.2` and so on; the last is newest.

A renamed file keeps its number, so that a program that follows it by name keeps reading the same file.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..spec import Rotation
from .lines import LONG_LINE
from .sinks import FileSink, open_log


class RotatingFile(FileSink):
    """A log file that is never larger than its limit. A line is never split over two files, unless it is larger than
    the limit, or than 64 KiB. An unfinished line, such as a progress bar, is in the file as it grows; where it outgrows
    the file, it moves to the next."""

    def __init__(self, path: str, report: Callable[[str], None], rotation: Rotation) -> None:
        """Raises OSError when it cannot be opened."""
        super().__init__(path, report)
        self._rotation = rotation
        self._size = 0
        self._renamed = 0
        """How many full files have been renamed."""
        self._tail = b""
        """The unfinished line at the end of the file: of a long one, as much as shows that it is too long to move."""

    def write(self, data: bytes) -> None:
        while data:
            room = max(0, self._rotation.limit - self._size)
            cut = len(data) if len(data) <= room else data.rfind(b"\n", 0, room) + 1
            if not cut and not self._movable():
                cut = room
            if cut:
                self._put(data[:cut])
                data = data[cut:]
            if data and self._size:
                self._rotate()

    def _movable(self) -> bool:
        """Whether the next line may begin in the next file, or the unfinished one move there."""
        return len(self._tail) < self._size and len(self._tail) <= LONG_LINE

    def _put(self, data: bytes) -> None:
        """Write to this file, whatever its size."""
        before = self.passed
        super().write(data)
        written = self.passed - before
        self._size += written
        tail = self._tail + data if len(self._tail) <= LONG_LINE else self._tail
        end = data.rfind(b"\n") + 1
        # What follows a loss cannot be moved: it is not known where in the file it begins.
        self._tail = (data[end:] if end else tail)[: LONG_LINE + 1] if written == len(data) else b""

    def _rotate(self) -> None:
        """Continue in a new file; in the same one, for another `limit` bytes, if it cannot be renamed."""
        moved = self._tail if self._movable() else b""
        self._size, self._tail = 0, b""
        try:
            os.rename(self.name, f"{self.name}.{self._renamed + 1}")
            self._renamed += 1
            self._continue(open_log(self.name), moved)
            keep = self._rotation.keep
            if keep is not None and self._renamed > keep:
                os.unlink(f"{self.name}.{self._renamed - keep}")
        except OSError as error:
            self.report_trouble(f"cannot rotate {self.name}: {error.strerror}; it grows beyond its limit")

    def _continue(self, fd: int, moved: bytes) -> None:
        """Write to the open file `fd` from now on, and move the unfinished line there."""
        try:
            if moved:
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - len(moved))
        except OSError:
            moved = b""  # the line is split
        self.switch_to(fd)
        if moved:
            self._put(moved)
