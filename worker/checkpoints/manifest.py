"""What a checkpoint's `manifest.json` says: the only thing that is believed about the folder it lies in."""

from __future__ import annotations

import json
import os
import platform
import zlib
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointDamaged, WrongState
from .files import Content, read_file

NAME = "manifest.json"
FORMAT = 2
"""The version of the folder's form. A reader refuses a later one. Where no file is elsewhere, 1 is written."""
PART = "_0.distcp"
"""How the names of files with pieces of tensors end."""
HELD = "held_s"
"""In `made_by`: how many seconds the save before this one held its rank's training up; 0 where it was the first."""


@dataclass(frozen=True)
class Manifest:
    """One checkpoint."""

    step: int
    """Steps that are trained into it."""
    token: str
    """Who wrote it: the job, the round, the process."""
    round: int
    """The round that wrote it; 0 without an agent."""
    places: dict[str, list[int]]
    """Of each loader: epoch and position."""
    run: dict[str, Any]
    """What the run needs to go on: seed, level, epoch of the outer loop, identities of the loaders."""
    ledger: str
    """The head of the ledger, in hexadecimal."""
    files: dict[str, Content]
    label: str = ""
    """Given with the request; a labelled checkpoint is kept beyond retention."""
    made_by: dict[str, Any] = field(default_factory=lambda: surroundings())  # noqa: PLW0108 - defined below
    elsewhere: dict[str, Content] = field(default_factory=dict)
    """Files of the same checkpoint that other nodes have. One that is here all the same was fetched later."""

    def parts(self) -> dict[str, Content]:
        """The files with pieces of tensors, one a rank that wrote some."""
        return {name: content for name, content in {**self.files, **self.elsewhere}.items() if name.endswith(PART)}

    def identity(self) -> str:
        """What two nodes that save the same state of the same run agree on. Without a loader of the run's only the step
        tells one from another."""
        told = [self.step, self.ledger, self.run, self.places, self.round, self.label]
        return json.dumps(told, sort_keys=True, default=index)

    def to_bytes(self) -> bytes:
        kept = {**self.__dict__, "format": FORMAT if self.elsewhere else 1}
        kept["files"] = {name: content.to_json() for name, content in self.files.items()}
        kept["elsewhere"] = {name: content.to_json() for name, content in self.elsewhere.items()}
        if not self.elsewhere:
            del kept["elsewhere"]
        return _bytes_of(kept)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises CheckpointDamaged where there is none, or none that can be understood."""
        try:
            return cls.parse(read_file(folder / NAME), folder.name)
        except FileNotFoundError:
            raise CheckpointDamaged(f"{folder.name}: no {NAME}") from None

    @classmethod
    def parse(cls, data: bytes, where: str) -> Manifest:
        """As `read`, of what is in the file; `where` is for messages. Raises WrongState for a later format."""
        try:
            kept = json.loads(data)
            if "crc32" in kept and _bytes_of({k: value for k, value in kept.items() if k != "crc32"}) != data:
                raise CheckpointDamaged(f"{where}: {NAME} is damaged: its CRC-32 differs from the one that was written")
            kept.pop("crc32", None)  # manifests of earlier versions have none
            if (version := kept.pop("format")) not in range(1, FORMAT + 1):
                raise (WrongState if isinstance(version, int) and version > FORMAT else CheckpointDamaged)(
                    f"{where}: its manifest has format {version}, and this version of elastic-agent reads 1 to {FORMAT}"
                )
            for files in ("files", "elsewhere"):
                kept[files] = {name: Content.from_json(held) for name, held in kept.get(files, {}).items()}
            return cls(**kept)
        except WrongState:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointDamaged(f"{where}: {NAME} cannot be read: {error}") from error


def _bytes_of(kept: dict[str, Any]) -> bytes:
    """The one form of a manifest, with the CRC-32 of the same form without it. Whole numbers may be numpy's."""
    body = json.dumps(kept, indent=1, sort_keys=True, default=index)
    kept = {**kept, "crc32": f"{zlib.crc32(body.encode()):08x}"}
    return json.dumps(kept, indent=1, sort_keys=True, default=index).encode()


def surroundings() -> dict[str, Any]:
    """What the bits of a model depend on besides the training script."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu",
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", ""),
    }
