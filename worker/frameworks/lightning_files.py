"""The checkpoints that a script's own `ModelCheckpoint` writes, where a start finds those of the start before.

It gives a checkpoint another name (`last-v1.ckpt`) where there is a file of its name. A run without restarts would not
have found what a killed one has written behind the place that is gone on from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_KEPT = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")
"""What it remembers and leaves out of its state."""
_LATER = "elastic_agent_later"
"""An attribute of a callback: checkpoints that an earlier start wrote behind the place, and this one has not yet."""


def _callbacks(trainer: Any) -> list[Any]:
    """Those whose directory is a local one."""
    held = [each for each in trainer.checkpoint_callbacks if hasattr(each, "file_exists")]
    return [each for each in held if each.dirpath and "://" not in str(each.dirpath)]


def _files(callback: Any) -> list[str]:
    folder = Path(callback.dirpath)
    return sorted(path.name for path in folder.glob(f"*{callback.FILE_EXTENSION}")) if folder.is_dir() else []


def capture(trainer: Any) -> dict[str, Any]:
    """By the key of a callback's state: the checkpoints in its directory, and what it remembers. Not those that are
    there only because an earlier start had come further."""
    return {
        each.state_key: {
            "files": [name for name in _files(each) if name not in getattr(each, _LATER, ())],
            "remembers": {name: getattr(each, name) for name in _KEPT if hasattr(each, name)},
        }
        for each in _callbacks(trainer)
    }


def restore(trainer: Any, kept: dict[str, Any]) -> None:
    """Lets each callback write over the checkpoints that were not there then, and remember what it did."""
    for callback in _callbacks(trainer):
        if (mine := kept.get(callback.state_key)) is not None:
            for name, value in mine["remembers"].items():
                setattr(callback, name, value)
            _own(callback, set(_files(callback)) - set(mine["files"]))


def _own(callback: Any, later: set[str]) -> None:
    """later: files that were written behind the place that this start goes on from."""
    theirs = type(callback).file_exists
    setattr(callback, _LATER, later)

    def file_exists(filepath: Any, trainer: Any) -> bool:
        """Lightning asks on all ranks, before it writes, and takes the answer of the first."""
        there = theirs(callback, filepath, trainer)
        name = os.path.relpath(filepath, callback.dirpath)
        is_later = trainer.strategy.broadcast(name in later)
        later.discard(name)
        return bool(there and not is_later)

    callback.file_exists = file_exists
