"""How often to save: what saves cost, what a failure costs, and the interval at which both together are least.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T. Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """What was measured of a job. Times are in seconds."""

    save_s: float
    """How long training stands still for one save; above 0."""
    between_failures_s: float
    """Mean time between two failures of the whole job; above 0."""
    restart_s: float = 0.0
    """From a failure until the first step after it."""


@dataclass(frozen=True)
class Cost:
    """What saving at one interval costs, as shares of the running time."""

    saves: float
    lost: float
    """Steps that are trained again after failures: half an interval each, on average."""
    restarts: float

    @property
    def total(self) -> float:
        return self.saves + self.lost + self.restarts


def young_s(measured: Measured) -> float:
    """sqrt(2 x save x time between failures)."""
    return float((2.0 * measured.save_s * measured.between_failures_s) ** 0.5)


def daly_s(measured: Measured) -> float:
    """Daly's higher-order estimate; the time between failures itself where a save takes half of that or longer."""
    save, mean = measured.save_s, measured.between_failures_s
    if save >= 2.0 * mean:
        return mean
    part = save / (2.0 * mean)
    return float((2.0 * save * mean) ** 0.5 * (1.0 + part**0.5 / 3.0 + part / 9.0)) - save


def cost(measured: Measured, every_s: float) -> Cost:
    """What saving every `every_s` seconds of training costs, to the first order."""
    mean = measured.between_failures_s
    return Cost(measured.save_s / every_s, every_s / 2.0 / mean, measured.restart_s / mean)


def failure_s(measured: Measured, every_s: float) -> tuple[float, float]:
    """What one failure costs: (on average, at most)."""
    return every_s / 2.0 + measured.restart_s, every_s + measured.restart_s
