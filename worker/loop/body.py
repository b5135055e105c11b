"""What the body of a training loop asks its run for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..data.randomness import key_everything
from ..errors import Misused
from ..failing import fail_together
from ..keys import key_of, mix
from ..shards.sharding import Sharding
from ..values import Mean
from .early import EarlyEnd
from .log import RunLog
from .marks import Marks
from .reductions import Reductions
from .requests import Requests


class Body:
    """Of `Run`, which makes what these need."""

    rank: int
    seed: int
    steps: int
    log: RunLog
    quiet_until_s: float
    _early: EarlyEnd
    _marks: Marks
    _reductions: Reductions
    _requests: Requests
    _sharding: Sharding | None

    def shards(self, batch: Any) -> Iterator[Any]:
        """At level `bits`, `for x, y in run.shards(batch): loss_sum(net(x), y).backward()`: this rank's shards of a
        batch of `loader`, each under random numbers of its own. The loss is the sum over the shard's samples; behind
        the loop each `grad` is the mean over the samples of the global batch, the same bits over any number of ranks.
        Under `torch.no_grad()` nothing is summed. Collective. Raises Misused.
        """
        if self._sharding is None:
            raise Misused("run.shards() without Run(..., shards=N): N is how many ranks there can be at most")
        return self._sharding.over(batch)

    def save(self, label: str = "") -> None:
        """Asks for a checkpoint, on any rank: made at the next exchange. label: keeps it beyond retention."""
        self._requests.label = str(label or "")
        self.disturb()

    def stop(self) -> None:
        """Asks for the end, on any rank, of a job that is to go on later: at the next exchange all ranks save and,
        within `epochs` or `batches`, exit with 75, as the agents do then. Without an agent all loops over loaders end,
        and the script leaves out what it does behind them: `if run.stopping: break`."""
        self._requests.stop = True
        self.disturb()

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

    def _key_turn(self, key: int) -> None:
        key_everything(mix(key, self._turn()))

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

    def disturb(self) -> None:
        """What is asked for is looked for at the next boundary."""
        self.quiet_until_s = -math.inf
