"""Random numbers that follow from a place in the run and from nothing before it.

A generator is *keyed*: seeded from a key just before it is used, so that no state of it need be kept. Global
generators are those of `LIBRARIES`.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..keys import mix
from .marks import Mark, key_python, key_together, mark_of_numpy, mark_of_python, mark_of_torch

_PARKED = 0x5EED
"""The seed of generators that nobody is known to use."""
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "elastic_agent"}) - {"__main__"}
"""Whose classes and functions are known to use no generators by a name but the global ones."""
_CALLS_DEEP = 3
_LOOKED_INTO = 64
"""Lists and dicts of more are data, not transforms."""


class Library:
    """One library's global generator in this process. Where it cannot have been used, because nobody has imported the
    library or has a device of it, nothing is keyed or parked, and nothing has been drawn.

    These are called at every batch, some at every sample: what they look up, they look up once.
    """

    name: str
    mark: Mark
    """Another value than `known` once somebody has drawn since `park`, or since `key` where that sets `known`. Compared
    by who asks, twice a batch."""
    known: Any = None

    def seed(self, key: int) -> None:
        """Seeds the generator from a key of 64 bits."""
        raise NotImplementedError

    def key(self, key: int) -> None:
        """The same, and its draws show from here on."""
        self.seed(key)
        self.known = self.mark()

    def park(self) -> None:
        """Puts the generator into a state whose mark is `known`."""
        self.key(_PARKED)


class Torch(Library):
    """torch's generator for the CPU."""

    name = "torch"

    def __init__(self) -> None:
        self.seed = torch.default_generator.manual_seed  # type: ignore[method-assign, assignment]
        self.mark = mark_of_torch(torch.default_generator)


class Python(Library):
    """The module `random`. A sample's key is its seed; the training process is keyed at every step, and by 32 bits, as
    the seed takes longer than all else that a step needs."""

    name = "random"

    def __init__(self) -> None:
        # Of the class that random.Random is derived from: what it adds costs a tenth more.
        self.generator: random.Random = random.random.__self__  # type: ignore[attr-defined]
        self._seed = super(random.Random, self.generator).seed  # type: ignore[misc]
        self.mark = mark_of_python(self.generator)

    def seed(self, key: int) -> None:
        self._seed(key)
        self.generator.gauss_next = None  # type: ignore[attr-defined]

    def key(self, key: int) -> None:
        """By itself it takes 100 us; `key_everything` copies torch's words."""
        key_python(self.generator, key)
        self.known = self.mark()

    def park(self) -> None:
        self.seed(_PARKED)
        self.known = self.mark()


class Numpy(Library):
    """numpy's legacy generator, of which it takes 32 bits as a seed."""

    name = "numpy"

    def __init__(self) -> None:
        self._random: Any = None
        self.mark = self._first_mark

    def _imported(self) -> Any:
        # hasattr: while numpy is being imported, it has none yet.
        numpy = sys.modules.get("numpy")
        if numpy is not None and hasattr(numpy, "random"):
            self._random, self.mark = numpy.random, mark_of_numpy(numpy.random)
        return self._random

    def seed(self, key: int) -> None:
        if (library := self._random or self._imported()) is None:
            return
        try:
            library.seed(key & 0xFFFFFFFF)
        except TypeError:  # somebody has put another kind of generator in its place
            key_generator(library.get_bit_generator(), key)

    def _first_mark(self) -> Any:
        """None, as `known` is, until numpy is imported."""
        return None if self._imported() is None else self.mark()


class Cuda(Library):
    """The generators of all CUDA devices, where CUDA is in use in this process."""

    name = "cuda"

    def __init__(self) -> None:
        self.mark = self._states

    def seed(self, key: int) -> None:
        if torch.cuda.is_initialized():
            # torch.manual_seed formats a stack for devices that are not initialised.
            torch.cuda.manual_seed_all(key)

    key = seed  # its mark costs as much: only `park` looks

    def park(self) -> None:
        super().key(_PARKED)

    def _states(self) -> bytes | None:
        """Seed and offset, which the host keeps: to draw a number would wait for the device."""
        if not torch.cuda.is_initialized():
            return None
        return b"".join(bytes(generator.get_state().tolist()) for generator in torch.cuda.default_generators)


_WITH_CUDA = torch.version.cuda is not None or torch.version.hip is not None

_TORCH, _PYTHON, _NUMPY = Torch(), Python(), Numpy()
FURTHER: list[Library] = [Cuda()] if _WITH_CUDA else []
"""Those that are keyed one by one; a further library is a further entry."""
LIBRARIES: tuple[Library, ...] = (_TORCH, _PYTHON, _NUMPY, *FURTHER)
"""All that is keyed and looked at."""


def _key_one_by_one(key: int) -> None:
    for library in (_TORCH, _PYTHON, _NUMPY, *FURTHER):
        library.key(key)


_FOUND = getattr(sys.modules.get("numpy"), "random", None)
_TOGETHER = key_together(_TORCH, _PYTHON.generator, _PYTHON, _FOUND, _NUMPY, FURTHER)
key_everything = _key_one_by_one if _TOGETHER is None else _TOGETHER.key
"""Keys the global generators of this process."""


