"""Random numbers that follow from a place in the run and from nothing before it.

A generator is *keyed*: seeded from a key just before it is used, so that no state of it need be kept. Three libraries
have global generators: torch, Python's `random` and numpy (only where somebody has imported it).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..keys import mix

LIBRARIES = ("torch", "random", "numpy")
_PARKED = 0x5EED
"""The seed of generators that nobody is known to use."""


def key_everything(key: int) -> None:
    """Keys the global generators of this process: torch's for the CPU and for CUDA if it is in use, `random`, numpy."""
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():
        # Each device's generator; torch.manual_seed formats a stack for devices that are not initialised.
        torch.cuda.manual_seed_all(key)
    random.seed(key)
    if (numpy := sys.modules.get("numpy")) is not None and hasattr(numpy, "random"):
        numpy.random.seed(key & 0xFFFFFFFF)


class Draws:
    """Finds out which of the three libraries a dataset draws from, and keys them.

    Exact without knowing beforehand: the generators are parked in a known state; a library that has drawn by the end
    of a batch is in use, and the batch is computed again with that library keyed for every sample, as are all later
    ones. A dataset that draws nothing pays for looking only.
    """

    def __init__(self, always: bool, own: Callable[[], Iterator[Any]], on_sample: Callable[[int], None] | None) -> None:
        """always: key all three from the first sample on, without looking. own: the generators that the dataset holds.
        on_sample: called with each sample's key, for libraries with a state of their own."""
        self.in_use: set[str] = set(LIBRARIES) if always else set()
        self._own = own
        self._on_sample = on_sample

    @property
    def keyed(self) -> bool:
        """Whether anything is keyed for each sample."""
        return bool(self.in_use) or self._on_sample is not None

    def key_sample(self, key: int) -> None:
        """Before `dataset[i]`."""
        if "torch" in self.in_use:
            torch.default_generator.manual_seed(key)
        if "random" in self.in_use:
            random.seed(key)
        if "numpy" in self.in_use and (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(key & 0xFFFFFFFF)
        for number, generator in enumerate(self._own()):
            key_generator(generator, mix(key, number))
        if self._on_sample is not None:
            self._on_sample(key)

    def park(self) -> None:
        """Before a batch: the libraries that are not in use get their known state."""
        if "torch" not in self.in_use:
            torch.default_generator.manual_seed(_PARKED)
        if "random" not in self.in_use:
            random.setstate(_parked_random())
        if "numpy" not in self.in_use and (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(_PARKED)

    def found_more(self) -> bool:
        """After a batch: whether a library that was parked has drawn. It counts as in use from now on."""
        found = set()
        if "torch" not in self.in_use and float(torch.rand((), dtype=torch.float32, device="cpu")) != _first_of_torch():
            found.add("torch")
        if "random" not in self.in_use and random.random() != _first_of_random():
            found.add("random")
        numpy = sys.modules.get("numpy")
        # A numpy imported by the batch itself is in use as well: its state is not the parked one.
        if "numpy" not in self.in_use and numpy is not None and numpy.random.random_sample() != _first_of_numpy(numpy):
            found.add("numpy")
        self.in_use |= found
        return bool(found)


def key_generator(generator: Any, key: int) -> None:
    """Keys one generator: a torch.Generator, random.Random, numpy Generator or RandomState."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(key)
    elif isinstance(generator, random.Random):
        generator.seed(key)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = type(generator.bit_generator)(key).state
    else:
        generator.seed(key & 0xFFFFFFFF)


def is_generator(thing: Any) -> bool:
    if isinstance(thing, torch.Generator) or (
        isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom)
    ):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(thing, (numpy.random.Generator, numpy.random.RandomState))


def generators_in(thing: Any, depth: int = 3) -> list[Any]:
    """The generators that a dataset holds as attributes, its own and those of what it holds (a wrapped dataset, a
    transform, a list of them), `depth` levels down, in the order of definition."""
    found: list[Any] = []
    seen: set[int] = set()

    def walk(here: Any, levels: int) -> None:
        if id(here) in seen:
            return
        seen.add(id(here))
        if is_generator(here):
            found.append(here)
        elif levels > 0:
            for inner in _held_by(here):
                walk(inner, levels - 1)

    walk(thing, depth)
    return found


def _held_by(thing: Any) -> list[Any]:
    if isinstance(thing, (list, tuple)):
        return list(thing) if len(thing) <= 64 else []
    if isinstance(thing, (str, bytes, int, float, torch.Tensor, type)) or callable(getattr(thing, "__array__", None)):
        return []
    return list(getattr(thing, "__dict__", {}).values())


_KNOWN: dict[str, Any] = {}


def _parked_random() -> Any:
    if "state" not in _KNOWN:
        _KNOWN["state"] = random.Random(_PARKED).getstate()
    return _KNOWN["state"]


def _first_of_random() -> float:
    if "random" not in _KNOWN:
        _KNOWN["random"] = random.Random(_PARKED).random()
    return float(_KNOWN["random"])


def _first_of_torch() -> float:
    if "torch" not in _KNOWN:
        _KNOWN["torch"] = float(
            torch.rand((), dtype=torch.float32, device="cpu", generator=torch.Generator().manual_seed(_PARKED))
        )
    return float(_KNOWN["torch"])


def _first_of_numpy(numpy: Any) -> float:
    if "numpy" not in _KNOWN:
        _KNOWN["numpy"] = numpy.random.RandomState(_PARKED).random_sample()
    return float(_KNOWN["numpy"])
