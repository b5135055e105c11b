"""The checkpoints of all ranks of a run: which one to begin with, who writes, and what the disk said."""

from __future__ import annotations

import gc
import json
import os
import socket
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from ..proto.endings import COMMAND, MARK
from .agreement import CheckpointChoice
from .checkpoints.copies import Copier, storage_at
from .checkpoints.fence import Claim
from .checkpoints.files import Content, load_tensors, place_file, read_file, why_unreadable, write_file
from .checkpoints.folder import Folder, Retention, may_write
from .checkpoints.layouts import fill
from .checkpoints.lineage import KEY, Starts
from .checkpoints.manifest import HELD, Manifest, surroundings
from .checkpoints.pieces import Divided, divide, has_memory, is_sharded, kinds, rebuild, savable, tensors
from .checkpoints.staging import PLAIN, Staging, size_of
from .checkpoints.tensor_files import Index, fits_safetensors
from .checkpoints.transfer import Homes
from .checkpoints.writer import STATE, Order, SingleWriter, Writer
from .checks import check_replicas
from .errors import CheckpointNotWritten, Misused, NotResumable
from .ledger import FILE as LEDGER
from .loop import account
from .world import Party, World

OWN = "run."
"""Names of the run's own states begin so. They may differ between ranks; those of the rank that commits are kept."""
SHARED_BYTES = 64 << 20
"""A replicated state of so many bytes is written in parts by all ranks that see one file system. Below it, three
exchanges between the ranks cost more than one rank's writing."""
FORMATS = ("torch", "safetensors")
READABLE = PLAIN | {set, tuple}
"""Types that torch loads by itself. What a state holds of others is looked at with each save: it may change inside."""


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


