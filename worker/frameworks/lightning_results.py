"""What `self.log` has added up in the middle of an epoch, and metrics' states: Lightning's checkpoints lack them."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ..loop.reductions import gather_states, restore_states

_KEPT = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
_KEPT_MORE = ("dataloader_idx", "metric_attribute")
_LOGGED = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
Kept = dict[str, Any]
"""Of one logged name: what JSON can hold."""


def capture(results: Any) -> dict[str, Kept]:
    """This rank's sums, by the key that Lightning has for them. Those over a group of ranks of the script's own are
    left out: the group cannot be named in a file."""
    return {key: _capture_one(result) for key, result in results.items() if result.meta.sync.group is None}


def _capture_one(result: Any) -> Kept:
    meta = result.meta
    kept: Kept = {name: getattr(meta, name) for name in (*_KEPT, *_KEPT_MORE)}
    kept |= {
        "reduce": meta.reduce_fx.__name__,
        "sync": meta.sync.should,
        "rank_zero_only": meta.sync.rank_zero_only,
        "over": result.has_reset,
        "updates": result._update_count,
        "is_tensor": result.is_tensor,
    }
    if result.is_tensor:
        kept["value"] = _plain(result.value)
        kept["count"] = _plain(result.cumulated_batch_size) if meta.is_mean_reduction else None
        kept["last"] = _plain(result._forward_cache) if isinstance(result._forward_cache, torch.Tensor) else None
    return kept


def merged(ranks: list[dict[str, Kept]], rank: int, size: int) -> dict[str, Kept]:
    """What `rank` of `size` goes on with: its own where as many ranks saved, else the first one with all."""
    if len(ranks) == size:
        return ranks[rank]
    both: dict[str, Kept] = {}
    for results in ranks:
        for key, kept in results.items():
            both[key] = _add(both[key], kept) if key in both else kept
    return both if rank == 0 else {key: _emptied(kept) for key, kept in both.items()}


def _add(one: Kept, other: Kept) -> Kept:
    if not one["is_tensor"] or other["over"] or one["over"]:
        return other if one["over"] else one
    values = [torch.tensor(each["value"][0], dtype=getattr(torch, each["value"][1])) for each in (one, other)]
    reduced = {"max": torch.maximum, "min": torch.minimum}.get(one["reduce"], torch.add)(*values)
    count = None if one["count"] is None else [one["count"][0] + other["count"][0], one["count"][1]]
    return {**one, "value": _plain(reduced), "count": count, "updates": one["updates"] + other["updates"]}


def _emptied(kept: Kept) -> Kept:
    if not kept["is_tensor"] or kept["over"]:
        return kept
    nothing = {"max": float("-inf"), "min": float("inf")}.get(kept["reduce"], 0.0)
    count = None if kept["count"] is None else [0, kept["count"][1]]
    return {**kept, "value": [nothing, kept["value"][1]], "count": count}


def restore(results: Any, kept_by_key: dict[str, Kept], trainer: Any, ranks: int) -> None:
    """Puts sums back, as if the batches before had been logged in this process.

    ranks: that saved. Where there are as many now each has its own, else the first has all, and the others find that by
    a sum over ranks, whatever the script says of what it logs; what it says holds from its next batch on.
    """
    resized = ranks != trainer.world_size
    module = importlib.import_module(type(results).__module__)
    for key, kept in kept_by_key.items():
        meta = module._Metadata(
            **{name: kept[name] for name in (*_KEPT, *_KEPT_MORE)}, reduce_fx=getattr(torch, kept["reduce"])
        )
        meta.sync = module._Sync(
            fn=trainer.strategy.reduce,
            _should=kept["sync"] or resized,
            rank_zero_only=kept["rank_zero_only"],
            _group=None,
        )
        result = module._ResultMetric(meta, kept["is_tensor"])
        if kept["is_tensor"]:
            result.value = _tensor(kept["value"])
            if kept["count"] is not None:
                result.cumulated_batch_size = _tensor(kept["count"])
            result._forward_cache = None if kept["last"] is None else _tensor(kept["last"])
        else:
            if not kept["metric_attribute"]:
                continue  # a metric without an attribute of the module is made anew by the script
            result.value = trainer.lightning_module.get_submodule(kept["metric_attribute"])
        result._update_count, result.has_reset = kept["updates"], kept["over"]
        results[key] = result.to(trainer.strategy.root_device)
    _follow_the_world(results, set(kept_by_key))


def _follow_the_world(results: Any, restored: set[str]) -> None:
    """`self.log(sync_dist=True)` is taken down as False where there is one rank, and Lightning refuses a name that is
    logged in two ways: what is logged first in this process says how it is from now on."""
    theirs = results.log

    def log(fx: str, name: str, value: Any, *args: Any, **options: Any) -> None:
        key = f"{fx}.{name}"
        if options.get("add_dataloader_idx", True) and results.dataloader_idx is not None:
            key += f".{results.dataloader_idx}"
        if key in restored:
            restored.discard(key)
            results[key].meta.sync.should = options.get("sync_dist", False)
        theirs(fx, name, value, *args, **options)

    results.log = log


def capture_logged(trainer: Any) -> dict[str, Any]:
    """What `trainer.callback_metrics` and its like give."""
    return {name: capture_values(getattr(trainer._logger_connector, name)) for name in _LOGGED}


def restore_logged(trainer: Any, ranks: list[dict[str, Any]], rank: int, size: int) -> None:
    """Of another number of ranks each gets what the first one had."""
    mine, logged = ranks[rank] if len(ranks) == size else ranks[0], trainer._logger_connector
    for name in _LOGGED:
        setattr(logged, name, restore_values(mine[name], trainer.strategy.root_device))
    logged._progress_bar_metrics = {name: value.item() for name, value in logged._progress_bar_metrics.items()}


def capture_values(values: dict[str, Any]) -> dict[str, Any]:
    """Plain numbers of a dict of tensors or numbers, such as `trainer.callback_metrics`."""
    return {name: _plain(torch.as_tensor(value)) for name, value in values.items()}


def restore_values(kept: dict[str, Any], device: Any) -> dict[str, torch.Tensor]:
    return {name: _tensor(value).to(device) for name, value in kept.items()}


def capture_metrics(module: Any, world: Any) -> list[Any]:
    """The states of all metrics of a module, by rank. Collective."""
    return gather_states(module, world)


def restore_metrics(module: Any, kept: list[Any] | dict[str, Any], world: Any) -> None:
    """Each rank goes on with its own states where as many ranks saved, else with its part of them; see
    `restore_states`. kept: a dict: the checkpoint is of an older version, which kept them reduced. Raises
    NotResumable."""
    if isinstance(kept, list):
        restore_states("", module, kept, world, known_only=True)
        return
    for name, metric in _metrics(module):
        if name not in kept:
            continue
        # On all ranks: one that counts no updates takes no part in reducing the metric.
        metric._update_count = kept[name]["updates"]
        for state, value in kept[name]["states"].items() if world.rank == 0 else ():
            now = [value] if isinstance(getattr(metric, state), list) and not isinstance(value, list) else value
            setattr(metric, state, _to(now, metric.device))


def _metrics(module: Any) -> list[tuple[str, Any]]:
    try:
        from torchmetrics import Metric  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return []
    return [(name, inner) for name, inner in module.named_modules() if isinstance(inner, Metric)]


def _to(value: Any, device: Any) -> Any:
    if isinstance(value, list):
        return [_to(held, device) for held in value]
    return value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value


def _plain(tensor: torch.Tensor) -> list[Any]:
    return [tensor.detach().cpu().tolist(), str(tensor.dtype).removeprefix("torch.")]


def _tensor(kept: list[Any]) -> torch.Tensor:
    return torch.tensor(kept[0], dtype=getattr(torch, kept[1]))
