"""Leadership on a store that one node hosts: there is nothing to elect. Its host coordinates as long as the store is
there, in one term, and an announcement's version alone fences."""

from __future__ import annotations

from .store import FIRST_EPOCH


class HostLeads:
    """What such a store has to say about leadership; a base of those that implement `Store`."""

    @property
    def hosted(self) -> bool:
        raise NotImplementedError

    @property
    def elects(self) -> bool:
        return False

    def lead(self, node: str, timeout_s: float) -> int | None:
        return FIRST_EPOCH if self.hosted else None

    def wait_deposed(self, epoch: int, timeout_s: float) -> bool:
        return False

    def resign(self, epoch: int) -> None:
        """A host's term ends with its store."""

    def clear(self, epoch: int) -> None:
        """All goes with the host."""

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        raise NotImplementedError

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        raise NotImplementedError

    def announce_end(self, version: int, value: bytes, epoch: int, job: bytes, over: bytes) -> bool:
        # The record first, so that nobody who learns of the end finds it without the outcome.
        written = self.write_job(job, over) == job
        self.announce(version, value, epoch)
        return written
