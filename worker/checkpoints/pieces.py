"""States taken apart: a skeleton, which one rank writes, and pieces of tensors, of which each rank writes its own.

A tensor that has been taken out leaves a tensor on the device `meta` in the skeleton: its shape and type without its
values. A sharded tensor (DTensor) is taken out with the part that this rank holds. Of replicated tensors, each of the
ranks that share the work takes rows, in all about as many bytes as the others.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import NotResumable

Path = tuple[Any, ...]
"""Keys and numbers that lead to a place in a state."""

_holds_others: Callable[[object], bool] = is_traceable_wrapper_subclass

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
    and tuples. Raises NotResumable where one of them holds itself."""
    try:
        return _rebuilt(value, change, path, other)
    except RecursionError:
        if (ring := _ring(value)) is None:
            raise
        place, kind = ring
        raise NotResumable(
            f"{'.'.join(map(str, (*path, *place)))} is the {kind.__name__} that it lies in, which has no end to save: "
            "keep a copy that does not hold itself"
        ) from None


def _rebuilt(value: Any, change: Callable[[Path, torch.Tensor], Any], path: Path, other: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(path, value)
    if isinstance(value, Mapping):
        made = {other(key): _rebuilt(held, change, (*path, key), other) for key, held in value.items()}
        return _like(value, made, lambda held: _rebuilt(held, change, path, other))
    if type(value) in (list, tuple):
        return type(value)(_rebuilt(held, change, (*path, number), other) for number, held in enumerate(value))
    return other(value)


def _ring(value: Any) -> tuple[Path, type] | None:
    """A place of the value at which there is what it lies in, and its type; None: there is no such place."""
    left: list[tuple[Path, Any, frozenset[int]]] = [((), value, frozenset())]
    while left:
        path, held, around = left.pop()
        if id(held) in around:
            return path, type(held)
        if isinstance(held, Mapping):
            left += [((*path, key), inner, around | {id(held)}) for key, inner in held.items()]
        elif type(held) in (list, tuple):
            left += [((*path, number), inner, around | {id(held)}) for number, inner in enumerate(held)]
    return None


def _like(value: Mapping[Any, Any], made: dict[Any, Any], again: Callable[[Any], Any]) -> Any:
    """`made` as the mapping that `value` is, where torch loads such a one. The state of a module says in an attribute
    in which version each part of it was written."""
    if isinstance(value, Counter):
        return Counter(made)
    if not isinstance(value, OrderedDict):
        return made
    ordered = OrderedDict(made)
    if (versions := getattr(value, "_metadata", None)) is not None:
        ordered._metadata = again(versions)  # type: ignore[attr-defined]
    return ordered


def tensors(value: Any) -> Iterator[tuple[Path, torch.Tensor]]:
    """Every tensor of a state, with its place, in the order of the state."""
    found: list[tuple[Path, torch.Tensor]] = []
    rebuild(value, lambda path, tensor: found.append((path, tensor)))
    return iter(found)


def savable(state: Any) -> list[tuple[Path, torch.Tensor]]:
    """As `tensors`. Raises NotResumable where there is one that no start could load."""
    held = list(tensors(state))
    for path, tensor in held:
        name = f"tensor {'.'.join(map(str, path))}"
        if tensor.is_meta:
            raise NotResumable(
                f"{name} is on the device meta and has no values to save: give it values, or keep it out of the state"
            )
        if tensor.is_nested and tensor.layout is torch.strided:
            raise NotResumable(
                f"{name} is a nested tensor of the layout strided, which no start could load: make it with "
                "layout=torch.jagged, or keep the list of its tensors, as unbind() gives it"
            )
    return held


def kinds(value: Any) -> set[type]:
    """The types of all in a state that torch may not be able to load: keys included, and what sets and tuples among
    them hold; of tensors those without memory. Unloadable: of a plain one that torch cannot load."""
    found: set[type] = set()

    def add(held: Any) -> None:
        if type(held) in (set, frozenset, tuple):
            for each in held:
                add(each)
        found.add(Unloadable if _is_unloadable(held) else type(held))

    rebuild(value, lambda path, tensor: None if has_memory(tensor) else found.add(type(tensor)), other=add)
    return found


class Unloadable:
    """Stands for values that torch writes and does not load, though it loads others of their type."""


MOST_BITS = 8 * 255
"""Of a whole number that torch.load reads: pickle has another form for what takes more than 255 bytes (LONG4)."""


def _is_unloadable(held: Any) -> bool:
    """Pickle's protocol 2, which torch.save writes, calls a function for empty bytes."""
    return (type(held) is int and held.bit_length() >= MOST_BITS) or (type(held) is bytes and not held)


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its numbers, at the strides it says, in memory of its own: not so sparse, quantized and
    nested ones, and those of classes that hold other tensors. A DTensor is what its part is."""
    local = local_of(tensor)
    if local.layout is not torch.strided or local.is_quantized or local.is_nested:
        return False
    if type(local) in (torch.Tensor, torch.nn.Parameter):
        return True
    return not _holds_others(local) and (local.numel() == 0 or local.data_ptr() != 0)


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
    if not has_memory(tensor):
        return (id(tensor),)
    local = local_of(tensor)
    form = (local.stride(), tensor.dtype, local.is_conj(), local.is_neg())
    return (local.data_ptr(), tensor.shape, *form, tensor.device)


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
        if not is_sharded(tensor) and has_memory(tensor) and tensor.numel() and takes(tensor):
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
        if sharded:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        return torch.empty_like(tensor, device="meta")

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