class Draws:
    """Finds out which of the libraries a dataset draws from, and keys them.

    Exact without knowing beforehand: the generators are parked in a state in which a draw shows; a library that has
    drawn by the end of a batch is in use, and the batch is computed again with that library keyed for every sample, as
    are all later ones. A dataset that draws nothing pays for looking only.
    """

    def __init__(self, always: bool, held: Sequence[Any], on_sample: Callable[[int], None] | None) -> None:
        """always: key all from the first sample on, without looking. held: the generators that the dataset holds.
        on_sample: called with each sample's key, for libraries with a state of their own."""
        self._in_use: tuple[Library, ...] = LIBRARIES if always else ()
        self._others: tuple[Library, ...] = () if always else LIBRARIES
        self.held, self._on_sample = held, on_sample
        alone = _TOGETHER is not None and self._others == (_TORCH, _PYTHON, _NUMPY)
        self.undrawn: Callable[[], bool] = _TOGETHER.undrawn if _TOGETHER and alone else self._each_undrawn
        """Whether nobody has drawn, since they were keyed or parked, from any library that is not in use."""
        self.keyed = always or bool(held) or on_sample is not None
        """Whether anything is keyed for each sample."""

    @property
    def key_sample(self) -> Callable[[int], None]:
        """What is to be called with a sample's key before `dataset[i]`: for a single library its own method, as this is
        the price of every sample."""
        alone = len(self._in_use) == 1 and not self.held and self._on_sample is None
        return self._in_use[0].seed if alone else self._key_all

    def _key_all(self, key: int) -> None:
        for library in self._in_use:
            library.seed(key)
        if self.held:
            for number, generator in enumerate(self.held):
                key_generator(generator, mix(key, number))
        if self._on_sample is not None:
            self._on_sample(key)

    def park(self) -> None:
        """Before a batch: a draw from a library that is not in use would show."""
        for library in self._others:
            if library.mark() != library.known:
                library.park()

    def _each_undrawn(self) -> bool:
        for library in self._others:  # noqa: SIM110 - at every batch: a generator costs as much as a mark
            if library.mark() != library.known:
                return False
        return True

    def found_more(self) -> bool:
        """After a batch: whether a library that was parked has drawn. It counts as in use from now on. One that the
        batch itself has imported is in use as well: nobody has parked it."""
        if self.undrawn():
            return False
        found = tuple(library for library in self._others if library.mark() != library.known)
        self._in_use += found
        self._others = tuple(library for library in self._others if library not in found)
        self.keyed, self.undrawn = True, self._each_undrawn
        return True


def key_generator(generator: Any, key: int) -> None:
    """Keys one generator: a torch.Generator, random.Random, numpy Generator or RandomState."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(key)
    elif isinstance(generator, random.Random):
        generator.seed(key)
    elif hasattr(generator, "bit_generator"):
        key_generator(generator.bit_generator, key)
    elif hasattr(generator, "state"):  # a numpy BitGenerator
        generator.state = type(generator)(key).state
    else:
        generator.seed(key & 0xFFFFFFFF)


def is_generator(thing: Any) -> bool:
    if isinstance(thing, torch.Generator) or (
        isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom)
    ):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(thing, (numpy.random.Generator, numpy.random.RandomState))


def generators_in(thing: Any, depth: int = 4) -> list[Any]:
    """The generators that a dataset holds as attributes, its own and those of what it holds: a wrapped dataset, a
    transform, a list or dict of them, what a partial, a bound method or a closure holds; and those that its functions
    use by a name of their module; `depth` objects deep, in the order of definition."""
    found: list[Any] = []
    seen: set[int] = set()

    def walk(here: Any, levels: int) -> None:
        if id(here) in seen:
            return
        seen.add(id(here))
        if is_generator(here):
            found.append(here)
        elif levels > 0:
            through = isinstance(here, (list, tuple, dict, functools.partial, types.MethodType))
            for inner in _held_by(here):
                walk(inner, levels if through else levels - 1)

    walk(thing, depth)
    return found


def _held_by(thing: Any) -> list[Any]:
    if isinstance(thing, (list, tuple)):
        return list(thing) if len(thing) <= _LOOKED_INTO else []
    if isinstance(thing, dict):
        return list(thing.values()) if len(thing) <= _LOOKED_INTO else []
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, types.FunctionType):
        return _held_by_function(thing)
    # What a loader puts into an iterable dataset holds the global generators, which are no dataset's own.
    if isinstance(thing, (str, bytes, int, float, torch.Tensor, type, Draws, Library)):
        return []
    if callable(getattr(thing, "__array__", None)):
        return []
    kind: Any = type(thing)
    return [*getattr(thing, "__dict__", {}).values(), *_used_by(_methods_of(kind))]


def _held_by_function(function: types.FunctionType) -> list[Any]:
    """What a function closes over, its defaults, and the generators among the module's names that it uses."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [*cells, *defaults, *_used_by([function])]


@functools.cache
def _methods_of(kind: type) -> list[types.FunctionType]:
    """The methods that a class of a script's has, those of its bases included."""
    held = [each for base in kind.__mro__ if _is_theirs(base) for each in vars(base).values()]
    return [each for each in held if isinstance(each, types.FunctionType)]


def _is_theirs(thing: Any) -> bool:
    """Whether a class or function is a script's."""
    return str(thing.__module__).partition(".")[0] not in _LIBRARIES


def _used_by(functions: list[types.FunctionType]) -> list[Any]:
    """Generators among the names of their modules that functions use, and those that these call by such a name."""
    found, seen = list[Any](), set[types.CodeType]()
    waiting = [(each.__code__, each.__globals__, _CALLS_DEEP) for each in functions]
    while waiting:
        code, names, depth = waiting.pop()
        seen.add(code)
        waiting += [(each, names, depth) for each in code.co_consts if isinstance(each, types.CodeType)]
        for used in (names[name] for name in code.co_names if name in names):
            if is_generator(used) and used is not torch.default_generator and used not in found:
                found.append(used)
            elif depth and isinstance(used, types.FunctionType) and _is_theirs(used) and used.__code__ not in seen:
                waiting.append((used.__code__, used.__globals__, depth - 1))
    return found
