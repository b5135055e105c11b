"""What a training script may import: `from elastic_agent.worker import Run`. Imports `proto` at most.

`run` is the training script's view; `data` decides which samples come when, and with which random numbers;
`shards` trains to the same bits over any number of ranks; `checkpoints` writes and reads states; `ledger` proves what
has been trained on. Works under any launcher and without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoints.folder import Retention
    from .checkpoints.foreign import read_foreign
    from .run import Run
    from .schedule import Every

__all__ = ["Every", "Retention", "Run", "read_foreign"]

_HOMES = {"Every": "schedule", "Retention": "checkpoints.folder", "Run": "run", "read_foreign": "checkpoints.foreign"}


def __getattr__(name: str) -> Any:
    """Imports torch only where a name is asked for: the command line of this package needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
