"""Flags about the end of a job's time: until when it lasts, and who says that a host is taken back."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ...agent.errors import UsageError
from ..preemption.end_of_time import DEADLINE, earliest
from . import values
from .flag import Flag

CLOUDS = ("aws", "gcp", "azure")

_STOP = "Restarts and stopping"


def _cloud(name: str, value: str) -> str:
    if value not in CLOUDS:
        raise UsageError(f"{name} is {value!r}{values.suggest(value, CLOUDS)}; give one of {', '.join(CLOUDS)}")
    return value


ENDING_FLAGS: tuple[Flag, ...] = (
    Flag(
        "settle-timeout",
        _STOP,
        "Before a planned change, where a node arrives or is asked to leave, workers that use elastic_agent.worker "
        "save at one step, within SECONDS; 0: they are stopped at once. (60)",
        values.seconds,
        60.0,
        "SECONDS",
        ours=True,
    ),
    Flag(
        "exit-duration-in-mins",
        _STOP,
        "The job's time ends N minutes after the start of its agent; workers that use elastic_agent.worker save before "
        "and exit, and the agents end with 75. (no end)",
        values.minutes,
        None,
        "N",
        ours=True,
    ),
    Flag(
        "deadline",
        _STOP,
        "The same at a time: Unix seconds, or such as 2026-11-22T17:30:00. (that of SLURM, if there is one)",
        values.text,
        "",
        "TIME",
        ours=True,
    ),
    Flag(
        "spot-notices",
        _STOP,
        "Ask this cloud's metadata service every 5 s whether the host is taken back; this node then leaves. (off)",
        _cloud,
        None,
        "aws|gcp|azure",
        ours=True,
    ),
)


def ending_variables(
    minutes: float | None, deadline: str | float, spot_notices: str | None, env: Mapping[str, str]
) -> dict[str, str]:
    """Variables of workers for the end of the job's time, as `LaunchConfig` and the environment have it. Raises
    UsageError."""
    if minutes is not None:
        values.minutes("exit_duration_in_mins", minutes)
    if spot_notices is not None:
        _cloud("spot_notices", spot_notices)
    ends_s = earliest(minutes, deadline, env, time.time())
    return {} if ends_s is None else {DEADLINE: f"{ends_s:.0f}"}
