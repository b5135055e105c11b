"""`dataclasses.replace`, ten times as fast: the machines copy their state at every event, most of a run's time.

A copy is made as an instance of a class with the same slots that may be written to, and then becomes one of the frozen
class, so that it equals what `dataclasses.replace` makes. The machines' modules get it by `substituted`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from elastic_agent.agent.lifecycle import (
    on_deadline,
    on_request,
    on_round,
    on_store,
    on_workers,
    stop_ladder,
    transitions,
)
from elastic_agent.rendezvous import records
from elastic_agent.rendezvous.coordinator import charging, leases, machine, observations, standing, takeover

from .substitution import Substitute

Copy = Callable[[Any, dict[str, Any]], Any]

_COPIES: dict[type, Copy] = {}


def replace(value: Any, **changes: Any) -> Any:
    """As `dataclasses.replace`, for frozen dataclasses with slots and no __post_init__; raises TypeError for others."""
    kind = type(value)
    copy = _COPIES.get(kind)
    if copy is None:
        copy = _COPIES[kind] = _make(kind)
    return copy(value, changes)


def _make(kind: type) -> Copy:
    names = [field.name for field in dataclasses.fields(kind)]
    if hasattr(kind, "__post_init__") or tuple(names) != kind.__dict__.get("__slots__"):
        raise TypeError(f"{kind} is more than its fields")
    loose = type(f"Loose{kind.__name__}", (), {"__slots__": tuple(names)})
    lines = [
        "def copy(value, changes):",
        "    made = loose()",
        *(f"    made.{name} = value.{name}" for name in names),
        "    for name, new in changes.items():",
        "        setattr(made, name, new)",
        "    made.__class__ = kind",
        "    return made",
    ]
    scope: dict[str, Any] = {"loose": loose, "kind": kind}
    exec("\n".join(lines), scope)
    copy: Copy = scope["copy"]
    return copy


_COPYING = (
    on_deadline,
    on_request,
    on_round,
    on_store,
    on_workers,
    stop_ladder,
    transitions,
    charging,
    leases,
    machine,
    records,
    observations,
    standing,
    takeover,
)
SUBSTITUTES: list[Substitute] = [(module, "replace", replace) for module in _COPYING]
