"""Directories of this user only, in places where anybody may make one: /tmp, /dev/shm, XDG_RUNTIME_DIR."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


class NotPrivate(PermissionError):
    """Others could write to it, or look into it. One line."""


def make_private(path: str) -> None:
    """Make the directory if it is not there. Raises NotPrivate for one that is not this user's alone, or OSError."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not is_private(found):
            _refuse(path, found)


def open_private(path: str) -> int:
    """A descriptor of that directory, which stays the one that was looked at whatever becomes of its name. Raises as
    `make_private`."""
    make_private(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(fd)
    if not is_private(found):
        os.close(fd)
        _refuse(path, found)
    return fd


def is_private(found: os.stat_result) -> bool:
    """Whether this is a directory into which only this user can look."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _refuse(path: str, found: os.stat_result) -> NoReturn:
    raise NotPrivate(
        f"{path} is no directory of this user with mode 0700 (owner {found.st_uid}, mode "
        f"{stat.S_IMODE(found.st_mode):04o})"
    )
