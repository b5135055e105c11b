"""Means and metrics of a run that go on in the middle of an epoch after a restart, over any number of ranks.

A metric is one of `torchmetrics`, or anything that keeps its states as that does: `_defaults` by name, `_reductions` by
name, and the states as attributes. That library is not imported. A checkpoint keeps each rank's states; where the
number of ranks is the same, each gets its own back, to the bit. Where it is not, they are merged by the reduction
that the metric itself names for each.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import Misused, NotResumable
from ..values import Mean
from ..world import World

_COUNT = "_update_count"
_AGAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dim_zero_max": lambda stacked: stacked.amax(0),
    "dim_zero_min": lambda stacked: stacked.amin(0),
    "dim_zero_mean": lambda stacked: stacked.mean(0),
}
"""Reductions that leave equal states what they are: each rank goes on with the reduced one."""


class Reductions:
    """All means and metrics of a run, by name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._means: dict[str, Mean] = {}
        self._metrics: dict[str, Any] = {}
        self._kept_means: dict[str, list[float]] = {}
        self._kept_metrics: dict[str, list[Any]] = {}

    def load(self, means: dict[str, list[float]], metrics: dict[str, list[Any]]) -> None:
        """What a checkpoint holds. It waits until the script asks for each by its name."""
        self._kept_means, self._kept_metrics = dict(means), dict(metrics)

    def mean(self, name: str) -> Mean:
        """See `Run.mean`."""
        if name not in self._means:
            self._means[name] = Mean(self._world)
            if name in self._kept_means:
                self._means[name].restore(self._kept_means.pop(name))
        return self._means[name]

    def metric(self, name: str, metric: Any) -> Any:
        """See `Run.metric`."""
        if not list(_parts(metric)):
            raise Misused(
                f"run.metric({name!r}): {type(metric).__name__} keeps no states as torchmetrics.Metric does; give what "
                "has state_dict() and load_state_dict() to Run(...)"
            )
        if name in self._metrics and self._metrics[name] is not metric:
            raise Misused(f"two metrics are named {name!r}: names tell their states apart")
        self._metrics[name] = metric
        if name in self._kept_metrics:
            restore_states(name, metric, self._kept_metrics.pop(name), self._world)
        return metric

    def state_dict(self) -> dict[str, Any]:
        """What this rank holds now. A mean is there whether the script has asked for it or not, and one of nothing is
        none: to ask for it changes nothing."""
        means = {**(self._kept_means if self._world.rank == 0 else {})}
        means |= {name: [mean.total, mean.count] for name, mean in self._means.items() if mean.count}
        return {"means": means, "metrics": {name: _states(metric) for name, metric in self._metrics.items()}}

    def means(self) -> dict[str, list[float]]:
        """Collective: what a checkpoint keeps of the means; those that the script has not asked for yet stay."""
        # A rank whose shards are all empty has not met a mean that others have.
        names = sorted({name for names in self._world.gather(sorted(self._means)) for name in names})
        gathered = {name: self.mean(name).gather() for name in names}
        return {**self._kept_means, **gathered}

    def metrics(self) -> dict[str, list[Any]]:
        """Collective: what a checkpoint keeps of the metrics, a list by rank for each."""
        kept = dict(self._kept_metrics)
        names = sorted(self._metrics)
        if any(others != names for others in self._world.gather(names)):
            raise Misused(
                f"run.metric was called on this rank for {', '.join(names) or 'no metric'}, and on others for other "
                "names: call it on every rank, before the loop"
            )
        for name in names:
            kept[name] = gather_states(self._metrics[name], self._world)
        return kept


def gather_states(metric: Any, world: World) -> list[Any]:
    """Collective: what a checkpoint keeps of a metric, or of all in a module, by rank."""
    data = io.BytesIO()
    torch.save(_states(metric), data)
    return [torch.load(io.BytesIO(part), weights_only=True) for part in world.gather_bytes(data.getvalue())]


def _parts(metric: Any) -> Iterator[tuple[str, Any]]:
    """The metric and those that it holds (a collection, a wrapper), by path."""
    inner = metric.named_modules() if callable(getattr(metric, "named_modules", None)) else [("", metric)]
    for path, part in inner:
        if isinstance(getattr(part, "_defaults", None), dict) and isinstance(getattr(part, "_reductions", None), dict):
            yield path, part


