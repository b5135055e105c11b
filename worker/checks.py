"""What `Run(...)` checks at its start, and refuses, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .checkpoints.manifest import Manifest
from .data.order import VERSION as ORDER_VERSION
from .errors import Misused, WrongState
from .frameworks.fsdp1 import adapted


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
            thing.load_state_dict(states[name])
        except (ValueError, KeyError, RuntimeError) as error:
            if type(error) not in (ValueError, KeyError, RuntimeError):
                raise  # a more exact one says what it has to say itself
            raise WrongState(
                f"{where} has a state {name!r} that does not fit into the {type(thing).__name__} which Run(...) was "
                f"given ({' '.join(str(error).split())}): give it what it was made with, all groups of parameters of "
                "an optimizer included, or begin in another directory"
            ) from error
