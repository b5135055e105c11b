"""What a script has forgotten that would cost it training without a word."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..data.randomness import generators_in, is_generator
from ..world import PATIENCE_S, World
from .gradients import in_groups

_KNOWN = nn.Module, LRScheduler, GradScaler
"""What holds no optimizer that a script could have meant to give with it."""
HOOKS = (
    "gradients are reduced by a hook whose %s keeps something from one step to the next, and no checkpoint has it: a "
    "start begins without it, and is exact in its samples, and not in the model"
)


class Forgotten:
    """Looks at what a run is given, and at where steps are done. Each thing is said once."""

    def __init__(self, run: Any, world: World, states: Mapping[str, Any], done: int = 0) -> None:
        """states: of the run. done: steps of the epoch that this start goes on within."""
        self._account, self._log, self._world, self._done = run.account, run.log, world, done
        log, self._loaders, self._states = run.log, run._loaders, states
        self._ranks_before: int | None = run.ranks_before
        self._drawn = {name: (each, _state_of(each)) for name, each in _generators_of_script().items()}
        world.waited = self.waited
        self._said, self._may_look = False, True
        self._look_at_schedules(marked=True)
        for kind in hooks_that_keep(states.values()) if world.rank == 0 else ():
            log.warning(HOOKS, kind)
        for kind in left_out(states.values()) if world.rank == 0 else ():
            log.warning(
                "Run(...) has a module, and not the %s of its parameters: what that keeps of each step begins anew in "
                "each start; write Run(..., optimizer=optimizer)",
                kind,
            )

    def stepped(self, *, in_epoch: bool) -> None:
        """A step was done where no loader of the run is looped over. in_epoch: within `Run.epochs`."""
        if self._done and in_epoch and not self._account.cursors:
            self._log.info(
                "this start goes on %d steps within an epoch, and no loader of run.loader() gives what is left of it: "
                "a loop of the script's own that does not count by run.steps does the whole epoch",
                self._done,
            )
        self._done = 0
        if self._ranks_before not in (None, self._world.size) and not self._account.cursors:
            self._log.info(
                "no loader of run.loader() gives the batches, so that what is drawn for them follows the rank: with %d "
                "ranks, %d before, they are others from here on",
                *(self._world.size, self._ranks_before),
            )
        self._ranks_before = None
        if not self._said and self._account.cursors and not self._account.has_begun:
            self._said = True
            self._log.warning(
                "run.step() was called before any loop over a loader of run.loader(): loop over what that returns, as "
                "a loop over the DataLoader itself begins its data anew in each start"
            )

    def epoch_over(self, *, stepped: bool) -> None:
        """An epoch of `Run.epochs` is over. stepped: whether a step was done in it."""
        if self._may_look:
            self._may_look = False
            self._look_at_generators()
            self._look_at_schedules(marked=False)
        if not stepped and not self._said and not self._account.between_steps():
            self._said = True
            self._log.warning(
                "an epoch passed without run.step(): none of its batches counts as trained on, and no checkpoint is "
                "taken; call run.step() after each optimizer.step()"
            )

    def _look_at_schedules(self, *, marked: bool) -> None:
        """marked: as `schedules_left_out`; all are looked for behind the first epoch, as that takes 20 ms and more."""
        kinds = schedules_left_out(self._states.values(), marked=marked) if self._world.rank == 0 else ()
        for kind in kinds:
            self._log.warning_once(
                f"Run(...) has an optimizer, and not the {kind} of its rate, which begins anew in each start; write "
                "Run(..., schedule=schedule)"
            )

    def _look_at_generators(self) -> None:
        """Says which generators of the script's own it has drawn from, behind the first epoch of a start."""
        drawn, self._drawn = self._drawn, {}
        drawn = {name: (each, state) for name, (each, state) in drawn.items() if _state_of(each) != state}
        if not drawn or self._world.rank:
            return
        theirs = [each.wrapped for each in self._loaders.values()]
        kept = [[each.dataset, each.collate_fn, each.sampler, each.batch_sampler] for each in theirs]
        known = {id(each) for each in generators_in([*kept, *self._states.values()])}
        for name in [name for name, (each, _) in drawn.items() if id(each) not in known]:
            self._log.warning(
                "the script draws from a generator of its own, %s, and no checkpoint has that, so that a start draws "
                "other numbers: draw from run.rng(name), or from the global generators",
                name,
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
                "ranks loop over each loader of run.loader(), and call run.step(), equally often; give it no "
                "DataLoader that one rank reads alone"
            )


