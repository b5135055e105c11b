"""Writes checkpoints in a thread of its own, one at a time.

The order of commit: files, manifest and directory are written aside and brought to disk; the round is asked for once
more; only then the folder gets its name, and the parent directory is brought to disk. Where several ranks write one
checkpoint, the first of them commits when the files of all are on disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

import torch

from ..errors import CheckpointNotWritten, NotResumable, WrongState, text_of
from ..world import PATIENCE_S, Party
from .fence import Claim
from .files import CheckedWriter, Content, sync_directory, write_file
from .folder import Folder, Retention, name_of
from .manifest import NAME, Manifest
from .pieces import Divided, tensors
from .staging import size_of
from .tensor_files import INDEX, SAFETENSORS, Index, write_pieces, write_safetensors
from .transfer import Homes, carry, ring

STATE = "state.pt"
_SPARE_BYTES = 16 << 20
"""Room that a save leaves on the disk, for manifests and logs."""
_INODES = 8
"""Files of a checkpoint that each rank may write."""


class SingleWriter(Party):
    """One rank that writes all of it."""


@dataclass
class Order:
    """One checkpoint to write."""

    step: int
    state: Divided
    """Already copied."""
    texts: dict[str, bytes]
    """Further small files."""
    manifest: Callable[[dict[str, Content]], Manifest]
    writers: Party = field(default_factory=SingleWriter)
    homes: Homes = field(default_factory=Homes)
    """Which of the writers see the same files: in each home the first commits what its ranks wrote, and a copy of what
    those of the home before wrote."""
    safetensors: bool = False
    """The form of the pieces; only where one rank writes."""
    size: int = 0
    """Bytes of its files here, once it has its name; on the rank that commits."""
    done: threading.Event = field(default_factory=threading.Event)
    failed: Exception | None = None


class Writer:
    """Each save has a thread of its own, which the end of the process waits for; `wait` says whether it failed."""

    def __init__(
        self,
        folder: Folder,
        claim: Claim,
        retention: Retention,
        log: Callable[[str], None],
        committed: Callable[[Path, int], None] = lambda path, size: None,
        in_use: Callable[[], list[str]] = list,
    ) -> None:
        """committed: called in the thread for each checkpoint that has its name here, with the bytes of its files.
        in_use: names that must stay."""
        self._folder, self._claim, self._retention, self._log = folder, claim, retention, log
        self._committed, self._in_use = committed, in_use
        self._now: Order | None = None
        self._thread: threading.Thread | None = None
        self.took_s = 0.0
        """How long the longest of the saves took from its start until it was on the disk; 0: none has."""

    @property
    def busy(self) -> bool:
        return self._now is not None and not self._now.done.is_set()

    def start(self, order: Order) -> None:
        """Writes in the background. The one before must be done."""
        self._now = order
        # Not a daemon: an interpreter that ends waits for it, where the script has left the loop by `break`.
        self._thread = threading.Thread(target=self._run, args=(order,), name="checkpoint-writer", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Until the save in flight is done. Raises CheckpointNotWritten if it failed."""
        if self._now is None:
            return
        if not self._now.done.wait(PATIENCE_S):  # a network file system whose server is gone, say
            self._log(
                f"the checkpoint of step {self._now.step} has not been written to {self._folder.path} within "
                f"{PATIENCE_S:g} s, and the training waits for it: see whether the file system there answers"
            )
            self._now.done.wait()
        if self._thread is not None:
            self._thread.join()
        order, self._now = self._now, None
        if order.failed is not None:
            raise CheckpointNotWritten(f"checkpoint of step {order.step}: {text_of(order.failed)}") from order.failed

    def _run(self, order: Order) -> None:
        began_s = time.monotonic()
        try:
            named = write(self._folder, self._claim, order)
            self.took_s = max(self.took_s, time.monotonic() - began_s)
            if named is not None:
                self._committed(named, order.size)
                self._retain()
        except Exception as error:  # noqa: BLE001 - a state that cannot be pickled, say: told like a full disk
            order.failed = error
            self._log(f"cannot write the checkpoint of step {order.step}: {text_of(error)}; the one before it stays")
        finally:
            order.done.set()

    def _retain(self) -> None:
        try:
            self._folder.check_claim(self._claim)
            self._folder.retain(self._retention, self._claim.token, self._in_use())
        except (OSError, WrongState) as error:
            self._log(f"cannot remove an old checkpoint: {error}; the next save tries again")


def write(folder: Folder, claim: Claim, order: Order) -> Path | None:
    """Writes one checkpoint and gives it its name, which the first of its writers returns.

    Whatever fails, nothing under its name is there or changed. Raises OSError, or WrongState where another start of the
    run writes to the folder.
    """
    rank = order.writers.rank
    first = order.homes.first_of[rank] == rank
    aside = folder.path / f".{name_of(order.step)}.{claim.token}"
    try:
        order.writers.together(lambda: _begin(folder.path, aside, order) if first else None)
        parts = order.writers.together(lambda: _write_part(aside, order))
        copies = _exchange(aside, order, parts)
        named: list[Path] = []
        order.writers.together(
            lambda: named.append(_commit(folder, claim, aside, order, parts, copies)) if first else None
        )
    except BaseException:
        if first:
            with contextlib.suppress(OSError):
                shutil.rmtree(aside)
        raise
    return named[0] if named else None


