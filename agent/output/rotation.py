"""Log files of bounded size: full ones are put aside as `stdout.log.1`, `stdout.log.2` and so on, the last the newest.

A file keeps the number that it once got, so that whoever follows it by name is not led astray.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..spec import Rotation
from .lines import LONG_LINE
from .sinks import FileSink, open_log


class RotatingFile(FileSink):
    """A log file that is never larger than its limit. No line is in two files, unless it is larger than one, or than
    64 KiB."""

    def __init__(self, path: str, say: Callable[[str], None], rotation: Rotation) -> None:
        """Raises OSError when it cannot be opened."""
        super().__init__(path, say)
        self._rotation = rotation
        self._size = 0
        self._aside = 0
        """How many files have been put aside."""
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
                self._put_aside()

    def close(self) -> None:
        if self._tail:
            tail, self._tail = self._tail, b""
            if self._size + len(tail) > self._rotation.limit:
                self._put_aside()
            super().write(tail)
        super().close()

    def _put_aside(self) -> None:
        """Go on in a fresh file; in this one if there can be none."""
        self._size = 0
        try:
            os.rename(self.name, f"{self.name}.{self._aside + 1}")
            self._aside += 1
            self.turn_to(open_log(self.name))
            keep = self._rotation.keep
            if keep is not None and self._aside > keep:
                os.unlink(f"{self.name}.{self._aside - keep}")
        except OSError as error:
            self.trouble(f"{self.name} cannot be rotated: {error.strerror}; it goes on")
