"""The files by which a job is asked to save, or to stop."""

from __future__ import annotations

import contextlib
import os


def touch(path: str, content: str = "") -> bool:
    """Make the file, if it is not there, with the content, if there is room for it. Whether it was made.

    An empty file takes no block: a full disk can still be acted upon. Raises OSError.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    try:
        with contextlib.suppress(OSError):
            os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)
    return True
