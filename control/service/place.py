"""Where agents of this host have their control sockets.

    <base>/<pid>-<random>/control.sock      base: $ELASTIC_AGENT_RUN_DIR, or $XDG_RUNTIME_DIR/elastic-agent,
                                            or /tmp/elastic-agent-<uid>

Not $TMPDIR: it is another for each batch job, and a socket's path holds 107 bytes.
"""

from __future__ import annotations

import os
import stat

VARIABLE = "ELASTIC_AGENT_RUN_DIR"
"""The base, instead; `off`: no agent that has it answers."""
OFF = "off"
SOCKET = "control.sock"
PATH_MAX = 107
"""Bytes of a socket's path; unix(7)."""


class NoPlace(Exception):
    """There is no directory for the socket. One line."""


def bases() -> list[str]:
    """Where sockets of this user's agents may be: the first is where an agent of this environment has its own."""
    if given := os.environ.get(VARIABLE, ""):
        return [] if given == OFF else [os.path.abspath(given)]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    common = f"/tmp/elastic-agent-{os.geteuid()}"  # noqa: S108 - made and checked as this user's alone
    return [*([f"{runtime}/elastic-agent"] if os.path.isabs(runtime) and os.path.isdir(runtime) else []), common]


def make() -> str:
    """A new run directory, of this user only; empty where that is switched off. Raises NoPlace."""
    trouble = ""
    for base in bases():
        try:
            _check(base)
            path = f"{base}/{os.getpid()}-{os.urandom(4).hex()}"
            if len(os.fsencode(f"{path}/{SOCKET}")) > PATH_MAX:
                raise NoPlace(f"{path}/{SOCKET} is longer than the {PATH_MAX} bytes of a socket's path")
            os.mkdir(path, 0o700)
        except OSError as error:
            trouble = trouble or f"{base}: {error.strerror}"
        except NoPlace as error:
            trouble = trouble or str(error)
        else:
            return path
    if trouble:
        raise NoPlace(f"{trouble}; set {VARIABLE} to a directory of this user only")
    return ""


def _check(base: str) -> None:
    """Make the directory if it is not there. Raises NoPlace where others may write to it, or OSError."""
    try:
        os.mkdir(base, 0o700)
    except FileExistsError:
        found = os.lstat(base)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise NoPlace(
                f"{base} is no directory of this user with mode 0700 (owner {found.st_uid}, mode "
                f"{stat.S_IMODE(found.st_mode):04o})"
            ) from None


def remove(path: str) -> None:
    """Remove a run directory and the socket in it. One that is gone is no error."""
    try:
        os.unlink(f"{path}/{SOCKET}")
    except FileNotFoundError:
        pass
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass
