"""The checkpoints of all ranks of a run: which one to begin with, who writes, and what the disk said."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from ..proto.endings import COMMAND, MARK
from .checkpoints.copies import Copier, fetch, storage_at
from .checkpoints.fence import Claim
from .checkpoints.files import (
    CheckedWriter,
    Content,
    Reader,
    compare,
    load_tensors,
    read_file,
    sync_directory,
    write_file,
)
from .checkpoints.folder import Folder, Retention
from .checkpoints.layouts import fill
from .checkpoints.manifest import HELD, NAME, Manifest, surroundings
from .checkpoints.pieces import Divided, divide, is_sharded, tensors
from .checkpoints.staging import Staging, size_of
from .checkpoints.tensor_files import Index, fits_safetensors
from .checkpoints.writer import STATE, Alone, Order, Writer, Writers
from .errors import CheckpointNotWritten, Misused, NotResumable
from .world import World

LEDGER = "ledger.json"
OWN = "run."
"""Names of the run's own states begin so. They may differ between ranks; those of the rank that commits are kept."""
SHARED_BYTES = 64 << 20
"""A replicated state of so many bytes is written in parts by all ranks that see one file system. Below it, three
exchanges between the ranks cost more than one rank's writing."""
FORMATS = ("torch", "safetensors")
_CHUNK = 64 << 20


@dataclass(frozen=True)
class Found:
    """The checkpoint that all ranks begin with."""

    manifest: Manifest
    ledger: bytes
    load: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The states by name; given the things whose states they become, whose layout sharded tensors get."""


@dataclass(frozen=True)
class Snapshot:
    """What one checkpoint is to hold."""

    step: int
    places: dict[str, list[int]]
    run: dict[str, Any]
    ledger_head: str
    ledger: bytes
    label: str


class Persistence:
    """One for each rank, made by all of them. A rank that does not write takes part in what is collective."""

    def __init__(
        self,
        world: World,
        directory: Path,
        retention: Retention | None,
        log: Callable[[str], None],
        form: str = "torch",
        copy_to: str | os.PathLike[str] | None = None,
    ) -> None:
        """retention, form, copy_to: as `Run`. Collective. Raises Misused."""
        if form not in FORMATS:
            raise Misused(f"Run(format={form!r}): there are {' and '.join(map(repr, FORMATS))}")
        self._world, self._log, self._form = world, log, form
        retention = retention or Retention()
        number = int(os.environ.get("ELASTIC_AGENT_ROUND", "0"))
        # Unique to this start of the run; ordering is by rounds and steps, never by this time.
        token = world.broadcast(f"{socket.gethostname()}-{number}-{os.getpid()}-{time.time_ns():x}")
        nodes = world.gather(os.environ.get("ELASTIC_AGENT_NODE", ""))
        self._claim = Claim(token, number, tuple(sorted({node for node in nodes if node})))
        self.folder = Folder(directory, log)
        self._first_of = self._find_first()
        self._members = [rank for rank, first in enumerate(self._first_of) if first == self._first_of[world.rank]]
        self.writes = self._first_of[world.rank] == world.rank
        """Whether this rank commits checkpoints: the first of those that see its file system."""
        self._party: Writers | None = None
        self._staging = Staging()
        self._held_s = 0.0
        """How long the last save held the training up; 0: none was made."""
        self._storage = storage_at(copy_to) if copy_to is not None and world.rank == 0 else None
        self._copier = Copier(self._storage, retention, log) if self._storage is not None else None
        committed = self._copier.offer if self._copier is not None else lambda path: None
        in_use = self._copier.in_use if self._copier is not None else list
        self._writer = Writer(self.folder, self._claim, retention, log, committed, in_use)

    @property
    def round(self) -> int:
        """The agents' number of this round; 0 without agents."""
        return self._claim.round

    def _find_first(self) -> list[int]:
        """For each rank the first one whose files it sees, among the first ranks of the nodes."""
        local = [rank for rank, number in enumerate(self._world.gather(self._world.local_rank)) if number == 0]
        firsts = sorted({0, *local})
        rank, token = self._world.rank, self._claim.token
        probes = {first: self.folder.path / f".probe-{token}-{first}" for first in firsts}
        if rank in probes:
            write_file(probes[rank], b"")
        self._world.gather(None)
        seen = next((first for first in firsts if probes[first].exists()), rank)
        found = self._world.gather(seen)
        if rank in probes:
            with suppress(FileNotFoundError):
                probes[rank].unlink()
        return cast("list[int]", found)

    # -- the start -----------------------------------------------------------------------------------------------------

    def find(self, things: Mapping[str, Any]) -> Found | None:
        """Collective: the newest checkpoint that verifies on any node; other nodes get a copy of it from there, and all
        from slower storage where no node has one.

        things: what `Run` was given. Raises WrongState where a newer round writes to the directory, NotResumable where
        the state is sharded and the ranks do not see the same files.
        """
        self._check_layout(things)
        newest = self._world.together(self._newest_here)
        if not any(newest) and any(self._world.gather(self._storage is not None)):
            newest = self._world.together(self._fetched)
        steps = [found[1] if found else -1 for found in newest]
        if max(steps) < 0:
            return None
        source = steps.index(max(steps))
        have = [newest[rank] for rank in set(self._first_of)]
        if all(found is not None and found[2] == newest[source][2] for found in have):
            name = newest[self._first_of[self._world.rank]][0]
        else:
            name = self._hand_over(source, newest)
        folder = self.folder.path / name
        manifest = Manifest.read(folder)
        return Found(manifest, read_file(folder / LEDGER), lambda things: load_states(folder, manifest, things))

    def _check_layout(self, things: Mapping[str, Any]) -> None:
        if len(set(self._first_of)) == 1:
            return
        for name, thing in things.items():
            if any(is_sharded(tensor) for _, tensor in tensors(thing.state_dict())):
                far = next(rank for rank, first in enumerate(self._first_of) if first)
                raise NotResumable(
                    f"{name} is sharded over the ranks, and rank {far} does not see rank 0's files in "
                    f"{self.folder.path}: give Run a directory that all nodes share"
                )

    def _newest_here(self) -> list[Any] | None:
        """Name, step and identity of this file system's newest checkpoint."""
        if not self.writes:
            return None
        self.folder.claim(self._claim)
        self.folder.sweep(self._claim.token)
        return _told(self.folder.newest())

    def _fetched(self) -> list[Any] | None:
        """The same for slower storage: the newest copy there, which is a checkpoint here now."""
        if self._storage is None:
            return None
        return _told(fetch(self._storage, self.folder, self._claim.token, self._log))

    def _hand_over(self, source: int, newest: list[Any]) -> str:
        """Collective: the checkpoint of `source` for those file systems that lack it. Gives its name on this one."""
        folder = self.folder.path / newest[source][0]
        have = newest[self._first_of[self._world.rank]]
        lacks = have is None or have[2] != newest[source][2]
        gets = self.writes and lacks
        aside = self.folder.path / f".{newest[source][0]}.{self._claim.token}"
        self._world.together(lambda: aside.mkdir() if gets else None)
        data = read_file(folder / NAME) if self._world.rank == source else b""
        manifest = Manifest.parse(self._world.broadcast_bytes(data, source), newest[source][0])
        for name, content in manifest.files.items():
            self._hand_over_file(source, folder / name, aside / name if gets else None, content)

        def place() -> str:
            if not gets:
                return str(have[0]) if self.writes else ""
            write_file(aside / NAME, manifest.to_bytes())
            sync_directory(aside)
            named = self.folder.place(aside, manifest)
            self.folder.sync()
            return named.name

        return str(self._world.together(place)[self._first_of[self._world.rank]])

    def _hand_over_file(self, source: int, path: Path, to: Path | None, content: Content) -> None:
        reader = Reader(path) if self._world.rank == source else None
        writer = CheckedWriter(to) if to is not None else None
        try:
            for first in range(0, content.length, _CHUNK):
                data = reader.read(min(_CHUNK, content.length - first)) if reader is not None else b""
                got = self._world.broadcast_bytes(data or b"", source)
                if writer is not None:
                    writer.write(got)
            if writer is not None:
                compare(path.name, writer.finish(), content)
        finally:
            for file in (reader, writer):
                if file is not None:
                    file.close()

    # -- saves ---------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a save is on its way to the disk."""
        return self._writer.busy

    @property
    def took_s(self) -> float:
        """How long this rank's longest save took from its copies until it was on the disk; 0 where it wrote none."""
        return self._writer.took_s

    def complete(self, step: int, epoch: int) -> None:
        """The training is complete: leaves the mark beside the checkpoints of each file system. Collective. Raises
        OSError, WrongState where a newer round writes to the directory."""
        mark = {"step": step, "epoch": epoch, "command": os.environ.get(COMMAND, ""), "at": time.strftime("%F %T %z")}
        self._world.together(lambda: self._leave(mark) if self.writes else None)

    def _leave(self, mark: dict[str, Any]) -> None:
        aside = self.folder.path / f".{MARK}.{self._claim.token}"
        aside.unlink(missing_ok=True)
        write_file(aside, json.dumps(mark).encode())
        self.folder.check_claim(self._claim)
        aside.rename(self.folder.path / MARK)
        self.folder.sync()

    def save(self, snapshot: Snapshot, states: dict[str, Any]) -> None:
        """Collective: copies the states and writes them in the background. If the save before failed, that has been
        said; this one is the next attempt."""
        began_s = time.monotonic()
        with suppress(CheckpointNotWritten):
            self._writer.wait()
        sharded = any(is_sharded(tensor) for _, tensor in tensors(states))
        large = len(self._members) > 1 and size_of(states) >= SHARED_BYTES and self._form == "torch"
        writers: Writers = Alone()
        if any(self._world.most([int(sharded), int(large)])):
            writers = self._party = self._party or self._world.party(self._members)
        elif not self.writes:
            return

        made_by = {**surroundings(), HELD: round(self._held_s, 6)}

        def manifest(files: dict[str, Content]) -> Manifest:
            return Manifest(
                snapshot.step,
                self._claim.token,
                self._claim.round,
                snapshot.places,
                snapshot.run,
                snapshot.ledger_head,
                files,
                snapshot.label,
                made_by,
            )

        safe = self._form == "safetensors" and isinstance(writers, Alone)
        state = self._staged(self._divided(states, writers, safe))
        self._writer.start(Order(snapshot.step, state, {LEDGER: snapshot.ledger}, manifest, writers, safe))
        self._held_s = time.monotonic() - began_s

    def _divided(self, states: dict[str, Any], writers: Writers, safe: bool) -> Divided:
        given = {name: state for name, state in states.items() if not name.startswith(OWN)}
        if safe:
            state = divide(given, (0, 1), fits_safetensors)
        elif not isinstance(writers, Alone):
            state = divide(given, (writers.rank, writers.size))
        else:
            state = Divided(given)
        own = {name: held for name, held in states.items() if name.startswith(OWN)}
        return Divided({**state.skeleton, **own}, state.pieces, state.aliases)

    def _staged(self, state: Divided) -> Divided:
        """Copied: the pieces of this rank, and the skeleton on the rank that commits."""
        keep_skeleton = self.writes
        copied = self._staging.copy([state.skeleton if keep_skeleton else None, [piece.data for piece in state.pieces]])
        pieces = [replace(piece, data=data) for piece, data in zip(state.pieces, copied[1], strict=True)]
        return Divided(copied[0] if keep_skeleton else state.skeleton, pieces, state.aliases)

    def wait(self) -> None:
        """Until the save on its way is on the disk, and copied. Raises CheckpointNotWritten."""
        self._writer.wait()
        if self._copier is not None:
            self._copier.wait()


def _told(found: tuple[Path, Manifest] | None) -> list[Any] | None:
    return [found[0].name, found[1].step, found[1].identity()] if found is not None else None


def load_states(folder: Path, manifest: Manifest, things: Mapping[str, Any]) -> dict[str, Any]:
    """The states in a verified checkpoint, by name; `things`: see `Found`. Raises OSError, CheckpointDamaged."""
    skeleton = load_tensors(folder / STATE)
    index = Index.read(folder, manifest.files)
    # Without a process group nothing is sharded, and nobody needs to be asked for its present state.
    ranks = dist.is_available() and dist.is_initialized()
    known = {name: thing for name, thing in things.items() if ranks and name in skeleton}
    return fill(skeleton, folder, index, known)
