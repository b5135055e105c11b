"""The arguments of a trainer, checked before anything starts, and what is made of them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..agent.errors import UsageError
from ..launcher.config.config import LaunchConfig
from ..launcher.config.devices import count_gpus
from ..launcher.config.values import suggest
from . import plain
from .names import BATCH_SIZE, FOLDER, SCHEDULER_STEP
from .operator import TrainingOperator, check_steps

NOTHING, THE_OPERATOR = "no argument", "the operator"
"""What functions are called with in the workers."""
PARALLEL = ("ddp", "fsdp", "none")
ENDLESS = 1_000_000
"""Restarts that the agent may make: the trainer counts them itself, anew for each call."""
STOP_S = 5.0
"""How long a worker that is stopped gets to end by itself."""
STORE_GRACE_S = 5.0
"""How long a lost host of the rendezvous is waited for where there is another one to go to."""
SETTLE_S = 10.0
"""How long a planned change of nodes waits for the workers to end their batch and save."""
_OTHERWISE = {
    "nproc_per_node": "num_workers",
    "min_nodes": "nnodes",
    "max_nodes": "nnodes",
    "rdzv_endpoint": "rdzv_endpoint",
    "max_restarts": "max_retries",
}
"""Fields of LaunchConfig that arguments of the trainer say, and that may not say something else."""
_CALLED_WITH: dict[str, tuple[str, ...]] = {
    "model_creator": ("config",),
    "data_creator": ("config",),
    "optimizer_creator": ("the models", "config"),
    "scheduler_creator": ("the optimizers", "config"),
    "initialization_hook": (),
}
_LAUNCH = tuple(name for name in LaunchConfig.__annotations__ if name not in _OTHERWISE)
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
    """Raises UsageError where one is no function, or takes other arguments than it is given, or where there are not
    enough of them."""
    for name, given in (*creators.items(), ("initialization_hook", hook)):
        if given is not None and not callable(given):
            raise UsageError(f"{name} is a {type(given).__name__}, and must be a function")
        if given is not None and name in _CALLED_WITH:
            _check_call(name, given, *_CALLED_WITH[name])
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


def checked_launch(fields: Any) -> dict[str, Any]:
    """Further fields of LaunchConfig. Raises UsageError for those that there are not, and those that other arguments
    of the trainer say."""
    made = checked_mapping("launch", fields)
    for name in made:
        if name not in LaunchConfig.__annotations__:
            raise UsageError(f"launch has {name!r}, which is no field of LaunchConfig{suggest(str(name), _LAUNCH)}")
        if name in _OTHERWISE:
            raise UsageError(f"launch has {name!r}, which {_OTHERWISE[name]} of the trainer sets; give that")
        if name == "virtual_local_rank" and made[name]:
            raise UsageError(f"launch has {name!r}, and workers of a trainer need their own; leave it out")
    return {name: value for name, value in made.items() if not (name == "env" and value is None)}


def checked_mapping(name: str, value: Any, *, named: bool = True) -> dict[Any, Any]:
    """None is an empty one. Raises UsageError where it is no mapping, or, if `named`, one whose keys are no texts."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or (named and not all(isinstance(key, str) for key in value)):
        raise UsageError(f"{name} is a {type(value).__name__}, and must be a dict{' with texts for keys' * named}")
    return dict(value)


def checked_interval(save_every: Any) -> dict[str, float] | None:
    """How often states are kept. Raises UsageError where that would be never, or is neither steps nor seconds."""
    if save_every is None:
        return None
    made = checked_mapping("save_every", save_every)
    how = 'give {"seconds": 60}, {"steps": 100} or both'
    if unknown := sorted(set(made) - {"steps", "seconds"}):
        raise UsageError(f"save_every has {unknown[0]!r}: {how}")
    numbers = {name: value for name, value in made.items() if value is not None}
    for name, value in numbers.items():
        least = 1 if name == "steps" else 0
        if isinstance(value, (bool, str)) or not hasattr(value, "__float__") or not float(value) >= least:
            raise UsageError(f"save_every[{name!r}] is {value!r}, and must be a number of at least {least}: {how}")
    if not numbers:
        raise UsageError(f"save_every is {save_every!r}, so that no state would be kept: {how}, or leave it out")
    return made


