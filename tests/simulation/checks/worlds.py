"""Two worlds: workers of two rounds of one incarnation that run at the same moment, on whichever nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .invariants import ONE_WORLD

if TYPE_CHECKING:
    from ..world.node import SimNode
    from .checkers import Checkers


class Worlds:
    """Looks at each start of workers. Workers that SIGKILL does not end are left out: nothing ends them in time."""

    def __init__(self, truth: Checkers) -> None:
        self._truth = truth

    def started(self, node: SimNode) -> None:
        """Workers of this node run from now on, or go on behind a suspension."""
        if self._truth.world.shared_store is None or not _lives(node):
            return
        number = node.nursery.round
        for other in self._truth.world.nodes.values():
            nursery = other.nursery
            if nursery.live and nursery.round != number and _lives(other):  # of a thousand nodes most are done here
                which = f"{node.ident} runs round {number} beside {other.ident} in round {other.nursery.round}"
                self._truth.need(False, ONE_WORLD, which)

    def fenced(self, node: SimNode) -> None:
        """The fence ended the workers of this node."""
        self._truth.world.reached.note("workers were fenced")


def _lives(node: SimNode) -> bool:
    return not node.suspended and any(not worker.unkillable for worker in node.nursery.live.values())
