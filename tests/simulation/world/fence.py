"""The simulated fence of one nursery: until when the workers of its node may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_agent.rendezvous.driver.fencing import FOREVER

if TYPE_CHECKING:
    from .workers import Nursery


COUNTED = {"suspended": True}
"""Whether its clock goes on while the host is suspended, as CLOCK_BOOTTIME does."""


class SimFence:
    """As `agent.nursery.fence.Fence`, with the memory."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._node, self._world = nursery.node, nursery.world
        self.until = 0.0
        self._generation = 0
        self._begun_in = -1
        self._armed = False
        self._missed_s = 0.0
        """For how long its clock has stood still."""

    def suspended(self, lasted_s: float) -> None:
        """The host runs again."""
        if not COUNTED["suspended"]:
            self._missed_s += lasted_s

    def move(self, until: float, generation: int) -> None:
        """The agent writes it."""
        self.until, self._generation = until, generation

    def begin(self, generation: int) -> bool:
        """Workers whose round was read in this generation are about to start. False: they must not."""
        self._begun_in = generation
        if self._is_passed():
            return False
        self._arm()
        return True

    def _is_passed(self) -> bool:
        return self._begun_in != self._generation or self._node.clock() - self._missed_s >= self.until

    def _arm(self) -> None:
        if not self._armed and self.until < FOREVER:
            self._armed = True
            self._nursery.later(max(0.0, self.until - self._node.clock() + self._missed_s) + 1e-6, self._rings)

    def _rings(self) -> None:
        self._armed = False
        if not self._nursery.busy:
            return
        if self._is_passed():
            self._nursery.fenced()
        else:
            self._arm()