def checked_seed(seed: Any) -> Any:
    """Raises UsageError where torch's random numbers cannot begin with it."""
    try:
        usable = -(1 << 63) <= int(seed) < 1 << 64
    except (TypeError, ValueError, OverflowError):
        usable = False
    if not usable:
        raise UsageError(f"seed is {seed!r:.60}, and must be a whole number of at most 64 bits")
    return seed


def checked_directory(checkpoint_dir: Any) -> str | None:
    """Its absolute path. Raises UsageError where it is no path, or empty, which would be the working directory."""
    if checkpoint_dir is None:
        return None
    if not isinstance(checkpoint_dir, (str, os.PathLike)):
        raise UsageError(f"checkpoint_dir is a {type(checkpoint_dir).__name__}, and must be a path, or None for none")
    if not os.fspath(checkpoint_dir):
        raise UsageError("checkpoint_dir is empty; give a directory, or None for none")
    return os.path.abspath(os.fspath(checkpoint_dir))


def checked_metric(metric: Any) -> float:
    """For schedulers. Raises UsageError where it is no number."""
    try:
        return float(metric)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise UsageError(f"metric is a {type(metric).__name__}, and must be a number, such as val_loss") from None


def checked_function(function: Any, takes: str) -> None:
    """Of `apply_all_workers` and `apply_all_operators`. takes: what it is called with. Raises UsageError where it
    cannot be: in the workers that would end them."""
    if not callable(function):
        raise UsageError(f"the function is a {type(function).__name__}, and must be one that takes {takes}")
    _check_call("the function", function, *(() if takes == NOTHING else (takes,)))


def _check_call(what: str, function: Any, *given: str) -> None:
    """given: what it is called with, in words. Raises UsageError where it cannot be."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of C; it says itself what it takes
    try:
        signature.bind(*given)
    except TypeError as error:
        named = " and ".join(given) or NOTHING
        raise UsageError(f"{what} is called with {named}: {error}; change it, or wrap it") from None


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
    nodes, hook = _nodes(given["nnodes"]), given["initialization_hook"]
    if nodes[1] > 1 and not given["rdzv_endpoint"]:
        raise UsageError(f"nnodes={given['nnodes']!r} needs rdzv_endpoint='HOST:PORT', where the nodes find each other")
    checked_division(num_workers, nodes[1], given["nnodes"])
    checkpoint_dir, launch = checked_directory(given["checkpoint_dir"]), checked_launch(given["launch"])
    every, use_gpu = checked_interval(given["save_every"]), checked_gpus(given["use_gpu"])
    program = {
        **creators,
        **{name: given[name] for name in ("num_workers", "add_dist_sampler")},
        "seed": checked_seed(given["seed"]),
        "operator_cls": given["training_operator_cls"],
        "config": config,
        "use_gpu": use_gpu,
        "amp_dtype": checked_amp(given["use_fp16"], given["amp_dtype"], given["apex_args"]),
        "backend": _one_of("backend", given["backend"], ("auto", "gloo", "nccl", "mpi", "ucc")),
        "parallel": _one_of("parallel", given["parallel"], PARALLEL),
        "ddp_args": checked_mapping("ddp_args", given["ddp_args"]),
        SCHEDULER_STEP: check_steps(given[SCHEDULER_STEP]),
        "checkpoint_dir": checkpoint_dir,
        "every": every,
        "lasts": checkpoint_dir is not None or nodes[1] > 1,
    }
    preload = given["preload"]
    if preload is None:
        preload = () if hook is not None else PRELOADED
    return Settled(
        program, config, hook, nodes, num_workers // nodes[1], _resources(given["resources"], use_gpu),
        _text("rdzv_endpoint", given["rdzv_endpoint"]), _text("rdzv_id", given["rdzv_id"]) or f"trainer-{number}",
        preload, launch,
    )  # fmt: skip


def _resources(given: Any, use_gpu: bool) -> Callable[[], int] | None:
    if given is not None and not callable(given):
        raise UsageError(f"resources is a {type(given).__name__}, and must be a function")
    if given is None and use_gpu:
        # Not torch's count: it is that of the first time in a process.
        return lambda: count_gpus(os.environ)
    found: Callable[[], int] | None = given
    return found


def _text(name: str, value: Any) -> str:
    if value is not None and not isinstance(value, (str, int)):
        raise UsageError(f"{name} is a {type(value).__name__}, and must be a text")
    return "" if value is None else str(value)


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
