"""The arguments of a trainer, checked before anything starts, and what is made of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..agent.errors import UsageError
from ..launcher.config.config import LaunchConfig
from ..launcher.config.devices import count_gpus
from . import plain
from .names import BATCH_SIZE, FOLDER, SCHEDULER_STEP
from .operator import TrainingOperator, check_steps

PARALLEL = ("ddp", "fsdp", "none")
ENDLESS = 1_000_000
"""Restarts that the agent may make: the trainer counts them itself, anew for each call."""
STOP_S = 5.0
"""How long a worker that is stopped gets to end by itself."""
STORE_GRACE_S = 5.0
"""How long a lost host of the rendezvous is waited for where there is another one to go to."""
SETTLE_S = 10.0
"""How long a planned change of nodes waits for the workers to end their batch and save."""
PRELOADED = ("torch", "torch.distributed", "elastic_agent.trainer.in_worker.preload_imports")
"""What workers are forked with, unless `initialization_hook` is to run before torch is imported."""


def checked_config(config: Mapping[str, Any] | None, num_workers: int) -> dict[str, Any]:
    """Plain data, with a batch size that every worker gets a part of. Raises UsageError."""
    if config is not None and not isinstance(config, Mapping):
        raise UsageError(f"config is a {type(config).__name__}, and must be a dict of plain data")
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
        raise UsageError(
            "apex_args: NVIDIA's apex.amp is not supported; use amp_dtype=torch.bfloat16, or use_fp16=True"
        )
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


def checked_division(num_workers: int, most_nodes: int, nnodes: Any) -> None:
    """Raises UsageError where not every one of the most nodes has as many workers as the others."""
    if num_workers % most_nodes:
        below = num_workers // most_nodes * most_nodes
        near = f"{below} or {below + most_nodes}" if below else str(most_nodes)
        raise UsageError(
            f"num_workers is {num_workers} for nnodes={nnodes!r}: it counts over all nodes, and each of the most "
            f"nodes, {most_nodes}, has an equal part; give {near}, or another number of nodes"
        )


def checked_gpus(use_gpu: bool | str) -> bool:
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


@dataclass
class Settled:
    """What a trainer is made of."""

    program: dict[str, Any]
    """What travels to the workers."""
    config: dict[str, Any]
    hook: Any
    nodes: tuple[int, int]
    workers_here: int
    resources: Callable[[], int] | None
    """For how many workers this node has resources now; None: always for `workers_here`."""
    rdzv_endpoint: str
    rdzv_id: str
    preload: Any
    fields: dict[str, Any]
    """Further fields of LaunchConfig."""

    @property
    def endpoints(self) -> list[str]:
        """Where the nodes find each other, in the order in which hosts are tried."""
        if str(self.fields.get("rdzv_backend", "")).startswith("etcd"):
            return [self.rdzv_endpoint]  # servers of one cluster
        return [part.strip() for part in self.rdzv_endpoint.split(",") if part.strip()]

    def launch(self, folder: str, workers: int | Callable[[], int]) -> LaunchConfig:
        """How this node's agent starts the workers. folder: the private directory. workers: how many; a function is
        asked before each round. Raises UsageError."""
        made: dict[str, Any] = {
            "min_nodes": self.nodes[0],
            "max_nodes": self.nodes[1],
            "nproc_per_node": workers,
            "max_restarts": ENDLESS,
            "preload": self.preload,
            "shutdown_timeout": STOP_S,
        }
        if self.rdzv_endpoint:
            made |= {"rdzv_endpoint": self.endpoints[0], "run_id": self.rdzv_id, "settle_timeout": SETTLE_S}
            if len(self.endpoints) > 1:
                made["rdzv_configs"] = {"store_grace": STORE_GRACE_S}
        else:
            made["standalone"] = True
        env = {FOLDER: folder, "PYTHONPATH": _search_path()}
        return LaunchConfig(**{**made, **self.fields, "env": {**env, **self.fields.get("env", {})}})


def settled(given: dict[str, Any], number: int) -> Settled:
    """The arguments of `TorchTrainer`, checked. number: of the trainer in its program. Raises UsageError."""
    num_workers = checked_number("num_workers", given["num_workers"], 1)
    checked_number("max_retries", given["max_retries"], 0)
    creators = {name: given[name] for name in given if name.endswith("_creator")}
    checked_creators(creators, given["training_operator_cls"], given["initialization_hook"])
    config = checked_config(given["config"], num_workers)
    nodes, hook, every = _nodes(given["nnodes"]), given["initialization_hook"], given["save_every"]
    if nodes[1] > 1 and not given["rdzv_endpoint"]:
        raise UsageError(f"nnodes={given['nnodes']!r} needs rdzv_endpoint='HOST:PORT', where the nodes find each other")
    checked_division(num_workers, nodes[1], given["nnodes"])
    checkpoint_dir, use_gpu = given["checkpoint_dir"], checked_gpus(given["use_gpu"])
    program = {
        **creators,
        **{name: given[name] for name in ("num_workers", "add_dist_sampler", "seed")},
        "operator_cls": given["training_operator_cls"],
        "config": config,
        "use_gpu": use_gpu,
        "amp_dtype": checked_amp(given["use_fp16"], given["amp_dtype"], given["apex_args"]),
        "backend": _one_of("backend", given["backend"], ("auto", "gloo", "nccl", "mpi", "ucc")),
        "parallel": _one_of("parallel", given["parallel"], PARALLEL),
        "ddp_args": dict(given["ddp_args"] or {}),
        SCHEDULER_STEP: check_steps(given[SCHEDULER_STEP]),
        "checkpoint_dir": None if checkpoint_dir is None else os.path.abspath(checkpoint_dir),
        "every": None if every is None else dict(every),
        "lasts": checkpoint_dir is not None or nodes[1] > 1,
    }
    preload = given["preload"]
    if preload is None:
        preload = () if hook is not None else PRELOADED
    return Settled(
        program, config, hook, nodes, num_workers // nodes[1], _resources(given["resources"], use_gpu),
        given["rdzv_endpoint"], given["rdzv_id"] or f"trainer-{number}", preload, dict(given["launch"] or {}),
    )  # fmt: skip


def _resources(given: Any, use_gpu: bool) -> Callable[[], int] | None:
    if given is not None and not callable(given):
        raise UsageError(f"resources is a {type(given).__name__}, and must be a function")
    if given is None and use_gpu:
        # Not torch's count: it is that of the first time in a process.
        return lambda: count_gpus(os.environ)
    found: Callable[[], int] | None = given
    return found


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(f"{name}={value!r}: it is one of {', '.join(allowed)}")
    return str(value)


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
    given = [os.path.abspath(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([*given, home] if home not in given else given)
