"""The checkpoints of all ranks of a run: which one to begin with, who writes, and what the disk said."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoints.files import Content
from .checkpoints.folder import Folder, Retention
from .checkpoints.manifest import NAME, Manifest
from .checkpoints.staging import Staging
from .checkpoints.writer import Order, Writer
from .world import World

STATE = "state"
LEDGER = "ledger.json"


@dataclass(frozen=True)
class Found:
    """The checkpoint that all ranks begin with: its manifest and the bytes of its two files."""

    manifest: Manifest
    state: bytes
    ledger: bytes


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

    def __init__(self, world: World, directory: Path, retention: Retention, log: Callable[[str], None]) -> None:
        """Collective."""
        self._world = world
        self.round = int(os.environ.get("ELASTIC_AGENT_ROUND", "0"))
        # Unique to the process that writes; ordering is by rounds and steps, never by this time.
        self._token = f"{socket.gethostname()}-{self.round}-{os.getpid()}-{time.time_ns():x}"
        self.folder = Folder(directory, log)
        self._staging = Staging()
        self.writes = self._find_writers()
        self._writer = Writer(self.folder, self._token, self.round, retention, log)

    def _find_writers(self) -> bool:
        """Whether this rank writes checkpoints: the first, and the first of each node that does not see its files."""
        probe = self.folder.path / f".probe-{self._world.broadcast(self._token)}"
        if self._world.rank == 0:
            probe.touch()
        self._world.gather(None)
        sees = probe.exists()
        self._world.gather(None)
        if self._world.rank == 0:
            probe.unlink()
        return self._world.rank == 0 or (self._world.local_rank == 0 and not sees)

    def find(self) -> Found | None:
        """Collective: the newest checkpoint that verifies on any node; other nodes get its bytes from there.

        Raises WrongState where a newer round writes to the directory.
        """
        found = None
        if self.writes:
            self.folder.begin_round(self.round, self._token)
            self.folder.sweep(self._token)
            found = self.folder.newest()
        steps = self._world.gather(found[1].step if found else -1)
        if max(steps) < 0:
            return None
        source = steps.index(max(steps))
        parts = [b"", b"", b""]
        if found is not None and self._world.rank == source:
            parts = [(found[0] / name).read_bytes() for name in (NAME, f"{STATE}.pt", LEDGER)]
        manifest, state, ledger = (self._world.broadcast_bytes(part, source) for part in parts)
        return Found(Manifest.parse(manifest, f"the checkpoint of step {max(steps)}"), state, ledger)

    @property
    def busy(self) -> bool:
        """Whether a save is on its way to the disk."""
        return self._writer.busy

    def save(self, snapshot: Snapshot, states: dict[str, Any]) -> None:
        """Copies the states and writes them in the background.

        Raises CheckpointNotWritten if the save before failed; this one is not made then.
        """
        self._writer.wait()

        def manifest(files: dict[str, Content]) -> Manifest:
            return Manifest(
                snapshot.step,
                self._token,
                self.round,
                snapshot.places,
                snapshot.run,
                snapshot.ledger_head,
                files,
                snapshot.label,
            )

        copied = {STATE: self._staging.copy(states)}
        self._writer.start(Order(snapshot.step, copied, {LEDGER: snapshot.ledger}, manifest))

    def wait(self) -> None:
        """Until the save on its way is on the disk. Raises CheckpointNotWritten."""
        self._writer.wait()
