"""What a trainer was made with, as far as results depend on it: compared between nodes, and with a checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from . import plain
from .names import SCHEDULER_STEP

SHOWN = 80
"""Characters of a value that are kept; of a longer one the beginning, and a digest."""
NAMED = 3
"""Differences that a message names at most."""
_KEPT = ("seed", "amp_dtype", "parallel", "ddp_args", "add_dist_sampler", SCHEDULER_STEP)
"""Arguments that a training keeps from its first start to its last, besides config and operator."""
_OF_NODES = ("num_workers", "every")
"""Arguments that a later start may change, but that are the same on all nodes."""
_ARGUMENTS = {"every": "save_every"}
"""Arguments that have another name inside."""


def kept_of(program: Mapping[str, Any]) -> dict[str, str]:
    """By name, what may not change while a checkpoint is gone on from: config, operator, and what else the results of
    calls depend on. Texts, equal in every process where the values are."""
    found = {f"config[{key!r}]": _shown(value) for key, value in program["config"].items()}
    found |= {name: _shown(program[name]) for name in _KEPT}
    return {**found, "training_operator_cls": _name(program["operator_cls"])}


def all_of(program: Mapping[str, Any]) -> dict[str, str]:
    """By name, what must be the same on every node: what `kept_of` has, creators by their names, and numbers."""
    creators = {name: _name(each) for name, each in program.items() if name.endswith("_creator")}
    numbers = {_ARGUMENTS.get(name, name): _shown(program[name]) for name in _OF_NODES}
    return {**kept_of(program), **creators, **numbers}


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, str] | None:
    """How each has what the two differ in; None where they are equal."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    if not names:
        return None
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    first, second = (
        ", ".join(f"{name}={each[name]}" if name in each else f"no {name}" for name in names[:NAMED])
        for each in (one, other)
    )
    return first + more, second + more


def _shown(value: Any) -> str:
    text = plain.canonical(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... (digest {plain.digest(text)})"


def _name(thing: Any) -> str:
    while isinstance(thing, functools.partial):
        thing = thing.func
    return "None" if thing is None else str(getattr(thing, "__qualname__", type(thing).__qualname__))
