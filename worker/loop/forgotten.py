"""What a script has forgotten that would cost it training without a word."""

from __future__ import annotations

from typing import Any

from ..data.cursors import Account
from ..world import PATIENCE_S, World


class Forgotten:
    """Looks at where steps are done. Each thing is said once."""

    def __init__(self, account: Account, log: Any, world: World) -> None:
        self._account, self._log, self._world = account, log, world
        world.waited = self.waited
        self._said = False

    def stepped(self) -> None:
        """A step was done where no loader of the run is looped over."""
        if not self._said and self._account.cursors and not self._account.has_begun:
            self._said = True
            self._log.warning(
                "run.step() was called before any loop over a loader of run.loader(): loop over what that returns, as "
                "a loop over the DataLoader itself begins its data anew in each start"
            )

    def epoch_over(self, *, stepped: bool) -> None:
        """An epoch of `Run.epochs` is over. stepped: whether a step was done in it."""
        if not stepped and not self._said and not self._account.between_steps():
            self._said = True
            self._log.warning(
                "an epoch passed without run.step(): none of its batches counts as trained on, and no checkpoint is "
                "taken; call run.step() after each optimizer.step()"
            )

    def goes_on(self, loader: str) -> None:
        """A loader of a checkpoint is made."""
        account = self._account
        over = account.kept[loader][2]
        # Of a loop over epochs or batches the passes before this one are known, and not given again.
        if over > 1 and account.rehearsed is None:
            self._log.info(
                "%d loops over loader %r were over before this start, and give nothing now; a loop that counts steps "
                "and makes a new iterator where one ends, finds %d empty ones: write run.batches(loader, steps=...)",
                *(over, loader, over),
            )

    def waited(self) -> None:
        """This rank waits for others between two batches. Said by the ranks that scripts let work alone: where all wait
        for one, a line of each would be too many."""
        rank = self._world.rank
        if rank in (0, self._world.size - 1):
            self._log.warning_once(
                f"rank {rank} has waited for others for {PATIENCE_S:.0f} s between two batches, and waits on: all "
                "ranks loop over each loader of run.loader(), equally often; give it no DataLoader that one rank reads "
                "alone"
            )
