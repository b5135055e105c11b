"""Pieces of tensors in files, in two forms, and the index by which any box of any tensor is read back.

* `__0_0.distcp`, one a rank: each piece as torch.save writes it, one after the other. With `.metadata`, which
  torch.distributed.checkpoint reads; we read `pieces.json`, which runs no code.
* `state.safetensors`: all tensors of one rank, in the form of safetensors.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import torch

from ..errors import CheckpointDamaged
from .files import CheckedWriter, Content, Reader, load_tensors, read_file
from .pieces import Divided, Piece

INDEX = "pieces.json"
SAFETENSORS = "state.safetensors"

_SAFE_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
"""Names of types in safetensors -> in torch."""
_SAFE_NAMES = {torch_name: name for name, torch_name in _SAFE_TYPES.items()}

Record = list[Any]
"""Of a piece in a file: name, shape, type, offsets, sizes, file, first byte, length."""


@dataclass
class Index:
    """Where the pieces of every tensor are."""

    records: dict[str, list[Record]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        self.records.setdefault(record[0], []).append(record)

    def to_bytes(self) -> bytes:
        every = [record for records in self.records.values() for record in records]
        return json.dumps({"pieces": every, "aliases": self.aliases}).encode()

    def files_with(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> set[str]:
        """The files that a box of a tensor is read from."""
        return {record[5] for record in self.records.get(name, []) if _overlap(record, offsets, sizes)}

    @classmethod
    def read(cls, folder: Path, files: Iterable[str]) -> Index:
        """Of a checkpoint with these files; empty where its tensors are all in its state. The files have been verified.

        Raises OSError.
        """
        index = cls()
        if INDEX in files:
            kept = json.loads(read_file(folder / INDEX))
            index.aliases = kept["aliases"]
            for record in kept["pieces"]:
                index.add(record)
        elif SAFETENSORS in files:
            _read_header(folder / SAFETENSORS, index)
        return index


def write_pieces(folder: Path, file: str, pieces: list[Piece]) -> tuple[Content, list[Record]]:
    """One rank's pieces, brought to disk. Raises OSError."""
    records: list[Record] = []
    writer = CheckedWriter(folder / file)
    try:
        for piece in pieces:
            at = writer.tell()
            torch.save(piece.data, cast("IO[bytes]", writer))
            records.append([*_described(piece), file, at, writer.tell() - at])
        return writer.finish(), records
    except RuntimeError as error:
        raise writer.failed or error from None
    finally:
        writer.close()


def write_safetensors(folder: Path, divided: Divided) -> Content:
    """All tensors of a state that one rank took apart, brought to disk. Raises OSError."""
    header: dict[str, Any] = {}
    if divided.aliases:
        header["__metadata__"] = {"aliases": json.dumps(divided.aliases)}
    at = 0
    for piece in divided.pieces:
        size = piece.data.numel() * piece.data.element_size()
        kind = _SAFE_NAMES[str(piece.data.dtype).removeprefix("torch.")]
        header[piece.name] = {"dtype": kind, "shape": list(piece.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    writer = CheckedWriter(folder / SAFETENSORS)
    try:
        writer.write(len(text).to_bytes(8, "little") + text)
        for piece in divided.pieces:
            if piece.data.numel():
                data = piece.data.contiguous()  # held until it is written
                writer.write(_raw(data))
        return writer.finish()
    finally:
        writer.close()


def fits_safetensors(tensor: torch.Tensor) -> bool:
    """Whether the form has the type of a tensor that `has_memory`. It is little-endian, as are all machines that torch
    runs on but one."""
    return str(tensor.dtype).removeprefix("torch.") in _SAFE_NAMES and sys.byteorder == "little"


def read_box(folder: Path, index: Index, name: str, offsets: tuple[int, ...], made: torch.Tensor) -> torch.Tensor:
    """Fills `made` with a box of a tensor, put together from all pieces that it touches. Raises OSError,
    CheckpointDamaged."""
    records = index.records.get(index.aliases.get(name, name), [])
    if not records:
        raise CheckpointDamaged(f"{folder.name}: no file has tensor {name!r}")
    sizes, missing = tuple(made.shape), made.numel()
    for record in records:
        _, _, _, at, size = record[:5]
        if not _overlap(record, offsets, sizes):
            continue
        low = [max(a, b) for a, b in zip(at, offsets, strict=True)]
        high = [min(a + n, b + m) for a, n, b, m in zip(at, size, offsets, sizes, strict=True)]
        piece = _read_piece(folder, record)
        there = tuple(slice(a - b, c - b) for a, c, b in zip(low, high, at, strict=True))
        here = tuple(slice(a - b, c - b) for a, c, b in zip(low, high, offsets, strict=True))
        made[here].copy_(piece[there])
        missing -= math.prod(last - first for first, last in zip(low, high, strict=True))
    if missing:
        raise CheckpointDamaged(f"{folder.name}: {missing} numbers of tensor {name!r} are in no file")
    return made


def _overlap(record: Record, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    spans = zip(record[3], record[4], offsets, sizes, strict=True)
    return all(max(a, b) < min(a + n, b + m) for a, n, b, m in spans)


def _described(piece: Piece) -> list[Any]:
    kind = str(piece.data.dtype).removeprefix("torch.")
    return [piece.name, list(piece.shape), kind, list(piece.offsets), list(piece.data.shape)]


def _read_piece(folder: Path, record: Record) -> torch.Tensor:
    _, _, kind, _, sizes, file, at, length = record
    if file != SAFETENSORS:
        return cast("torch.Tensor", load_tensors(folder / file, at, length))
    with Reader(folder / file, at, length) as reader:
        made = torch.empty(sizes, dtype=getattr(torch, kind), device="cpu")
        rest = _raw(made)
        while len(rest) and (count := reader.readinto(rest)):
            rest = rest[count:]
        return made


def _raw(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor with at least one number. Without numpy, which need not be there."""
    import ctypes

    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _read_header(path: Path, index: Index) -> None:
    with Reader(path) as reader:
        length = int.from_bytes(reader.read(8) or b"", "little")
        header = json.loads(reader.read(length) or b"")
    index.aliases = json.loads(header.pop("__metadata__", {}).get("aliases", "{}"))
    for name, kept in header.items():
        first, last = kept["data_offsets"]
        shape, kind = kept["shape"], _SAFE_TYPES[kept["dtype"]]
        index.add([name, shape, kind, [0] * len(shape), shape, path.name, 8 + length + first, last - first])


def to_bytes(value: Any) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
