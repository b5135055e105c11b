"""States taken apart: a skeleton, which one rank writes, and pieces of tensors, of which each rank writes its own.

A tensor that has been taken out leaves a tensor on the device `meta` in the skeleton: its shape and type without its
values. A sharded tensor (DTensor) is taken out with the part that this rank holds. Of replicated tensors, each of the
ranks that share the work takes rows, in all about as many bytes as the others.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Path = tuple[Any, ...]
"""Keys and numbers that lead to a place in a state."""

SMALL = 4096
"""A replicated tensor of less bytes stays in the skeleton."""


@dataclass(frozen=True)
class Piece:
    """A box of one tensor."""

    name: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    data: torch.Tensor
    replicated: bool = False
    """Whether other ranks hold the same: it is cut for the sake of the work, not because of its layout."""


@dataclass
class Divided:
    """A state taken apart, as one rank sees it."""

    skeleton: Any
    pieces: list[Piece] = field(default_factory=list)
    """Those that this rank writes."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Names of tensors that are others under a second name."""


def rebuild(
    value: Any,
    change: Callable[[Path, torch.Tensor], Any],
    path: Path = (),
    other: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """The same state with every tensor changed, and by `other` all else, keys included. Descends into mappings, lists
    and tuples."""
    if isinstance(value, torch.Tensor):
        return change(path, value)
    if isinstance(value, Mapping):
        made = ((other(key), rebuild(held, change, (*path, key), other)) for key, held in value.items())
        return OrderedDict(made) if isinstance(value, OrderedDict) else dict(made)
    if type(value) in (list, tuple):
        return type(value)(rebuild(held, change, (*path, number), other) for number, held in enumerate(value))
    return other(value)


def tensors(value: Any) -> Iterator[tuple[Path, torch.Tensor]]:
    """Every tensor of a state, with its place, in the order of the state."""
    found: list[tuple[Path, torch.Tensor]] = []
    rebuild(value, lambda path, tensor: found.append((path, tensor)))
    return iter(found)


def kinds(value: Any) -> set[type]:
    """The types of all in a state that is no tensor, keys included."""
    found: set[type] = set()
    rebuild(value, lambda path, tensor: None, other=lambda held: found.add(type(held)))
    return found


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor, of which this rank holds a part."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def local_of(tensor: Any) -> torch.Tensor:
    """What this rank holds of a sharded tensor; another tensor itself."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor  # type: ignore[no-any-return]


def box_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and sizes of what this rank holds of a sharded tensor."""
    (chunk,) = tensor.__create_chunk_list__()
    return tuple(chunk.offsets), tuple(chunk.sizes)


def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that share all of their memory in the same form."""
    local = local_of(tensor)
    if local.layout is not torch.strided:
        return (id(tensor),)  # a sparse one has several memories
    return (local.data_ptr(), tensor.shape, local.stride(), tensor.dtype, tensor.device)


class Names:
    """Names for places: keys with dots between them, as torch.distributed.checkpoint has them. None is given twice."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def name(self, path: Path) -> str:
        plain = ".".join(map(str, path))
        names = itertools.chain([plain], (f"{plain}#{number}" for number in itertools.count(2)))
        name = next(name for name in names if name not in self._given)
        self._given.add(name)
        return name


def divide(state: Any, share: tuple[int, int], takes: Callable[[torch.Tensor], bool] | None = None) -> Divided:
    """Takes a state apart.

    share: which of how many ranks this one is, for replicated tensors; the same state on all of them. takes: which
    replicated tensors are taken out (default: those of SMALL bytes and more).
    """
    takes = takes or (lambda tensor: tensor.numel() * tensor.element_size() >= SMALL)
    replicated: dict[tuple[Any, ...], int] = {}
    for _, tensor in tensors(state):
        if not is_sharded(tensor) and tensor.layout is torch.strided and tensor.numel() and takes(tensor):
            replicated[identity(tensor)] = tensor.numel() * tensor.element_size()
    total, before = sum(replicated.values()), 0
    low, high = share[0] * total / share[1], (share[0] + 1) * total / share[1]
    divided, names, known = Divided(None), Names(), dict[tuple[Any, ...], str]()

    def take(path: Path, tensor: torch.Tensor) -> torch.Tensor:
        nonlocal before
        sharded, same = is_sharded(tensor), identity(tensor)
        if not sharded and same not in replicated:
            return tensor
        name = names.name(path)
        if tensor.numel() and same in known and (not sharded or local_of(tensor).numel()):
            divided.aliases[name] = known[same]
        elif sharded:
            divided.pieces += _own_part(name, tensor)
        else:
            divided.pieces += _rows(name, tensor, low - before, high - before)
            before += replicated[same]
        known.setdefault(same, name)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    divided.skeleton = rebuild(state, take)
    return divided


def _own_part(name: str, tensor: Any) -> list[Piece]:
    """What this rank writes of a sharded tensor: its part, unless another rank that holds the same one writes it."""
    place = tensor.device_mesh.get_coordinate()
    if place is None or any(
        number and placed.is_replicate() for number, placed in zip(place, tensor.placements, strict=True)
    ):
        return []
    offsets, sizes = box_of(tensor)
    return [Piece(name, tuple(tensor.shape), offsets, local_of(tensor))] if math.prod(sizes) else []


def _rows(name: str, tensor: torch.Tensor, low: float, high: float) -> list[Piece]:
    """The rows of a tensor from byte `low` to byte `high`, counted from its beginning, rounded to whole rows."""
    shape, size = tuple(tensor.shape), tensor.numel() * tensor.element_size()
    rows = shape[0] if shape else 1
    first, last = (round(min(max(place / size, 0.0), 1.0) * rows) for place in (low, high))
    if first == last:
        return []
    data = tensor.detach()
    offsets = (first, *(0 for _ in shape[1:])) if shape else ()
    return [Piece(name, shape, offsets, data[first:last] if shape else data, replicated=True)]
