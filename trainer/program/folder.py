"""The private directory of a trainer: its socket, the files that its workers read, and their state in memory."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile

MEMORY = "/dev/shm"  # noqa: S108 - the new directory in it is this user's only
PREFIX = "elastic_agent_trainer_"
LOCK = "lock"
ROOM_BYTES = 1 << 30
"""Bytes that must be free in the memory of this host, else the directory is where temporary files go."""


class PrivateFolder:
    """Made with the trainer and removed with it; those of programs that were killed are removed by the next one."""

    def __init__(self) -> None:
        """Makes the directory. Raises OSError if that is not possible."""
        where = _place()
        _sweep(where)
        self.path, self._lock = _locked_directory(where)
        self._pid = os.getpid()
        # Where a program ends without a shutdown; what stops its workers was registered later, so it runs before.
        atexit.register(self.remove)

    @property
    def in_memory(self) -> bool:
        return os.path.dirname(self.path) == MEMORY

    @property
    def ours(self) -> bool:
        """Whether this process has made it; false in one that was forked from that."""
        return os.getpid() == self._pid

    def remove(self) -> None:
        """May be called again. In a process that was forked from its maker, nothing."""
        if self._lock >= 0 and self.ours:
            atexit.unregister(self.remove)
            os.close(self._lock)
            self._lock = -1
            shutil.rmtree(self.path, ignore_errors=True)


def _place() -> str:
    try:
        room = os.statvfs(MEMORY)
    except OSError:
        return tempfile.gettempdir()
    fits = room.f_bavail * room.f_frsize >= ROOM_BYTES and os.access(MEMORY, os.W_OK | os.X_OK)
    return MEMORY if fits else tempfile.gettempdir()


def _locked_directory(where: str) -> tuple[str, int]:
    """A new directory, and the descriptor that holds its lock."""
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX, dir=where)
        name = os.path.join(path, LOCK)
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(name):
            return path, lock
        # Another trainer that removes leftovers locked it first, and has removed it.
        os.close(lock)


def _sweep(where: str) -> None:
    """Remove directories of this user whose program is gone: nobody holds their lock."""
    for entry in os.scandir(where):
        if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            lock = os.open(os.path.join(entry.path, LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # of another user, or just being made
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry.path, ignore_errors=True)
        except OSError:
            continue  # in use
        finally:
            os.close(lock)
