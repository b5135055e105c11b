"""How well the order is shuffled: six tests, each normal with deviation 1 for a true shuffle.

Position by index, difference of neighbours, pairs of neighbours, the low six bits by position, classes in batches of
256 of a sorted dataset, one epoch by the next. Orders of more than 2e6 are looked at in windows of that length,
entered anywhere: of the window's indices the mean, deviation and relations are known as those of the whole.

And how random the training process's own numbers are, which is keyed at each step: scores of the same kind.
"""

from __future__ import annotations

import importlib
import math
import random
from collections import Counter
from collections.abc import Iterator
from itertools import permutations

import torch

from elastic_agent.worker.data.order import Permutation
from elastic_agent.worker.data.randomness import key_everything
from elastic_agent.worker.keys import key_of, mixed

SIZES = (5, 50, 1000, 4095, 4096, 50_000, 1_281_167, 10**8, 10**9)
WINDOW = 1_000_000
TRIALS = 4
"""Keys for each size; below 4,096, as many as make up 200,000 positions."""


def worst() -> Iterator[tuple[int, str, float]]:
    """By size: the test whose |z| over all keys is largest, and that."""
    yield 5, "all 120 orders as likely", abs(_all_orders(12_000))
    for n in SIZES:
        trials = TRIALS if n >= 4096 else max(TRIALS, 200_000 // n)
        sums: dict[str, list[float]] = {}
        for trial in range(trials):
            for name, z in _tests(n, trial).items():
                sums.setdefault(name, []).append(z)
        # Many small orders are one test: the sum of their scores, scaled to deviation 1. Few large ones stand alone.
        scores = {
            name: abs(sum(zs)) / math.sqrt(len(zs)) if n < 4096 else max(abs(z) for z in zs)
            for name, zs in sums.items()
        }
        name = max(scores, key=lambda name: scores[name])
        yield n, name, scores[name]


def _all_orders(trials: int) -> float:
    """Chi squared over the 120 orders of five, as a score."""
    counts = Counter(tuple(Permutation(key_of("five", trial), 5).indices(0, 5)) for trial in range(trials))
    expected = trials / 120
    chi2 = sum((counts.get(order, 0) - expected) ** 2 / expected for order in permutations(range(5)))
    return (chi2 - 119) / math.sqrt(2 * 119)


def _tests(n: int, trial: int) -> dict[str, float]:
    key, again = key_of("shuffle", n, trial), key_of("shuffle", n, trial, "next")
    first = 0 if n <= 2 * WINDOW else (n // 3 + trial * WINDOW) % (n - WINDOW)
    last = n if n <= 2 * WINDOW else first + WINDOW
    order = _order(key, n, first, last)
    place = torch.arange(first, last, dtype=torch.float64)
    found = {
        "position and index": _correlation(place, order),
        "neighbours": _neighbours(order, n),
        "two epochs": _correlation(order, _order(again, n, first, last)),
        "low bits and position": _correlation(place, (order.long() & 63).double()),
    }
    if len(order) >= 1000:
        found["differences of neighbours"] = _differences(order, n)
        found["classes in batches"] = _classes(order, n)
    return found


def _order(key: int, n: int, first: int, last: int) -> torch.Tensor:
    return torch.tensor(Permutation(key, n).indices(first, last), dtype=torch.float64)


def _correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Exactly of mean 0 and deviation 1/sqrt(m - 1) where one of the two is a random order."""
    a, b = first - first.mean(), second - second.mean()
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale * math.sqrt(len(a) - 1) if scale else 0.0


def _neighbours(order: torch.Tensor, n: int) -> float:
    """Serial correlation in a circle, whose mean in a random order is -1/(m - 1)."""
    m = len(order)
    a = order - order.mean()
    together = float(a @ a.roll(1)) / float(a @ a)
    mean = -1 / (m - 1)
    variance = m * m / (m - 1) ** 2 / (m - 2) if m > 50 else None
    if variance is None:
        variance = _serial_variance(m)
    return (together - mean) / math.sqrt(variance)


def _serial_variance(m: int) -> float:
    """The same statistic's variance over random orders of range(m), by Monte Carlo with a fixed seed."""
    if m not in _VARIANCES:
        generator = torch.Generator().manual_seed(1)
        found = []
        for _ in range(4000):
            a = torch.randperm(m, generator=generator).double() - (m - 1) / 2
            found.append(float(a @ a.roll(1)) / float(a @ a))
        _VARIANCES[m] = float(torch.tensor(found, dtype=torch.float64).var())
    return _VARIANCES[m]


_VARIANCES: dict[int, float] = {}


def _differences(order: torch.Tensor, n: int) -> float:
    """The mean distance of neighbours: n/3, with the variance of a sum of dependent distances, 7/180 n^2 a pair."""
    distances = (order[1:] - order[:-1]).abs() / n
    # Distances that share an index are related: covariance 1/180; so 1/18 + 2/180 in all for each.
    variance = (1 / 18 + 2 / 180) / len(distances)
    if len(order) == n:
        # The sum over a whole order varies less, as its indices are fixed: Hoeffding's variance, 2/45 for each.
        variance = 2 / 45 / len(distances)
    return (float(distances.mean()) - (n + 1) / (3 * n)) / math.sqrt(variance)


def _classes(order: torch.Tensor, n: int) -> float:
    """Ten classes of a sorted dataset: how far the counts in batches of 256 are from even, against chance."""
    batches = order[: len(order) // 256 * 256].view(-1, 256)
    classes = (batches * 10 / n).long()
    counts = torch.stack([(classes == kind).sum(1) for kind in range(10)], 1).double()
    chi2 = ((counts - 25.6) ** 2 / 25.6).sum(1)
    # Drawn without replacement from n, so by (n - 256)/(n - 1) less than 9.
    expected = 9 * (n - 256) / (n - 1)
    return (float(chi2.mean()) - expected) / math.sqrt(18 / len(chi2))


DRAWS = 40
"""At each step."""


def draws(count: int, trial: int = 0) -> dict[str, float]:
    """Scores of what the module `random` gives in the training process, which is keyed at each of so many steps, and of
    what numpy and torch give beside it."""
    numpy = importlib.import_module("numpy")
    rows, normal, others = [], [], []
    for key in mixed(key_of("draws", trial), 0, count):
        key_everything(key)
        rows.append([random.random() for _ in range(DRAWS)])
        normal.append([random.gauss(0, 1) for _ in range(16)])
        others.append([*numpy.random.rand(16), *torch.rand(16).tolist()])
    uniform = torch.tensor(rows, dtype=torch.float64)
    words, gauss = (uniform * (1 << 24)).int(), torch.tensor(normal, dtype=torch.float64)
    bits = torch.stack([(words[:, :16] >> bit) & 1 for bit in range(24)], 2).reshape(count, -1).double() * 2 - 1
    centred, beside = (uniform - 0.5) * math.sqrt(12), (torch.tensor(others, dtype=torch.float64) - 0.5) * math.sqrt(12)
    return {
        "bits": _squares(bits.sum(0) / math.sqrt(count)),
        "pairs of bits": _relations(bits.float()),
        "pairs of draws": _relations(centred),
        "squares of draws": _relations((centred**2 - 1) / math.sqrt(4 / 5)),
        "steps that follow each other": _squares((centred[1:] * centred[:-1]).sum(0) / math.sqrt(count - 1)),
        "triples of draws": _triples(words),
        "normal numbers": _squares(gauss.sum(0) / math.sqrt(count)),
        "pairs of normal numbers": _relations(gauss),
        "squares of normal numbers": _relations((gauss**2 - 1) / math.sqrt(2)),
        "Python's beside numpy's": _squares(centred.T @ beside[:, :16] / math.sqrt(count)),
        "Python's beside torch's": _squares(centred.T @ beside[:, 16:] / math.sqrt(count)),
    }


def _squares(scores: torch.Tensor) -> float:
    """One score of many that are not related: how far the sum of their squares is from their number."""
    return (float((scores.double() ** 2).sum()) - scores.numel()) / math.sqrt(2 * scores.numel())


def _relations(columns: torch.Tensor) -> float:
    """All pairs of columns, of mean 0 and deviation 1."""
    together = columns.T @ columns / math.sqrt(len(columns))
    above = torch.triu_indices(len(together), len(together), offset=1)
    return _squares(together[above[0], above[1]])


def _triples(words: torch.Tensor) -> float:
    """The highest four bits of three draws: 4,096 cells, for draws that are 1, 2, 3, 7 and 8 apart."""
    high, scores = (words >> 20).long(), []
    for apart in (1, 2, 3, 7, 8):
        for first in range(0, DRAWS - 2 * apart, 3 * apart):
            cells = high[:, first] * 256 + high[:, first + apart] * 16 + high[:, first + 2 * apart]
            expected = len(words) / 4096
            chi2 = float(((torch.bincount(cells, minlength=4096) - expected) ** 2 / expected).sum())
            scores.append((chi2 - 4095) / math.sqrt(2 * 4095))
    return _squares(torch.tensor(scores))
