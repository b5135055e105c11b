"""What `Run(...)` checks at its start and its first save, and refuses, and why."""

from __future__ import annotations

import contextlib
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from .checkpoints.manifest import Manifest
from .checkpoints.pieces import has_memory, is_sharded
from .data.order import VERSION as ORDER_VERSION
from .errors import Misused, NotResumable, WrongState
from .frameworks.fsdp1 import adapted
from .loop.log import RunLog
from .values import large_apart
from .world import World

_WRAPPERS = {"module.": "DistributedDataParallel or DataParallel", "_orig_mod.": "torch.compile"}
"""What wraps a model, by what it puts before the names of the model's state."""
_SAMPLED, _NUMBERS = 16, 8
"""Parameters of a model that ranks compare, about, and numbers of each: other models differ in one of them."""


def keepable(states: dict[str, Any]) -> dict[str, Any]:
    """The states as they are kept. Raises Misused where one cannot be."""
    for name, thing in states.items():
        if not all(callable(getattr(thing, needed, None)) for needed in ("state_dict", "load_state_dict")):
            raise Misused(f"Run({name}=...): {type(thing).__name__} has no state_dict() and load_state_dict()")
        if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(thing).__mro__):
            raise Misused(
                f"Run({name}=...): the state of a {type(thing).__name__} is gathered on one rank, when that is asked "
                "for, and no checkpoint has it: shard the model by fully_shard, or use the optimizer itself"
            )
        if _is_divided_by_zero(thing):
            raise Misused(
                f"Run({name}=...): DeepSpeed's ZeRO keeps the weights that a {type(thing).__name__} trains, and what "
                "its optimizer has of them, divided over the ranks, and no checkpoint has those: shard the model by "
                "fully_shard, or set the stage of zero_optimization to 0"
            )
    return adapted(states)


def _is_divided_by_zero(thing: Any) -> bool:
    """Marks of DeepSpeed 0.19 on the optimizer, and on a model's parameters at stages 1 and 2, and 3."""
    model = getattr(thing, "unwrapped", thing)
    held = model.parameters() if isinstance(model, nn.Module) else ()
    by_kind = any(kind.__name__ == "ZeROOptimizer" for kind in type(thing).__mro__)
    return by_kind or any(hasattr(each, "_hp_mapping") or hasattr(each, "ds_id") for each in held)


def check_run(manifest: Manifest, seed: int, where: str) -> None:
    """Raises WrongState where the checkpoint belongs to a run in another order. where: how messages name it."""
    if manifest.run["order"] != ORDER_VERSION:
        raise WrongState(
            f"{where} has order version {manifest.run['order']}, and this version of elastic-agent makes "
            f"{ORDER_VERSION}: go on with the version that wrote it, or begin anew in another directory"
        )
    if manifest.run["seed"] != seed:
        raise WrongState(f"{where} has seed {manifest.run['seed']}, and Run(..., seed={seed}) another")


def check_names(kept: set[str], given: set[str], where: str) -> None:
    """Raises WrongState where the checkpoint holds other states than the script gives."""
    if kept != given:
        raise WrongState(
            f"{where} holds {', '.join(sorted(kept)) or 'nothing'}, and Run(...) was given "
            f"{', '.join(sorted(given)) or 'nothing'}"
        )


def load_all(things: Mapping[str, Any], states: Mapping[str, Any], where: str) -> None:
    """Loads each its state. Raises WrongState where one does not fit, in a line."""
    for name, thing in things.items():
        try:
            thing.load_state_dict(_renamed(name, thing, states[name], where))
        except (ValueError, KeyError, RuntimeError) as error:
            if type(error) not in (ValueError, KeyError, RuntimeError):
                raise  # a more exact one says what it has to say itself
            # Not chained: the launcher shows the first cause, which would be torch's text without what to do.
            raise WrongState(
                f"{where} has a state {name!r} that does not fit into the {type(thing).__name__} which Run(...) was "
                f"given: {_advice(thing, states[name])}, or begin in another directory; "
                f"{type(thing).__name__} says: {' '.join(str(error).split())}"
            ) from None


def frozen_in(states: Mapping[str, Any]) -> dict[str, str]:
    """Of each model, for each parameter in turn 1 where it does not require gradients, else 0."""
    return {
        name: "".join(str(int(not each.requires_grad)) for each in model.parameters())
        for name, model in _models(states).items()
    }


def _models(things: Mapping[str, Any]) -> dict[str, nn.Module]:
    """Those that are models, also where a framework has wrapped them."""
    held = {name: getattr(thing, "unwrapped", thing) for name, thing in things.items()}
    return {name: thing for name, thing in held.items() if isinstance(thing, nn.Module)}


def set_frozen(things: Mapping[str, Any], kept: Mapping[str, str], where: str, log: RunLog) -> None:
    """Lets those parameters require gradients that did as the checkpoint was taken: a script that freezes some in one
    epoch does not do so again in a start behind that. kept: as `frozen_in`. The log says where the script has set it
    otherwise."""
    for name, now in frozen_in(things).items():
        before = kept.get(name, now)  # a checkpoint of an earlier version has none
        if before == now or len(before) != len(now):
            continue
        for each, frozen, other in zip(_models(things)[name].parameters(), before, now, strict=True):
            if frozen != other:
                each.requires_grad_(frozen == "0")
        log.info(
            "%s has %d of the %d parameters of %r frozen, and the script %d: they are as the checkpoint has them; what "
            "is to be otherwise from here on, set behind Run(...)",
            *(where, before.count("1"), len(now), name, now.count("1")),
        )


