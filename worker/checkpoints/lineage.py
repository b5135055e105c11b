"""Which starts of a run led to a checkpoint, and which checkpoints a later start has left behind.

A checkpoint names the starts before it, each with the step that it began with. A start that is over may still live, cut
off, and commit where the fence does not reach it: to a directory of its own, or through a file system that shows it an
old `round.json`. What it commits after another start has gone on from an earlier step belongs to no history any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from .manifest import Manifest

KEY = "starts"
"""In a manifest's `run`: pairs of a start's token and the step that it began with, the oldest first."""
_MOST = 64
"""Starts that a checkpoint names."""

Starts = list[list[Any]]


def starts_of(manifest: Manifest) -> Starts:
    """Those that led to a checkpoint; none of earlier versions' ones."""
    return list(manifest.run.get(KEY, []))


def begun(token: str, manifest: Manifest | None, over: Iterable[str]) -> Starts:
    """The starts that lead to the checkpoints of this one, which goes on from `manifest`; None: from nothing.

    over: tokens of all that are known to have begun before. Whatever they committed, or will, beyond the step that this
    one begins with is in no history.
    """
    starts, step = ([], 0) if manifest is None else (starts_of(manifest), manifest.step)
    known = {other for other, _ in starts}
    return [*starts, *([other, step] for other in over if other not in known), [token, step]][-_MOST:]


def ends(histories: Iterable[Starts]) -> dict[str, int]:
    """The last step of each start that another went on from."""
    found: dict[str, int] = {}
    for history in histories:
        for (token, _), (_, last) in itertools.pairwise(history):
            found[token] = min(last, found.get(token, last))
    return found


def left_behind(manifest: Manifest, ended: Mapping[str, int]) -> str:
    """Why a checkpoint is in nobody's history; empty for one that is."""
    last = ended.get(manifest.token)
    if last is None or manifest.step <= last:
        return ""
    start = f"round {manifest.round}" if manifest.round else "an earlier start"
    return f"{start} committed step {manifest.step} after a later start had gone on from its step {last}"


def unrelated(history: Starts, other: Starts) -> bool:
    """Whether two checkpoints are of two trainings, by the starts that led to each; not where it may only be that the
    first starts are not named any more."""
    named = history and other and max(len(history), len(other)) < _MOST
    return bool(named) and {token for token, _ in history}.isdisjoint(token for token, _ in other)
