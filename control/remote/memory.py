"""Memory of the C library that calls over TCP use: threads share one arena, and what is free in it goes back."""

from __future__ import annotations

import ctypes

ARENA_MAX = -8
"""M_ARENA_MAX of mallopt(3)."""


def share_arena() -> None:
    """Have new threads share the C library's memory: each call has a thread, and with an arena for each of them a
    million calls grow an agent by 70 MiB."""
    try:
        ctypes.CDLL(None).mallopt(ARENA_MAX, 1)
    except AttributeError:
        pass  # another C library than glibc, without arenas


def give_back() -> None:
    """Return free memory to the kernel. Between what is in use glibc keeps it for good: a burst of calls, all of them
    waiting for a processor, would leave tens of MiB. Takes milliseconds."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # another C library than glibc
