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
    the limit, or than 64 KiB."""

    def __init__(self, path: str, report: Callable[[str], None], rotation: Rotation) -> None:
        """Raises OSError when it cannot be opened."""
        super().__init__(path, report)
        self._rotation = rotation
        self._size = 0
        self._renamed = 0
        """How many full files have been renamed."""
        self._tail = b""
        """An unfinished line, which may have to go to the next file."""

    def write(self, data: bytes) -> None:
        data = self._tail + data
        end = data.rfind(b"\n") + 1
        if len(data) - end > min(LONG_LINE, self._rotation.limit):
            end = len(data)
        self._tail = data[end:]
        at = 0
        while at < end:
            room = self._rotation.limit - self._size
            cut = end if end - at <= room else data.rfind(b"\n", at, at + room) + 1
            if not cut and not self._size:
                cut = at + room
            if cut:
                super().write(data[at:cut])
                self._size += cut - at
                at = cut
            if at < end:
                self._rotate()

    def close(self) -> None:
        if self._tail:
            tail, self._tail = self._tail, b""
            if self._size + len(tail) > self._rotation.limit:
                self._rotate()
            super().write(tail)
        super().close()

    def _rotate(self) -> None:
        """Continue in a new file; in the same one, for another `limit` bytes, if it cannot be renamed."""
        self._size = 0
        try:
            os.rename(self.name, f"{self.name}.{self._renamed + 1}")
            self._renamed += 1
            self.switch_to(open_log(self.name))
            keep = self._rotation.keep
            if keep is not None and self._renamed > keep:
                os.unlink(f"{self.name}.{self._renamed - keep}")
        except OSError as error:
            self.report_trouble(f"cannot rotate {self.name}: {error.strerror}; it grows beyond its limit")
