"""What the body of a training loop asks its run for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from ..failing import fail_together
from ..keys import key_of
from ..shards.sharding import Sharding
from ..values import Mean
from .early import EarlyEnd
from .log import RunLog
from .marks import Marks
from .reductions import Reductions


class Body:
    """Of `Run`, which makes what these need."""

    rank: int
    seed: int
    steps: int
    log: RunLog
    _early: EarlyEnd
    _marks: Marks
    _reductions: Reductions
    _sharding: Sharding | None

    def section(self, name: str) -> AbstractContextManager[None]:
        """Around what is no part of a step, such as an evaluation: an agent that watches for hangs (--watch) learns how
        long it takes by itself. Loaders with `train=False`, and saves, are known to it."""
        return self._marks.section(name)

    def rng(self, name: str) -> torch.Generator:
        """A generator for this step and rank (at level `bits`: and shard), the same after a restart."""
        return torch.Generator().manual_seed(key_of(self.seed, "rng", name, self.steps, self._turn()))

    def _turn(self) -> int:
        """Whose random numbers are drawn: of this rank; at level `bits`, of all ranks together, or of a shard."""
        return self.rank if self._sharding is None else self._sharding.turn

    def mean(self, name: str) -> Mean:
        """A mean over samples and ranks that checkpoints keep, by name."""
        return self._reductions.mean(name)

    def metric(self, name: str, metric: Any) -> Any:
        """A `torchmetrics.Metric` or collection, which checkpoints keep from now on, by name; each rank's states,
        merged by the metric's own reductions where the number of ranks changes. Raises Misused, NotResumable."""
        return self._reductions.metric(name, metric)

    def time_left(self) -> float | None:
        """Seconds until the job's deadline (`loop/deadline.py`). Negative after it; None where there is none."""
        return self._early.deadline.left_s()

    def fail_together(self) -> AbstractContextManager[None]:
        """Around the loop: an exception on this rank ends its process at once, with the cause in the error file: no
        other rank waits for it in a collective, as the launcher sees the exit and ends them."""
        return fail_together(self.log, self.rank)
