"""Flags about the end of a job's time: until when it lasts, and who says that a host is taken back."""

from __future__ import annotations

from functools import partial

from . import values
from .flag import STOP, Flag, one_of, text

CLOUDS = ("aws", "gcp", "azure")

ENDING_FLAGS: tuple[Flag, ...] = (
    Flag(
        "settle-timeout",
        STOP,
        "Before a planned change, where a node arrives or is asked to leave, workers that use elastic_agent.worker "
        "save at one step, within SECONDS; 0: they are stopped at once. (60)",
        values.seconds,
        60.0,
        "SECONDS",
        ours=True,
    ),
    Flag(
        "exit-duration-in-mins",
        STOP,
        "The job's time ends N minutes after the start of its agent; workers that use elastic_agent.worker save before "
        "and exit, and the agents end with 75. (no end)",
        values.seconds,
        None,
        "N",
        ours=True,
    ),
    Flag(
        "deadline",
        STOP,
        "The same at a time: Unix seconds, or such as 2026-11-22T17:30:00. (that of SLURM, if there is one)",
        text,
        "",
        "TIME",
        ours=True,
    ),
    Flag(
        "spot-notices",
        STOP,
        "Ask this cloud's metadata service every 5 s whether the host is taken back; this node then leaves. (off)",
        partial(one_of, choices=CLOUDS),
        None,
        "aws|gcp|azure",
        ours=True,
    ),
)
