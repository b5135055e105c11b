"""How near the host of a store is to its limit of file descriptors: each node takes two, and so does any program that
connects to the port.

At the limit torch's server closes each new connection at once (libuv's answer to EMFILE), so the nodes that come later
cannot join, and the agent itself cannot open a file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

WARN_FROM, CALM_BELOW = 0.8, 0.7
"""Fractions of the limit: from the first on there is a warning, and below the second there may be another one."""
PER_NODE = 2
"""Connections that a node keeps open: one to write, one that waits for announcements."""
SERVER_NEEDS = 12
"""Descriptors with which torch's server starts and answers its own node: its loop takes seven (libuv 1.48), the
listening socket one, and two connections of this process have both their ends here."""


class DescriptorWatch:
    """Warns, once each time, when this process comes near its limit of descriptors and when it reaches it."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """`warn`: called with one line."""
        self._warn = warn
        self._warned = 0.0
        """The fraction of the limit at which the last warning came."""

    def check(self) -> None:
        """Look once; takes microseconds, however many descriptors are open."""
        limit = _soft_limit()
        used = _lowest_free(limit)
        fraction = used / limit
        if fraction < CALM_BELOW:
            self._warned = 0.0
        elif fraction >= 1.0 > self._warned:
            self._warn(
                f"all {limit} file descriptors of this agent, which hosts the store, are in use: no further node can "
                "join, and this node can open no file; start it with a higher hard limit (`ulimit -Hn`)"
            )
            self._warned = 1.0
        elif fraction >= WARN_FROM and not self._warned:
            self._warn(
                f"{used} of {limit} file descriptors of this agent, which hosts the store, are in use: about "
                f"{(limit - used) // PER_NODE} more nodes can join; start it with a higher hard limit (`ulimit -Hn`)"
            )
            self._warned = fraction


def check_for_server() -> None:
    """Raises OSError (EMFILE) unless a server of the store can start. Without a descriptor for a connection torch's
    server closes each one at once, and its own first connection is tried again for a minute."""
    held: list[int] = []
    try:
        while len(held) < SERVER_NEEDS:
            held.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    finally:
        for descriptor in held:
            os.close(descriptor)


def _soft_limit() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def _lowest_free(limit: int) -> int:
    """The lowest descriptor that is free: all below it are in use, and mostly none above it. `limit` if none is."""
    try:
        found = os.open("/", os.O_PATH | os.O_CLOEXEC)
    except OSError as why:
        return limit if why.errno == errno.EMFILE else 0
    os.close(found)
    return found
