"""What the kernel says of this node's workers, by files of /proc that are opened once."""

from __future__ import annotations

import os
from collections.abc import Collection
from threading import Lock

PAGE_BYTES, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
STAT_BYTES = 4096
"""More than a process has in /proc/PID/stat."""
STATES = {"T": "stopped", "t": "stopped", "Z": "zombie", "X": "exited"}
"""States of a process, by their letter in /proc, that are not `running`."""
GONE = (0, 0.0, "exited")
Usage = tuple[int, float, str]
"""Resident bytes of a process, its processor time in seconds, and its state."""


class ProcessFiles:
    """Another look at a process is one call of the kernel and not three, at each of which a thread that relays output
    may take the interpreter: 21 and not 32 microseconds for eight. From any thread."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        """By process id; a file stays that of its process, whoever has the id later."""
        self._lock = Lock()
        self._closed = False

    def read(self, pids: Collection[int]) -> dict[int, Usage]:
        """Of these processes; those that are gone are `exited`. The files of others are closed."""
        with self._lock:
            for pid in [pid for pid in self._files if pid not in pids]:
                os.close(self._files.pop(pid))
            return {pid: self._read(pid) for pid in pids} if not self._closed else dict.fromkeys(pids, GONE)

    def _read(self, pid: int) -> Usage:
        try:
            if pid in self._files:
                try:
                    return _usage(os.pread(self._files[pid], STAT_BYTES, 0))
                except ProcessLookupError:  # it is gone, and another process may have its id
                    os.close(self._files.pop(pid))
            self._files[pid] = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            return _usage(os.pread(self._files[pid], STAT_BYTES, 0))
        except OSError:
            return GONE

    def close(self) -> None:
        """Close the files. Idempotent."""
        with self._lock:
            self._closed = True
            while self._files:
                os.close(self._files.popitem()[1])


def _usage(stat: bytes) -> Usage:
    fields = stat.rpartition(b")")[2].split()
    if len(fields) < 22:
        return GONE
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
    return int(fields[21]) * PAGE_BYTES, cpu_s, STATES.get(fields[0].decode(), "running")
