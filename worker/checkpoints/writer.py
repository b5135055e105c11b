"""Writes checkpoints in a thread of its own, one at a time.

The order of commit: files, manifest and directory are written aside and brought to disk; the round is asked for once
more; only then the folder gets its name, and the parent directory is brought to disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import torch

from ..errors import CheckpointNotWritten
from .files import CheckedWriter, Content, sync_directory, write_file
from .folder import Folder, Retention, name_of
from .manifest import NAME, Manifest
from .staging import size_of

_SPARE_BYTES = 16 << 20
"""Room that a save leaves on the disk, for manifests and logs."""
_INODES = 8


@dataclass
class Order:
    """One checkpoint to write."""

    step: int
    states: dict[str, Any]
    """By the file's name without its ending; already copied."""
    texts: dict[str, bytes]
    """Further small files."""
    manifest: Callable[[dict[str, Content]], Manifest]
    done: threading.Event = field(default_factory=threading.Event)
    failed: Exception | None = None


class Writer:
    """The thread is started by the first save and ends with the process; `wait` is what makes an end clean."""

    def __init__(
        self, folder: Folder, token: str, round_number: int, retention: Retention, log: Callable[[str], None]
    ) -> None:
        self._folder, self._token, self._round, self._retention, self._log = folder, token, round_number, retention, log
        self._now: Order | None = None
        self._thread: threading.Thread | None = None
        self.took_s = 0.0
        """Seconds the last write took."""

    @property
    def busy(self) -> bool:
        return self._now is not None and not self._now.done.is_set()

    def start(self, order: Order) -> None:
        """Writes in the background. The one before must be done."""
        self._now = order
        self._thread = threading.Thread(target=self._run, args=(order,), name="checkpoint-writer", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the save in flight is done. Raises CheckpointNotWritten if it failed."""
        if self._now is None:
            return
        self._now.done.wait()
        if self._thread is not None:
            self._thread.join()
        order, self._now = self._now, None
        if order.failed is not None:
            raise CheckpointNotWritten(f"checkpoint of step {order.step}: {order.failed}") from order.failed

    def _run(self, order: Order) -> None:
        began = time.monotonic()
        try:
            write(self._folder, self._token, self._round, order)
            self._folder.retain(self._retention, self._token)
        except Exception as error:  # noqa: BLE001 - a state that cannot be pickled, say: told like a full disk
            order.failed = error
            self._log(f"checkpoint of step {order.step} is not written: {error}; the one before it stands")
        finally:
            self.took_s = time.monotonic() - began
            order.done.set()


def write(folder: Folder, token: str, round_number: int, order: Order) -> Path:
    """Writes one checkpoint and gives it its name. Whatever fails, nothing under its name is there or changed.

    Raises OSError, or WrongState where a newer round writes to the folder.
    """
    aside = folder.path / f".{name_of(order.step)}.{token}"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _check_room(folder.path, sum(size_of(state) for state in order.states.values()))
        aside.mkdir()
        files = {f"{name}.pt": _save(aside / f"{name}.pt", state) for name, state in order.states.items()}
        files |= {name: write_file(aside / name, data) for name, data in order.texts.items()}
        manifest = order.manifest(files)
        write_file(aside / NAME, manifest.to_bytes())
        sync_directory(aside)
        folder.check_round(round_number)
        named = folder.place(aside, manifest)
        folder.sync()
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(aside)
        raise
    return named


def _save(path: Path, state: Any) -> Content:
    file = CheckedWriter(path)
    try:
        torch.save(state, cast("IO[bytes]", file))
        return file.finish()
    except RuntimeError as error:
        raise file.failed or error from None
    finally:
        file.close()


def _check_room(path: Path, needed: int) -> None:
    room = os.statvfs(path)
    free = room.f_bavail * room.f_frsize
    if free < needed + _SPARE_BYTES:
        raise OSError(f"{path} has {free >> 20} MiB free, and a checkpoint needs {(needed + _SPARE_BYTES) >> 20} MiB")
    if room.f_files and room.f_favail < _INODES:
        raise OSError(f"{path} has {room.f_favail} inodes free, and a checkpoint needs {_INODES}")
