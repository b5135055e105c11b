"""What `Run(...)` checks at its start, and refuses, and why."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from .checkpoints.manifest import Manifest
from .checkpoints.pieces import is_sharded
from .data.order import VERSION as ORDER_VERSION
from .errors import Misused, WrongState
from .frameworks.fsdp1 import adapted
from .loop.log import RunLog

_WRAPPERS = {"module.": "DistributedDataParallel or DataParallel", "_orig_mod.": "torch.compile"}
"""What wraps a model, by what it puts before the names of the model's state."""


def keepable(states: dict[str, Any]) -> dict[str, Any]:
    """The states as they are kept. Raises Misused where one cannot be."""
    for name, thing in states.items():
        if not all(callable(getattr(thing, needed, None)) for needed in ("state_dict", "load_state_dict")):
            raise Misused(f"Run({name}=...): {type(thing).__name__} has no state_dict() and load_state_dict()")
    return adapted(states)


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
