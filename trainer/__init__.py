"""Distributed training as a Python object: `from elastic_agent.trainer import TorchTrainer, TrainingOperator`.

`trainer` is what a program holds, `operator` what it may override; `program` runs beside the program, `in_worker` in
the workers. Stands on `launcher` and `worker`, and imports them when a name is asked for; nothing below imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import Diverged, TrainerError, TrainingFailed, WrongReturn
    from .names import BATCH_SIZE, NUM_SAMPLES, SCHEDULER_STEP
    from .operator import TrainingOperator
    from .trainer import TorchTrainer
    from .tune import TorchTrainable as TorchTrainable

# Without TorchTrainable, which needs ray: `import *` needs it not.
__all__ = [
    "BATCH_SIZE",
    "NUM_SAMPLES",
    "SCHEDULER_STEP",
    "Diverged",
    "TorchTrainer",
    "TrainerError",
    "TrainingFailed",
    "TrainingOperator",
    "WrongReturn",
]

_HOMES = {
    "BATCH_SIZE": "names",
    "Diverged": "errors",
    "NUM_SAMPLES": "names",
    "SCHEDULER_STEP": "names",
    "TorchTrainable": "tune",
    "TorchTrainer": "trainer",
    "TrainerError": "errors",
    "TrainingFailed": "errors",
    "TrainingOperator": "operator",
    "WrongReturn": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