def _renamed(name: str, thing: Any, state: Any, where: str) -> Any:
    """The state under the names of this module, where it was kept of the same one in other wrappers, or in none: all
    names differ by what these put before each of them, and by nothing else. Any other state as it is."""
    if not (isinstance(thing, nn.Module) and _has_names(state) and _has_names(present := thing.state_dict())):
        return state
    before, now = _prefix(state), _prefix(present)
    same = {key[len(before) :] for key in state} == {key[len(now) :] for key in present}
    # A sharded tensor was looked for by its name, before it was read.
    if before == now or not same or any(is_sharded(value) for value in present.values()):
        return state
    renamed = OrderedDict((now + key[len(before) :], value) for key, value in state.items())
    if (versions := getattr(state, "_metadata", None)) is not None:  # of the state of each part, "" for the whole
        dotted = {f"{place}." if place else "": version for place, version in versions.items()}
        renamed._metadata = {  # type: ignore[attr-defined]
            (now + place[len(before) :]).removesuffix("."): version
            for place, version in dotted.items()
            if place.startswith(before)
        }
    RunLog(dist.get_rank() if dist.is_available() and dist.is_initialized() else 0).info(
        "%s has the state %r with %s, and the model that Run(...) was given has %s: it is loaded under the model's "
        "names; give Run the model before it is wrapped, and the names stay",
        *(where, name, _told(before), _told(now)),
    )
    return renamed


def _has_names(state: Any) -> bool:
    return isinstance(state, Mapping) and all(isinstance(key, str) for key in state)


def _prefix(names: Collection[str]) -> str:
    """What wrappers have put before all of these."""
    prefix = ""
    while more := next((word for word in _WRAPPERS if names and all(n.startswith(prefix + word) for n in names)), ""):
        prefix += more
    return prefix


def _told(prefix: str) -> str:
    return f"{prefix!r} before each name" if prefix else "no prefix"


def _advice(thing: Any, state: Any) -> str:
    """What to do about a state that does not fit."""
    if isinstance(thing, nn.Module) and _has_names(state) and _has_names(now := thing.state_dict()):
        words = [word for word in _WRAPPERS if _count(word, state) != _count(word, now)]
        if words and sorted(map(_bare, state)) == sorted(map(_bare, now)):
            return (
                f"the names differ by {' and '.join(f'{word!r} of {_WRAPPERS[word]}' for word in words)} only; give "
                "Run the model before it is wrapped (net.module, or the model that torch.compile was given) at each "
                "start"
            )
    return "give it what it was made with, all groups of parameters of an optimizer included"


def _bare(name: str) -> str:
    """The name without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if f"{part}." not in _WRAPPERS)


def _count(word: str, names: Collection[str]) -> int:
    return sum(f"{part}." == word for name in names for part in name.split("."))


def check_replicas(things: Mapping[str, Any], world: World, log: Callable[[str], None]) -> None:
    """Collective: whether each model is the same on all ranks, as checkpoints keep that of one. Says where the
    parameters differ. Raises NotResumable where the tensors do, as those of a pipeline's stages."""
    if world.size == 1:
        return
    models = {name: model for name, model in _models(things).items() if _is_made(model)}
    said: set[str] = set()
    told = world.gather({name: [_shapes(net), _sample(net)] for name, net in models.items()})
    for rank, of_rank in enumerate(told):
        for name, (shapes, sample) in told[0].items():
            others, numbers = of_rank.get(name, [None, []])
            if others is None:  # what only some ranks give is refused where it is loaded
                continue
            if others != shapes:
                raise NotResumable(
                    f"{name!r} has other tensors on rank {rank} than on rank 0: only models with the same names and "
                    "shapes on every rank are saved, as data parallel and fully sharded ones, and no pipeline's stages"
                )
            if not world.rank and not all(map(_about, numbers, sample)) and name not in said:
                said.add(name)
                log(
                    f"{name!r} has other parameters on rank {rank} than on rank 0, and a start gives all ranks those "
                    "of rank 0: keep them the same, as DistributedDataParallel does of those that require gradients as "
                    "it is made, or shard them by fully_shard"
                )
    for name, rank in large_apart(things, world).items():
        if not world.rank:
            log(
                f"{name!r} of rank {rank} is not that of rank 0, and too large to be kept for each: a start gives all "
                "ranks that of rank 0"
            )


def _is_made(net: nn.Module) -> bool:
    """Whether all of its tensors are there, as those of lazy layers are behind a first batch."""
    held = (*net.parameters(), *net.buffers())
    return not any(is_lazy(tensor) or tensor.is_meta for tensor in held)


def _shapes(net: nn.Module) -> int:
    """Equal for modules whose states have tensors of the same names, shapes and types."""
    named = [(name, value) for name, value in net.state_dict().items() if isinstance(value, torch.Tensor)]
    return zlib.crc32(repr([(name, list(value.shape), str(value.dtype)) for name, value in named]).encode())


def _sample(net: nn.Module) -> list[float]:
    """Some of the numbers of the parameters that this rank holds whole."""
    whole = [held.detach() for held in net.parameters() if not is_sharded(held) and has_memory(held)]
    found: list[float] = []
    for held in whole[:: len(whole) // _SAMPLED + 1]:
        with contextlib.suppress(NotImplementedError):  # of a type that torch has no numbers for, of half a byte say
            numbers = held.flatten()[:_NUMBERS].to("cpu", torch.complex128).tolist()
            found += [part for number in numbers for part in (number.real, number.imag)]
    return found


def _about(one: float, other: float) -> bool:
    """Whether they are the same but for rounding; NaN is NaN."""
    return abs(one - other) <= 1e-3 * max(abs(one), abs(other)) or repr(one) == repr(other)
