"""The arguments of a trainer, checked before anything starts, and what is made of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..agent.errors import UsageError
from ..launcher.config.config import LaunchConfig
from . import plain
from .names import BATCH_SIZE, FOLDER, SCHEDULER_STEP
from .operator import TrainingOperator, check_steps

PARALLEL = ("ddp", "fsdp", "none")
PRELOADED = ("torch", "torch.distributed", "elastic_agent.trainer.in_worker.session")
"""What workers are forked with, unless `initialization_hook` is to run before torch is imported."""


def checked_config(config: Mapping[str, Any] | None, num_workers: int) -> dict[str, Any]:
    """Plain data, with a batch size that every worker gets a part of. Raises UsageError."""
    made = dict(config or {})
    plain.check(made, "config")
    if BATCH_SIZE in made:
        size = made[BATCH_SIZE]
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"config[BATCH_SIZE] is {size!r}, and must be a whole number of at least 1")
        if size < num_workers:
            raise UsageError(
                f"config[BATCH_SIZE] is {size} for {num_workers} workers: it is the batch of all of them together, of "
                f"which each needs at least 1 sample; give at least {num_workers}, or fewer workers"
            )
    return made


def checked_creators(creators: dict[str, Any], operator_cls: Any, hook: Any) -> None:
    """Raises UsageError where one is no function, or where there are not enough of them."""
    for name, given in (*creators.items(), ("initialization_hook", hook)):
        if given is not None and not callable(given):
            raise UsageError(f"{name} is a {type(given).__name__}, and must be a function")
    if not (isinstance(operator_cls, type) and issubclass(operator_cls, TrainingOperator)):
        raise UsageError(f"training_operator_cls is {operator_cls!r}, and must be a subclass of TrainingOperator")
    if creators["model_creator"] is None and operator_cls.setup is TrainingOperator.setup:
        raise UsageError(
            "there is no model_creator, and training_operator_cls has no setup() that registers a model: give one"
        )
    if creators["model_creator"] is None and (others := [n for n, v in creators.items() if v is not None]):
        raise UsageError(f"{', '.join(others)} without model_creator: register everything in setup(), or give all")


def checked_amp(use_fp16: bool, amp_dtype: Any, apex_args: Any) -> str | None:
    """The type of mixed precision, by its name in torch. Raises UsageError."""
    if apex_args is not None:
        raise UsageError("apex_args: NVIDIA's apex.amp is not supported; use amp_dtype=torch.bfloat16, or use_fp16=True")
    if amp_dtype is None:
        return "float16" if use_fp16 else None
    name = str(amp_dtype).removeprefix("torch.")
    if name not in ("float16", "bfloat16"):
        raise UsageError(f"amp_dtype={amp_dtype!r}: it is torch.float16 or torch.bfloat16")
    if use_fp16 and name != "float16":
        raise UsageError(f"use_fp16=True and amp_dtype={amp_dtype!r} exclude each other; give one of them")
    return name


def checked_number(name: str, value: Any, least: int) -> int:
    """Raises UsageError where it is no whole number of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} is {value!r}, and must be a whole number of at least {least}")
    return value


def checked_gpus(use_gpu: bool | str, num_workers: int) -> bool:
    """Whether workers use GPUs. Raises UsageError where there is none, and it was asked for."""
    if use_gpu not in (True, False, "auto"):
        raise UsageError(f"use_gpu={use_gpu!r}: it is True, False or 'auto'")
    if use_gpu is False:
        return False
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count and use_gpu is True:
        raise UsageError("use_gpu=True, and torch finds no GPU here; give use_gpu='auto' to go on without")
    return bool(count)


def program_of(**given: Any) -> dict[str, Any]:
    """What the workers are made of. Raises UsageError."""
    check_steps(given[SCHEDULER_STEP])
    if given["parallel"] not in PARALLEL:
        raise UsageError(f"parallel={given['parallel']!r}: it is one of {', '.join(PARALLEL)}")
    if given["backend"] not in ("auto", "gloo", "nccl", "mpi", "ucc"):
        raise UsageError(f"backend={given['backend']!r}: it is auto, gloo or nccl")
    return given


def launch_config(
    *,
    folder: str,
    nnodes: str,
    num_workers: int,
    use_gpu: bool,
    rdzv_endpoint: str,
    rdzv_id: str,
    preload: Any,
    launch: Mapping[str, Any],
) -> LaunchConfig:
    """How this node's agent starts the workers. Raises UsageError."""
    least, most = _nodes(nnodes)
    here: int | str = max(1, -(-num_workers // most))
    if use_gpu:
        import torch

        here = min(int(here), torch.cuda.device_count())
    fields: dict[str, Any] = {
        "min_nodes": least,
        "max_nodes": most,
        "nproc_per_node": here,
        "max_restarts": 1_000_000,
        "preload": preload,
        "shutdown_timeout": 5.0,
    }
    if rdzv_endpoint:
        fields |= {"rdzv_endpoint": rdzv_endpoint, "rdzv_backend": "c10d", "run_id": rdzv_id}
    elif most > 1:
        raise UsageError(f"nnodes={nnodes!r} needs rdzv_endpoint='HOST:PORT', where the nodes find each other")
    else:
        fields["standalone"] = True
    env = {FOLDER: folder, "PYTHONPATH": _search_path()}
    return LaunchConfig(**{**fields, **launch, "env": {**env, **launch.get("env", {})}})


def _nodes(text: str) -> tuple[int, int]:
    least, _, most = str(text).partition(":")
    try:
        made = int(least), int(most or least)
    except ValueError:
        made = (0, 0)
    if not 1 <= made[0] <= made[1]:
        raise UsageError(f"nnodes={text!r}: it is a number of nodes, or MIN:MAX")
    return made


def _search_path() -> str:
    """PYTHONPATH for the workers, by which they find this package where the program has found it."""
    package = sys.modules[__name__.partition(".")[0]]
    home = os.path.dirname(os.path.abspath(next(iter(package.__path__))))
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([*given, home] if home not in given else given)


Creator = Callable[..., Any]
