"""The fence: until when workers may run, as the agent says in a piece of memory that it shares with the nursery.

The agent moves it on while it is sure that no newer round begins; the nursery kills the workers once it is passed, by a
timer of its own, so a frozen agent is fenced too. The time is CLOCK_BOOTTIME, which goes on while the host is
suspended. A generation counts how often the fence was passed: workers may start only in the generation in which the
agent read that their round runs. Part of the nursery; imports as little as it does.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import CDLL

CLOCK = 7
"""CLOCK_BOOTTIME, from <linux/time.h>."""
TFD_FLAGS, TFD_TIMER_ABSTIME = os.O_NONBLOCK | os.O_CLOEXEC, 1
"""From <sys/timerfd.h>; Python has these calls from 3.13 on."""
WORD, SIZE = 8, 32
"""Bytes of a number, and of the whole: until when, in nanoseconds, the generation, and both once more, inverted."""
TORN_NS = 1_000_000
"""After this it is read again, if the agent was about to write it."""
FULL = (1 << 8 * WORD) - 1


def now_ns() -> int:
    """The time that fences are told in."""
    return time.clock_gettime_ns(CLOCK)


def encode(until_ns: int, generation: int) -> bytes:
    """What is in the memory."""
    each = (until_ns, generation, until_ns ^ FULL, generation ^ FULL)
    return b"".join(number.to_bytes(WORD, sys.byteorder) for number in each)


def decode(data: bytes) -> tuple[int, int] | None:
    """Until when, and the generation; None while the agent writes it."""
    until_ns, generation, *inverted = (
        int.from_bytes(data[at : at + WORD], sys.byteorder) for at in range(0, SIZE, WORD)
    )
    return (until_ns, generation) if inverted == [until_ns ^ FULL, generation ^ FULL] else None


class Fence:
    """Watches the fence for the nursery."""

    def __init__(self, libc: CDLL, memory: int) -> None:
        """`memory`: a descriptor of the memory. Raises OSError."""
        from ctypes import get_errno

        self._libc, self._memory = libc, memory
        self.fd = int(libc.timerfd_create(CLOCK, TFD_FLAGS))
        """Readable once it is time to look."""
        if self.fd < 0:
            raise OSError(get_errno(), f"timerfd_create on CLOCK_BOOTTIME: {os.strerror(get_errno())}")
        self._generation = -1
        self.passed = True
        """No worker may run until `begin` finds that it is not passed."""

    def begin(self, generation: int) -> bool:
        """Workers whose round was read in this generation are about to start. False: they must not."""
        self._generation, self.passed = generation, False
        return not self.look()

    def look(self) -> bool:
        """Whether it is passed, which stays so until `begin`. If not, `fd` is readable once it may be."""
        try:
            os.read(self.fd, WORD)
        except BlockingIOError:
            pass  # nothing has expired: this look was not caused by the timer
        if self.passed:
            return True
        found = decode(os.pread(self._memory, SIZE, 0))
        now = now_ns()
        if found is None:
            self._arm(now + TORN_NS)
            return False
        until_ns, generation = found
        self.passed = generation != self._generation or now >= until_ns
        if not self.passed:
            self._arm(until_ns)
        return self.passed

    def rest(self) -> None:
        """No worker is left."""
        self.passed = True
        self._arm(0)

    def _arm(self, when_ns: int) -> None:
        """Set the timer to this time; 0: off."""
        from ctypes import c_long

        spec = (c_long * 4)(0, 0, *divmod(when_ns, 1_000_000_000))  # struct itimerspec: interval, then value
        self._libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, spec, None)