def _begin(path: Path, aside: Path, order: Order) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    # Besides the parts of its own ranks, a home keeps those of another one.
    writers = len(order.homes.members(order.writers.rank)) * min(2, len(order.homes.firsts))
    needed = size_of(order.state.skeleton) + writers * sum(size_of(piece.data) for piece in order.state.pieces)
    _check_room(path, needed, _INODES * writers)
    aside.mkdir()


def _write_part(aside: Path, order: Order) -> dict[str, Any]:
    """This rank's pieces: what its files hold, where each piece is, as JSON can hold it."""
    pieces, rank = order.state.pieces, order.writers.rank
    files: dict[str, Content] = {}
    records: list[Any] = []
    if order.safetensors:
        files[SAFETENSORS] = write_safetensors(aside, order.state)
    elif pieces:
        name = f"__{rank}_0.distcp"
        files[name], records = write_pieces(aside, name, pieces)
    return {
        "files": {name: content.to_json() for name, content in files.items()},
        "records": records,
        "replicated": sorted({piece.name for piece in pieces if piece.replicated}),
        "aliases": order.state.aliases,
        "holds": _structure(order.state.skeleton),
    }


def _exchange(aside: Path, order: Order, parts: list[Any]) -> dict[str, Content]:
    """Where homes do not see each other's files: those of the home before, copied here. Each part is on two nodes then,
    so that the loss of a node loses none."""
    if len(order.homes.firsts) == 1:
        return {}
    transfers = ring(order.homes, {first: _files(order.homes, parts, first) for first in order.homes.firsts})
    order.writers.together(lambda: carry(order.writers, transfers, aside.joinpath, aside.joinpath))
    return {each.name: each.content for each in transfers if each.target == order.writers.rank}


def _files(homes: Homes, parts: list[Any], first: int) -> dict[str, Content]:
    """What the ranks of one home wrote."""
    written = (parts[rank]["files"] for rank in homes.members(first))
    return {name: Content.from_json(kept) for files in written for name, kept in files.items()}


def _commit(
    folder: Folder, claim: Claim, aside: Path, order: Order, parts: list[Any], copies: dict[str, Content]
) -> Path:
    """The first writer's part: what one rank writes, the manifest over the files of all, and the name."""
    for rank, part in enumerate(parts):
        if part["holds"] != parts[0]["holds"]:
            raise NotResumable(
                f"rank {rank} holds other tensors than rank 0: only states that have the same names and shapes on "
                "every rank are saved, as of data parallel and fully sharded models"
            )
    homes, here = order.homes, order.writers.rank
    files = {**_files(homes, parts, here), **copies}
    every = {name: held for first in homes.firsts for name, held in _files(homes, parts, first).items()}
    files[STATE] = _save(aside / STATE, order.state.skeleton)
    if any(part["records"] for part in parts):
        files |= _write_index(aside, order.state.skeleton, parts, homes.members(here))
    files |= {name: write_file(aside / name, data) for name, data in order.texts.items()}
    elsewhere = {name: content for name, content in every.items() if name not in files}
    manifest = replace(order.manifest(files), elsewhere=elsewhere)
    write_file(aside / NAME, manifest.to_bytes())
    sync_directory(aside)
    folder.check_claim(claim)
    named = folder.place(aside, manifest)
    folder.sync()
    order.size = sum(content.length for content in files.values())
    return named


def _write_index(aside: Path, skeleton: dict[str, Any], parts: list[Any], here: list[int]) -> dict[str, Content]:
    """here: the ranks whose files are in this folder. Replicated tensors are written by each home, and read here."""
    from . import dcp  # torch.distributed.checkpoint takes a while to import

    index = Index()
    for rank, part in enumerate(parts):
        index.aliases |= part["aliases"]
        for record in part["records"]:
            if rank in here or record[0] not in part["replicated"]:
                index.add(record)
    files = {INDEX: write_file(aside / INDEX, index.to_bytes())}
    if dcp.readable(skeleton, index):
        leaves = "__0_1.distcp"
        files[leaves], records = dcp.write_leaves(aside, leaves, skeleton)
        files[dcp.NAME] = dcp.write_metadata(aside, skeleton, index, records)
    return files


def _save(path: Path, state: Any) -> Content:
    file = CheckedWriter(path)
    try:
        torch.save(state, cast("IO[bytes]", file))
        return file.finish()
    except RuntimeError as error:
        raise file.failed or error from None
    finally:
        file.close()


def _check_room(path: Path, needed: int, inodes: int) -> None:
    room = os.statvfs(path)
    free = room.f_bavail * room.f_frsize
    # One without blocks has no limit, or does not tell: tmpfs of size 0, and file systems of programs.
    if room.f_blocks and free < needed + _SPARE_BYTES:
        raise OSError(f"{path} has {free >> 20} MiB free, and a checkpoint needs {(needed + _SPARE_BYTES) >> 20} MiB")
    if room.f_files and room.f_favail < inodes:
        raise OSError(f"{path} has {room.f_favail} inodes free, and a checkpoint needs {inodes}")


def _structure(skeleton: Any) -> int:
    """Equal on ranks from whose states the same tensors were taken out."""
    taken = ((place, tensor) for place, tensor in tensors(skeleton) if tensor.is_meta)
    names = [[list(map(str, place)), list(tensor.shape), str(tensor.dtype)] for place, tensor in taken]
    return zlib.crc32(json.dumps(names).encode())
