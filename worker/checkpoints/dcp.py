"""The `.metadata` with which torch.distributed.checkpoint reads our pieces. torch writes it; we bring it to disk.

torch syncs that file before it has written it, and never its directory (2.13).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from .files import CheckedWriter, Content
from .tensor_files import Index, Record, to_bytes

NAME = ".metadata"


class _Disk:
    """What torch's writer asks of a file system, for one file that is written once."""

    def __init__(self) -> None:
        self.content: Content | None = None

    def concat_path(self, path: Path, name: str) -> Path:
        return Path(path) / name.removesuffix(".tmp")

    @contextmanager
    def create_stream(self, path: Path, mode: str) -> Iterator[CheckedWriter]:
        writer = CheckedWriter(path)
        try:
            yield writer
            self.content = writer.finish()
        finally:
            writer.close()

    def exists(self, path: Path) -> bool:
        return False

    def rename(self, path: Path, new_path: Path) -> None:
        """It has its name."""


def readable(skeleton: dict[str, Any], index: Index) -> bool:
    """Whether torch has a name for each place in the state: places that differ in dots alone share one, and what a
    tuple holds has none."""
    try:
        flat, _ = flatten_state_dict(skeleton)
    except ValueError:
        return False
    return (index.records.keys() | index.aliases.keys()) <= flat.keys()


def write_leaves(folder: Path, file: str, skeleton: dict[str, Any]) -> tuple[Content, list[Record]]:
    """What torch would save besides the pieces: small tensors, and all that is no tensor, whose records have no shape.

    Raises OSError.
    """
    flat, _ = flatten_state_dict(skeleton)
    records: list[Record] = []
    writer = CheckedWriter(folder / file)
    try:
        for name, value in flat.items():
            tensor = isinstance(value, torch.Tensor)
            if tensor and value.is_meta:
                continue
            at = writer.tell()
            writer.write(to_bytes(value))
            shape = list(value.shape) if tensor else None
            kind = str(value.dtype).removeprefix("torch.") if tensor else ""
            records.append([name, shape, kind, [0] * len(shape or []), shape, file, at, writer.tell() - at])
        return writer.finish(), records
    finally:
        writer.close()


def write_metadata(folder: Path, skeleton: dict[str, Any], index: Index, records: list[Record]) -> Content:
    """Writes `.metadata` for the pieces of the index and these leaves. Raises OSError."""
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
    from torch.distributed.checkpoint.storage import WriteResult

    whole = Index({name: list(held) for name, held in index.records.items()})
    for record in records:
        whole.add(record)
    for name, first in index.aliases.items():
        whole.records[name] = whole.records[first]
    described: dict[str, Any] = {}
    results = []
    for name, held in whole.records.items():
        shape, kind = held[0][1], held[0][2]
        if shape is None:
            described[name] = dcp.BytesStorageMetadata()
        else:
            chunks = [dcp.ChunkStorageMetadata(torch.Size(record[3]), torch.Size(record[4])) for record in held]
            properties = dcp.TensorProperties(getattr(torch, kind))
            described[name] = dcp.TensorStorageMetadata(properties, torch.Size(shape), chunks)
        for record in held:
            place = dcp.MetadataIndex(name, None if shape is None else record[3])
            results.append(WriteResult(place, record[7], _StorageInfo(record[5], record[6], record[7])))
    writer = FileSystemWriter(folder, sync_files=False)
    disk = writer.fs = _Disk()  # type: ignore[assignment]
    _, mappings = flatten_state_dict(skeleton)
    writer.finish(dcp.Metadata(described, mappings), [results])
    if disk.content is None:
        raise OSError(f"{folder / NAME} was not written")
    return disk.content
