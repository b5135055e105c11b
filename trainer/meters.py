"""Means over samples, and times: what a pass returns, kept over restarts and added up over workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from .errors import WrongReturn
from .names import NUM_SAMPLES, TRAIN
from .plain import numbers

LAST = "last_"
"""Begins the name of a value of the last batch alone."""
NOTHING = nullcontext()
"""Around what nobody measures: made once, as it is entered several times a batch."""


class Meters:
    """Of one worker and one pass: by name, the sum of value times samples, the samples, and the last value."""

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}
        self.last: dict[str, list[float]] = {}
        self.samples = 0.0
        self.batches = 0
        """Of this pass, over all its restarts."""

    def add(self, metrics: dict[str, Any], samples: float, method: str) -> None:
        """A batch's values, means over so many samples; 0 samples add nothing. Names that are no texts become some.
        Raises WrongReturn where a value is no number."""
        self.samples += samples
        for name, value in metrics.items():
            if type(name) is not str:
                name = str(name)
            if type(value) is not float:
                value = _number(value, name, method)
            kept = self.sums.setdefault(name, [0.0, 0.0])
            if samples:
                kept[0] += value * samples
                kept[1] += samples
            self.last[name] = [value * samples if samples else 0.0, samples]

    def summary(self) -> dict[str, Any]:
        """This worker's means."""
        means = {name: total / count if count else float("nan") for name, (total, count) in self.sums.items()}
        last = {LAST + name: total / count for name, (total, count) in self.last.items() if count}
        return {NUM_SAMPLES: self.samples, **means, **last}

    def to_json(self) -> dict[str, Any]:
        return {"sums": self.sums, "last": self.last, "samples": self.samples, "batches": self.batches}

    def restore(self, kept: dict[str, Any] | None, first: bool) -> None:
        """Take what all workers had together; the first takes all of it, the others only its names."""
        self.sums, self.last, self.samples, self.batches = {}, {}, 0.0, 0
        if kept is None:
            return
        self.batches = int(kept["batches"])
        self.samples = float(kept["samples"]) if first else 0.0
        for mine, theirs in ((self.sums, kept["sums"]), (self.last, kept["last"])):
            for name, value in theirs.items():
                mine[name] = list(value) if first else [0.0, 0.0]


def _number(value: Any, name: str, method: str) -> float:
    value = numbers(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongReturn(
            f"{method} returned {name!r}, a {type(value).__name__}, and values must be numbers: return its mean"
        )
    return value


def together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What all workers' meters hold, as one."""
    sums: dict[str, list[float]] = {}
    last: dict[str, list[float]] = {}
    for part in parts:
        for added, target in ((part["sums"], sums), (part["last"], last)):
            for name, (total, count) in added.items():
                kept = target.setdefault(name, [0.0, 0.0])
                kept[0] += total
                kept[1] += count
    samples = sum(part["samples"] for part in parts)
    return {"sums": sums, "last": last, "samples": samples, "batches": max(part["batches"] for part in parts)}


def reduced(parts: list[dict[str, Any]], method: str) -> dict[str, Any]:
    """One worker's dict each -> means over all workers by their samples. Values of the last batch are weighted by the
    samples of the whole pass unless meters kept them. Raises WrongReturn where a value is no number."""
    total = sum(part.get(NUM_SAMPLES, 0) for part in parts)
    made: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part if name != NUM_SAMPLES):
        having = [part for part in parts if name in part]
        values = [part[name] for part in having]
        if not all(isinstance(value, (int, float)) for value in values):
            raise WrongReturn(
                f"{method} returned {name!r}, a {type(values[0]).__name__}, of which there is no mean: return numbers, "
                "or call with reduce_results=False"
            )
        weights = [part.get(NUM_SAMPLES, 0) for part in having]
        if not any(weights):
            weights = [1] * len(having)
        kept = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
        made[name] = sum(value * weight for value, weight in kept) / sum(weight for _, weight in kept)
    return {NUM_SAMPLES: int(total) if float(total).is_integer() else total, **made}


def merged(parts: list[dict[str, Any]]) -> Any:
    """Of each worker's part of a pass, by rank: what the call returns. A part has `each`, for a list of them; or
    `meters`, `returned`, what else the worker returned, and `common`, which is that of the first. Raises WrongReturn
    where there is no mean of a value."""
    if "each" in parts[0]:
        return [part["each"] for part in parts]
    kept = together([part["meters"] for part in parts])
    means = {name: total / count for name, (total, count) in kept["sums"].items() if count}
    means |= {LAST + name: total / count for name, (total, count) in kept["last"].items() if count}
    others = [{NUM_SAMPLES: part["meters"]["samples"], **part["returned"]} for part in parts]
    extra = reduced([{k: v for k, v in other.items() if k not in means} for other in others], TRAIN)
    return {NUM_SAMPLES: int(extra.pop(NUM_SAMPLES)), **parts[0]["common"], **means, **extra}


class Timers:
    """Seconds by stage of a pass. Nothing is measured unless somebody asks."""

    def __init__(self) -> None:
        self.on = False
        self.total_s: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def record(self, name: str) -> AbstractContextManager[None]:
        """Adds the time of what goes on here to a stage."""
        return self._measured(name) if self.on else NOTHING

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.total_s[name] = self.total_s.get(name, 0.0) + time.perf_counter() - began_s
        self.counts[name] = self.counts.get(name, 0) + 1

    def reset(self, on: bool) -> None:
        self.on, self.total_s, self.counts = on, {}, {}

    def stats(self) -> dict[str, float]:
        """Mean seconds of each stage, by `mean_NAME_s`, and in all, by `total_NAME_s`."""
        made: dict[str, float] = {}
        for name, total in self.total_s.items():
            made[f"mean_{name}_s"], made[f"total_{name}_s"] = total / self.counts[name], total
        return made
