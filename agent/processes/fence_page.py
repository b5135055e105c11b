"""The memory in which an agent tells its nursery until when workers may run (`agent/nursery/fence.py`)."""

from __future__ import annotations

import os

from ..nursery import fence


class FencePage:
    """For any thread; who moves the fence sees to it that two do not at once."""

    def __init__(self) -> None:
        """A fence that is passed. Raises OSError."""
        self.fd = -1
        self.fd = os.memfd_create("elastic-agent-fence", os.MFD_CLOEXEC)
        self.move(0.0, 0)

    def now(self) -> float:
        """Seconds on the clock of the fence."""
        return fence.now_ns() / 1e9

    def move(self, until: float, generation: int) -> None:
        """Let workers run until then. In one call, so that an agent that is frozen has moved it or has not."""
        os.pwrite(self.fd, fence.encode(int(until * 1e9), generation), 0)

    def __del__(self) -> None:
        # Not before: a thread whose call to the store ends late may still move it.
        if self.fd >= 0:
            os.close(self.fd)