_made: weakref.WeakSet[Persistence] = weakref.WeakSet()
"""Those of this process that are still in memory."""
_tokens: set[str] = set()
"""Who has saved in this process."""


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
        if _made:
            # A run and what it consists of know each other: one that the script has let go, as after a fold, would
            # keep its model and the buffers of its saves in memory until the interpreter looks for such rings.
            gc.collect()
        _made.add(self)
        self._world, self._log, self._form = world, log, form
        retention = Retention.checked(retention)
        number = int(os.environ.get("ELASTIC_AGENT_ROUND", "0"))
        # Unique to this start of the run; ordering is by rounds and steps, never by this time.
        token = world.broadcast(f"{socket.gethostname()}-{number}-{os.getpid()}-{time.time_ns():x}")
        nodes = world.gather(os.environ.get("ELASTIC_AGENT_NODE", ""))
        _tokens.add(token)
        self._claim = Claim(token, number, tuple(sorted({node for node in nodes if node})))
        # The writer has a thread of its own, and a script may go to another working directory.
        self.folder = Folder(directory.absolute(), log)
        self.homes = Homes(tuple(self._find_first()))
        self._first = self.homes.first_of[world.rank]
        self.writes = self._first == world.rank
        """Whether this rank commits checkpoints: the first of those that see its file system."""
        self._parties: dict[int, Party] = {}
        self._starts: Starts = []
        """Those that lead to this one's checkpoints, itself included."""
        self._unchecked: Mapping[str, Any] | None = None
        """What the ranks have yet to compare."""
        self._staging = Staging()
        self._held_s = 0.0
        """How long the last save held the training up; 0: none was made."""
        self._storage = storage_at(copy_to) if copy_to is not None and world.rank == 0 else None
        self._copier = Copier(self._storage, retention, log) if self._storage is not None else None
        in_use = self._copier.in_use if self._copier is not None else list
        self._writer = Writer(self.folder, self._claim, retention, log, self._committed, in_use)

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
        mine = probes.get(rank)
        while True:
            if mine is not None:
                with may_write(self.folder.path):
                    mine.unlink(missing_ok=True)
                    write_file(mine, b"")
            self._world.gather(None)
            found = self._world.gather(next((first for first in firsts if probes[first].exists()), rank))
            # Another start in this directory may have removed one as left behind, while others looked for it.
            if all(self._world.gather(mine is None or mine.exists())):
                break
        if mine is not None:
            mine.unlink(missing_ok=True)
        return cast("list[int]", found)

    def find(self, things: Mapping[str, Any]) -> Found | None:
        """Collective: the newest checkpoint that is whole on some nodes; see `agreement`.

        things: what `Run` was given. Raises WrongState where a newer round writes to the directory, NotResumable where
        parts of a checkpoint are on no node, or cannot be copied.
        """
        self._check_copies(things)
        self._unchecked = things
        choice = CheckpointChoice(self._world, self.folder, self._claim, self.homes, self._log)
        found = choice.reach(self._storage, things)
        self._starts = choice.starts
        if found is None:
            return None
        folder, manifest = found
        if manifest.token in _tokens and self._world.rank == 0:
            self._log(
                f"this process has trained in {self.folder.path} before, up to step {manifest.step}, and Run(...) goes "
                "on behind that: give another training, as of another fold, a directory of its own"
            )
        # The start before may have ended in the midst of its copy, and this one may find nothing left to do.
        if self._copier is not None and not manifest.elsewhere:
            self._copier.offer(folder)
        return Found(manifest, read_file(folder / LEDGER), lambda things: load_states(folder, manifest, things))

    def _check_copies(self, things: Mapping[str, Any]) -> None:
        if len(self.homes.firsts) == 1 or not any(self._world.gather(self._storage is not None)):
            return
        for name, thing in things.items():
            if any(is_sharded(tensor) for _, tensor in tensors(thing.state_dict())):
                raise NotResumable(
                    f"{name} is sharded over nodes that do not see each other's files in {self.folder.path}, and "
                    "Run(copy_to=...) copies one node's: give a directory that all nodes share, or leave copy_to out"
                )

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
        aside, named = self.folder.path / f".{MARK}.{self._claim.token}", self.folder.path / MARK
        place_file(aside, named, json.dumps(mark).encode(), lambda: self.folder.check_claim(self._claim))

    def save(self, snapshot: Snapshot, states: dict[str, Any]) -> None:
        """Collective: copies the states and writes them in the background. If the save before failed, that has been
        said; this one is the next attempt."""
        began_s = time.monotonic()
        if account.current is not None:
            account.current.took(snapshot.step)
        try:
            self._writer.wait()
        except CheckpointNotWritten as failed:
            if isinstance(failed.__cause__, NotResumable):  # no further attempt would be another
                raise failed.__cause__ from None
        if self._unchecked is not None:
            check_replicas(self._unchecked, self._world, self._log)
            self._unchecked = None
        sharded = any(is_sharded(tensor) for _, tensor in savable(states))
        mine = self.homes.members(self._first)
        large = len(mine) > 1 and size_of(states) >= SHARED_BYTES and self._form == "torch"
        anywhere_sharded, anywhere_large = self._world.most([int(sharded), int(large)])
        writers: Party = SingleWriter()
        homes = Homes()
        if anywhere_sharded:
            writers, homes = self._party(list(range(self._world.size))), self.homes
        elif anywhere_large:
            writers, homes = self._party(mine), Homes((0,) * len(mine))
        elif not self.writes:
            return

        made_by = {**surroundings(), HELD: round(self._held_s, 6)}

        def manifest(files: dict[str, Content]) -> Manifest:
            return Manifest(
                snapshot.step,
                self._claim.token,
                self._claim.round,
                snapshot.places,
                {**snapshot.run, KEY: self._starts},
                snapshot.ledger_head,
                files,
                snapshot.label,
                made_by,
            )

        safe = self._form == "safetensors" and isinstance(writers, SingleWriter)
        state = self._staged(self._divided(states, None if isinstance(writers, SingleWriter) else mine, safe))
        self._writer.start(Order(snapshot.step, state, {LEDGER: snapshot.ledger}, manifest, writers, homes, safe))
        self._held_s = time.monotonic() - began_s

    def _committed(self, path: Path, size: int) -> None:
        """A checkpoint has its name. From the writer's thread."""
        if account.current is not None:
            account.current.wrote(size)
        if self._copier is not None:
            self._copier.offer(path)

    def _party(self, members: list[int]) -> Party:
        """Collective among the members, the first time."""
        if len(members) not in self._parties:
            self._parties[len(members)] = self._world.party(members)
        return self._parties[len(members)]

    def _divided(self, states: dict[str, Any], sharers: list[int] | None, safe: bool) -> Divided:
        """sharers: the ranks that write replicated tensors together, for one directory; None: one rank writes all."""
        given = {name: state for name, state in states.items() if not name.startswith(OWN)}
        if safe:
            state = divide(given, (0, 1), fits_safetensors)
        elif sharers is not None:
            state = divide(given, (sharers.index(self._world.rank), len(sharers)))
        else:
            state = Divided(given)
        own = {name: held for name, held in states.items() if name.startswith(OWN)}
        return Divided({**state.skeleton, **own}, state.pieces, state.aliases)

    def _staged(self, state: Divided) -> Divided:
        """Copied: the pieces of this rank, and the skeleton on the rank that commits."""
        keep_skeleton = self.writes
        copied = self._staging.copy([state.skeleton if keep_skeleton else None, [piece.data for piece in state.pieces]])
        if keep_skeleton:
            self._check_readable(copied[0])
        pieces = [replace(piece, data=data) for piece, data in zip(state.pieces, copied[1], strict=True)]
        return Divided(copied[0] if keep_skeleton else state.skeleton, pieces, state.aliases)

    def _check_readable(self, skeleton: dict[str, Any]) -> None:
        """Raises NotResumable where a state holds what no start could load: a checkpoint runs no code when it is
        read."""
        if kinds(skeleton) <= READABLE:
            return
        for name, state in skeleton.items():
            if why := why_unreadable(
                rebuild(state, lambda path, held: torch.empty(0, device="cpu") if has_memory(held) else held)
            ):
                raise NotResumable(
                    f"no start could load the state of {name!r} from a checkpoint: {why}; keep plain values and "
                    "tensors in it, as float(x) makes them, or call torch.serialization.add_safe_globals([...]) in the "
                    "script"
                )

    def wait(self) -> None:
        """Until the save on its way is on the disk, and copied. Raises CheckpointNotWritten."""
        self._writer.wait()
        if self._copier is not None:
            self._copier.wait()


def load_states(folder: Path, manifest: Manifest, things: Mapping[str, Any]) -> dict[str, Any]:
    """The states in a verified checkpoint, by name; `things`: see `Found`. Raises OSError, CheckpointDamaged."""
    skeleton = load_tensors(folder / STATE)
    index = Index.read(folder, manifest.files)
    # Without a process group nothing is sharded, and nobody needs to be asked for its present state.
    ranks = dist.is_available() and dist.is_initialized()
    known = {name: thing for name, thing in things.items() if ranks and name in skeleton}
    return fill(skeleton, folder, index, known)
