"""How a cost grows: the exponent of the power law that fits it best."""

from __future__ import annotations

import math
from collections.abc import Mapping


def exponent(costs: Mapping[int, float]) -> float | None:
    """`b` of `cost = a * nodes ** b`, by least squares of the logarithms; None with less than two usable points."""
    points = [(math.log(nodes), math.log(cost)) for nodes, cost in costs.items() if nodes > 0 and cost > 0]
    if len(points) < 2:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def grows(costs: Mapping[int, float], most: float) -> bool:
    """Whether the cost of the most nodes is more than `most` times that of the fewest."""
    return bool(costs) and costs[max(costs)] > most * costs[min(costs)]