def _generators_of_script() -> dict[str, Any]:
    """Generators among the names of the program, by name."""
    found = {name: each for name, each in dict(vars(sys.modules["__main__"])).items() if is_generator(each)}
    return {name: each for name, each in found.items() if each is not torch.default_generator}


def _state_of(generator: Any) -> Any:
    """Another value once the generator was drawn from."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return repr(generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state())


def left_out(states: Iterable[Any]) -> list[str]:
    """Kinds of optimizers, made so far, of parameters of these modules, whose own state is not among these. None where
    a state is of another kind, as it may hold them."""
    states = list(states)
    if not all(hasattr(each, "param_groups") or isinstance(each, _KNOWN) for each in states):
        return []
    modules = [each for each in states if isinstance(each, nn.Module)]
    given = {id(parameter) for each in states for parameter in in_groups(each)}
    left = {id(each) for module in modules for each in module.parameters() if each.requires_grad} - given
    if not left:
        return []
    made = filter(_keeps, _made(Optimizer))
    return sorted({type(each).__name__ for each in made if not left.isdisjoint(map(id, in_groups(each)))})


def schedules_left_out(states: Iterable[Any], *, marked: bool = False) -> list[str]:
    """Kinds of schedules, made so far, of optimizers among these, that are not among these. None where a state is of
    another kind, as it may hold them. marked: only where an optimizer says that it has one, as all but a
    ReduceLROnPlateau write their first rate into its groups; else all objects of the process are looked at."""
    states = list(states)
    if not all(hasattr(each, "param_groups") or isinstance(each, _KNOWN) for each in states):
        return []
    known = {id(each.optimizer.param_groups) for each in states if isinstance(each, LRScheduler)}
    optimizers = [each for each in states if hasattr(each, "param_groups") and id(each.param_groups) not in known]
    has = [each for each in optimizers if not marked or any("initial_lr" in group for group in each.param_groups)]
    groups = {id(each.param_groups) for each in has}
    made = _made(LRScheduler) if groups else []
    parts = {id(part) for each in made for part in getattr(each, "_schedulers", ())}
    given = parts | {id(each) for each in states}
    left = [each for each in made if id(each) not in given and hasattr(each, "optimizer")]
    return sorted({type(each).__name__ for each in left if id(each.optimizer.param_groups) in groups})


def hooks_that_keep(states: Iterable[Any]) -> list[str]:
    """Kinds of what hooks keep from one step to the next that reduce the gradients of these models, in
    DistributedDataParallel, as PowerSGD's its errors. No state has it."""
    held = {id(each) for thing in states if isinstance(thing, nn.Module) for each in thing.parameters()}
    kept = [
        state
        for each in (_made(DistributedDataParallel) if held and dist.is_initialized() else ())
        if not held.isdisjoint(map(id, each.parameters()))
        for _, state in getattr(each, "_comm_hooks", ())
        if state is not None
    ]
    return sorted({type(state).__name__ for state in kept} - {"ProcessGroup"})


def _made(kind: type) -> list[Any]:
    """What this process has made of a class and of those derived from it. Each object is compared by its class alone:
    there are hundreds of thousands, and a start waits."""
    kinds, waiting = set[int](), [kind]
    while waiting:
        kinds.add(id(each := waiting.pop()))
        waiting += type.__subclasses__(each)
    return [each for each in gc.get_objects() if id(type(each)) in kinds]


def _keeps(optimizer: Any) -> bool:
    """Whether this optimizer keeps anything from one step to the next."""
    return type(optimizer) is not SGD or any(group.get("momentum") for group in optimizer.param_groups)