def _states(metric: Any) -> dict[str, dict[str, Any]]:
    inner: list[Any] = list(metric.modules()) if isinstance(metric, torch.nn.Module) else [metric]
    for each in inner:
        if callable(getattr(each, "values", None)) and hasattr(each, "compute_groups"):
            # A collection updates one metric of each group; looking at all of them gives the others its states.
            list(each.values(copy_state=False))
    return {
        path: {
            **{state: _detached(getattr(part, state)) for state in (*part._defaults, *_bounds(part))},
            _COUNT: int(getattr(part, _COUNT, 0)),
        }
        for path, part in _parts(metric)
    }


def _bounds(part: Any) -> dict[str, str]:
    """Of `MinMaxMetric` (torchmetrics 1.9), which declares no states: what it has seen, and how ranks are merged."""
    names = {"min_val": "dim_zero_min", "max_val": "dim_zero_max"}
    held = all(isinstance(vars(part).get(name), torch.Tensor) for name in names)
    return names if held and not names.keys() & part._defaults.keys() else {}


def _detached(state: Any) -> Any:
    if isinstance(state, (list, tuple)):
        return [_detached(each) for each in state]
    return state.detach().cpu() if isinstance(state, torch.Tensor) else state


def restore_states(name: str, metric: Any, kept: list[Any], world: World, known_only: bool = False) -> None:
    """Puts back this rank's part of what `gather_states` gave. known_only: a metric whose states the checkpoint does
    not have begins anew. Raises NotResumable."""
    for path, part in _parts(metric):
        called = ".".join(each for each in (name, path) if each)
        ranks, bounds = [states.get(path) for states in kept], _bounds(part)
        if any(states is None or set(states) - {_COUNT, *bounds} != set(part._defaults) for states in ranks):
            if known_only:
                continue
            raise NotResumable(
                f"metric {called!r}: the checkpoint holds other states than {type(part).__name__} has; give it the "
                "metric it had, or another name to begin anew"
            )
        device = getattr(part, "device", "cpu")
        for state in (*part._defaults, *bounds):
            values = [states[state] for states in ranks if states is not None and state in states]
            if not values:  # a checkpoint of an older version has no bounds
                continue
            setattr(part, state, _moved(_share(called, part, state, values, world), device))
        setattr(part, _COUNT, max(int(states[_COUNT]) for states in ranks if states is not None))
        part._computed = None


def _share(name: str, part: Any, state: str, values: list[Any], world: World) -> Any:
    """What this rank gets of the states that the ranks of the checkpoint had."""
    if len(values) == world.size:
        return values[world.rank]
    default = part._defaults.get(state)
    how = _bounds(part).get(state) or getattr(part._reductions[state], "__name__", None)
    if how == "dim_zero_sum":
        total = torch.stack(values).sum(0)
        return total if world.rank == 0 else torch.zeros_like(total)
    if how in _AGAIN:
        return _AGAIN[how](torch.stack(values))
    if how == "dim_zero_cat" or (how is None and isinstance(default, list)):
        pieces = [piece for value in values for piece in (value if isinstance(value, list) else [value])]
        first, last = (len(pieces) * rank // world.size for rank in (world.rank, world.rank + 1))
        if isinstance(default, list):
            # Ranks wait for each other once for a state that is put together, else for each piece: pieces of nothing
            # make them as many.
            most = min(len(pieces), 1) if how else -(-len(pieces) // world.size)
            nothing = [torch.atleast_1d(piece)[:0] for piece in pieces[:1]]
            return pieces[first:last] + nothing * (most - (last - first))
        return torch.cat(pieces[first:last]) if first < last else part._defaults[state].clone()
    if all(isinstance(default, torch.Tensor) and torch.equal(value, default.cpu()) for value in values):
        return _fresh(default)  # of an evaluation that has not begun
    if len(values) < world.size:
        return values[world.rank] if world.rank < len(values) else _fresh(part._defaults[state])
    raise NotResumable(
        f"metric {name!r}: {type(part).__name__} names no reduction for its state {state!r}, so the states of "
        f"{len(values)} ranks cannot go on on {world.size}: resume with at least {len(values)} ranks, or use "
        "add_state(..., dist_reduce_fx=) with sum, mean, max, min or cat"
    )


def _fresh(default: Any) -> Any:
    return default.clone() if isinstance(default, torch.Tensor) else list(default)


def _moved(state: Any, device: Any) -> Any:
    if isinstance(state, list):
        return [_moved(each, device) for each in state]
    return state.to(device) if isinstance(state, torch.Tensor) else state
