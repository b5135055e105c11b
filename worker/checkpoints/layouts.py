"""States put together again: each tensor as the rank that loads it holds it, whatever the number of ranks was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .pieces import Names, box_of, is_sharded, rebuild, tensors
from .pieces import Path as Place
from .tensor_files import Index, read_box


def fill(skeleton: dict[str, Any], folder: Path, index: Index, things: Mapping[str, Any]) -> dict[str, Any]:
    """The state whose skeleton this is.

    things: those whose state it becomes, by name. A tensor that is sharded there is read as it is sharded there, any
    other one as a whole.
    """
    names, layout = Names(), Layouts(things)
    made: dict[str, torch.Tensor] = {}

    def put(place: Place, tensor: torch.Tensor) -> torch.Tensor:
        like = layout.of(place, tensor.shape)
        if not tensor.is_meta:
            return tensor if like is None else _sharded(like, lambda at, size: tensor[_slices(at, size)])
        name = names.name(place)
        first = index.aliases.get(name, name)
        if first not in made:

            def read(at: tuple[int, ...], size: tuple[int, ...]) -> torch.Tensor:
                return read_box(folder, index, first, at, torch.empty(size, dtype=tensor.dtype, device="cpu"))

            if like is None:
                here = torch.empty_like(tensor, device="cpu")
                made[first] = read_box(folder, index, first, (0,) * tensor.dim(), here)
            else:
                made[first] = _sharded(like, read)
        return made[first]

    return rebuild(skeleton, put)  # type: ignore[no-any-return]


def wanted(skeleton: dict[str, Any], index: Index, things: Mapping[str, Any]) -> set[str]:
    """The files that `fill` reads on this rank."""
    names, layout, files = Names(), Layouts(things), set[str]()
    for place, tensor in tensors(skeleton):
        if not tensor.is_meta:
            continue
        like, name = layout.of(place, tensor.shape), names.name(place)
        if like is None:
            box = ((0,) * tensor.dim(), tuple(tensor.shape))
        elif like.to_local().numel():
            box = box_of(like)
        else:
            continue
        files |= index.files_with(index.aliases.get(name, name), *box)
    return files


Read = Callable[[tuple[int, ...], tuple[int, ...]], torch.Tensor]
"""Gives a box of a tensor by offsets and sizes."""


def _sharded(like: Any, read: Read) -> torch.Tensor:
    """A sharded tensor with the layout of `like`, which has the same shape."""
    local = like.to_local()
    read_here = read(*box_of(like)) if local.numel() else local.detach().cpu().clone()
    here = read_here.to(local.device)
    stride = torch.empty(like.shape, device="meta").stride()
    return type(like).from_local(  # type: ignore[no-any-return]
        here, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=stride
    )


def _slices(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(first, first + count) for first, count in zip(offsets, sizes, strict=True))


class Layouts:
    """How the tensors of a state are sharded now.

    A new optimizer has no state to look at: what has the shape of a parameter is sharded as that parameter is.
    """

    def __init__(self, things: Mapping[str, Any]) -> None:
        self._at: dict[Place, Any] = {}
        self._by_key: dict[Any, Any] = {}
        self._parameters: dict[str, list[Any]] = {}
        for name, thing in things.items():
            for place, tensor in tensors({name: thing.state_dict()}):
                if is_sharded(tensor):
                    self._at[place] = self._by_key[place[-1]] = tensor
            if groups := getattr(thing, "param_groups", None):
                self._parameters[name] = [parameter for group in groups for parameter in group["params"]]

    def of(self, place: Place, shape: torch.Size) -> Any:
        """A sharded tensor of this layout; None for a tensor that every rank holds."""
        candidates = [self._at.get(place)]
        if len(place) > 2 and place[1] == "state" and isinstance(place[2], int):
            candidates += self._parameters.get(place[0], [])[place[2] : place[2] + 1]
        candidates += [self._by_key.get(key) for key in place[1:-1]]
        sharded = (like for like in candidates if like is not None and is_sharded(like))
        return next((like for like in sharded if like.shape == shape), None)
