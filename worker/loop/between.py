"""What a script does between two loops of an epoch, or behind the loop over epochs.

A start that goes on in the second loop comes by there once more, as it runs the script from the top. So a checkpoint
taken in the second loop must find nothing changed since the end of the first: a scheduler's step would count twice. The
same is true of what a script does at the top of an epoch, before its first loop; that is said.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ..checkpoints.pieces import identity, local_of, rebuild
from ..frameworks.fsdp1 import Whole


class Between:
    """Whether that changes what checkpoints keep. States that FSDP1 has to gather are not looked at."""

    def __init__(self, world: Any, states: dict[str, Any], variables: Any, reductions: Any, log: Any) -> None:
        """world: of all ranks. The rest but the log is what checkpoints keep, each with a `state_dict` of this rank."""
        kept = {**states, "run.vars": variables, "a reduction": reductions}
        self._things = {name: thing for name, thing in kept.items() if not isinstance(thing, Whole)}
        self._world, self._log = world, log
        self._mark: dict[str, Any] | None = None
        self._tensors: list[torch.Tensor] = []
        """The tensors of the mark, so that no new one gets the memory of one that is gone."""
        self._reported = self._reported_top = self._at_top = self._goes_on = False

    def add(self, name: str, thing: Any) -> None:
        """Another state that checkpoints keep."""
        if not isinstance(thing, Whole):
            self._things[name] = thing

    def passed(self) -> None:
        """A loop is over."""
        self._tensors = []
        self._mark = self._now(self._tensors)

    def changes(self) -> bool:
        """Collective, as the next loop begins: whether anything was changed since, on any rank."""
        changed = self._changed()
        found = bool(self._world.most([int(bool(changed))])[0])
        if found and not self._reported:
            self._reported = True
            self._log.info(
                "the script changes %s between two loops, and a restart within the second one would repeat that: no "
                "checkpoint is taken within the evaluation; to have one, change it after that",
                ", ".join(changed) or "what another rank keeps",
            )
        return found

    def epoch_begins(self, goes_on: bool) -> None:
        """The body of another epoch begins, or that of an epoch that this start goes on within."""
        self.passed()
        self._at_top, self._goes_on = True, goes_on

    def loop_begins(self) -> None:
        """An outermost loop begins. Says what was changed since the epoch's body began."""
        if not self._at_top:
            return
        self._at_top = False
        if not (changed := ", ".join(self._changed())):
            return
        if self._goes_on:
            self._log.warning(
                "the script has changed %s once more before the loop that this start goes on within, so that the "
                "training is not the one without a restart: change it at the end of an epoch",
                changed,
            )
        elif not self._reported_top:
            self._reported_top = True
            self._log.info(
                "the script changes %s at the top of an epoch, before its loop, and does so again in a start that goes "
                "on within it: change at the end of the epoch what must not be changed twice",
                changed,
            )

    def _changed(self) -> list[str]:
        now = self._now([])
        return [name for name in now if self._mark is not None and now[name] != self._mark.get(name)]

    def _now(self, kept: list[torch.Tensor]) -> dict[str, Any]:
        def marked(_: Any, tensor: torch.Tensor) -> Any:
            kept.append(tensor)
            if is_lazy(tensor):  # it has no memory yet
                return id(tensor)
            return (*identity(tensor), 0 if tensor.is_inference() else local_of(tensor)._version)

        return {name: rebuild({name: thing.state_dict()}, marked, other=_plain) for name, thing in self._things.items()}


def _plain(value: Any) -> Any:
    """Equal where the values are, NaN included."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return (value.shape, value.dtype.str, value.tobytes())
    return repr(value) if isinstance(value, float) else value
