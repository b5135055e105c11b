"""Whether a loop has trained anything, where no step says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def mark(states: Mapping[str, Any]) -> Any:
    """Another value once a gradient of these modules and optimizers has changed; None where they have no parameters."""
    found = []
    for thing in states.values():
        if isinstance(thing, nn.Module):
            found += list(thing.parameters())
        found += in_groups(thing)
    grads = [(parameter.grad, id(parameter.grad)) for parameter in found]
    return [(number, None if grad is None else grad._version) for grad, number in grads] or None


def in_groups(thing: Any) -> list[Any]:
    """Parameters of an optimizer; none of anything else."""
    return [parameter for group in getattr(thing, "param_groups", ()) for parameter in group["params"]]
