"""Real file systems for tests: a small tmpfs that can be filled, and one whose server never answers."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH = 2


@contextmanager
def tmpfs(path: Path, options: str) -> Iterator[Path]:
    """An empty tmpfs at the path, such as with `size=4m,nr_inodes=100`. Skips the test where mounting is refused."""
    path.mkdir(exist_ok=True)
    _mount("tmpfs", path, "tmpfs", options)
    try:
        yield path
    finally:
        _LIBC.umount2(str(path).encode(), _MNT_DETACH)


def fill(path: Path) -> None:
    """Fill a file system with a file, to the last byte."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for size in (4096, 1):
            while _written(descriptor, size):
                pass
    finally:
        os.close(descriptor)


def _written(descriptor: int, size: int) -> int:
    try:
        return os.write(descriptor, bytes(size))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return 0


@contextmanager
def dead_mount(path: Path) -> Iterator[Path]:
    """A FUSE file system whose server has not answered its first request: whoever asks it waits in state D."""
    path.mkdir(exist_ok=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error.strerror}")
    try:
        _mount("dead", path, "fuse", f"fd={server},rootmode=40000,user_id=0,group_id=0")
        try:
            yield path
        finally:
            _LIBC.umount2(str(path).encode(), _MNT_DETACH)
    finally:
        os.close(server)  # whoever still waits is let go, with an error


def _mount(source: str, path: Path, kind: str, options: str) -> None:
    if _LIBC.mount(source.encode(), str(path).encode(), kind.encode(), 0, options.encode()):
        pytest.skip(f"mounting is refused here: {os.strerror(ctypes.get_errno())}")
