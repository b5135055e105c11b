"""One number for all that a run consists of: two runs with the same digest go on alike."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def digest(state: Mapping[str, Any]) -> str:
    """SHA-256 over a state and over the global random generators of this process, in hexadecimal.

    Mappings count by their keys, whatever their order; tensors by type, shape and bytes, whatever their device.
    """
    return sum_of({"state": state, "generators": _generators()})


def sum_of(value: Any) -> str:
    """SHA-256 of a value as `digest` counts it, in hexadecimal."""
    whole = hashlib.sha256()
    for part in _parts(value):
        whole.update(part)
    return whole.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            yield f"{value.layout} ".encode()
        plain = value.detach().cpu().to_dense().contiguous()
        yield f"tensor {plain.dtype} {list(plain.shape)}:".encode()
        if plain.numel():
            yield _bytes(plain.reshape(-1).view(torch.uint8))
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}:".encode()
        for key in sorted(value, key=repr):
            yield repr(key).encode()
            yield from _parts(value[key])
    elif isinstance(value, (set, frozenset)):
        yield f"set {len(value)}:".encode()
        yield from sorted(b"".join(_parts(held)) for held in value)
    elif isinstance(value, (list, tuple)):
        yield f"sequence {len(value)}:".encode()
        for held in value:
            yield from _parts(held)
    else:
        yield f"{type(value).__name__} {value!r};".encode()


def _generators() -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch.default_generator.get_state(), "random": random.getstate()}
    if torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        found["numpy"] = [str(kind), keys.tolist(), [repr(value) for value in rest]]
    return found


def _bytes(memory: torch.Tensor) -> bytes:
    if "numpy" in sys.modules:
        return memory.numpy().tobytes()
    return bytes(memory.tolist())
