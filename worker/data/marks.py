"""Words of generators' states in memory: read, to see whether a generator has been drawn from without drawing from it;
and written, to key one for less than its own seed takes.

To put a Mersenne Twister into a known state costs 1 to 4 us, to draw from it changes it, and to ask for its state
copies all of it; to look at a few words costs 0.1 us. numpy says where they are (`BitGenerator.ctypes`). Python's and
torch's are looked for where these libraries have them, and used only if what is found there in generators of known
states is what their `getstate()` or `get_state()` says; if not, these are asked, and `setstate()` or `set_state()` sets
the same states.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable
from typing import Any

import torch

Mark = Callable[[], Any]
"""Gives a value that is another one after a draw, or after another seed."""

_WORDS = 624
"""Words of 32 bits in the state of a Mersenne Twister (MT19937). Draws read them one after the other; when all are
read, all change."""
_HALF = _WORDS // 2


def mark_of_python(generator: random.Random) -> Mark:
    """The mark of a generator of the module `random`; of two seeds that nobody has drawn from, only where `key_python`
    has set one."""
    where = _where_python_has_it()
    if where is None:
        return generator.getstate
    # The words read, and the first word.
    seen = ctypes.c_uint64.from_address(id(generator) + where)
    return lambda: seen.value


def _where_python_has_it() -> int | None:
    """How far behind the beginning of a generator of the module `random` its state begins, or None: the number of words
    read, and the words."""
    where, probe = object.__basicsize__, random.Random(5489)
    for _ in range(3):
        state = probe.getstate()[1]
        if _read(probe, where) != (state[_WORDS], state[0], state[_WORDS - 1]):
            return None
        probe.random()
    return where


def _read(generator: random.Random, where: int) -> tuple[int, int, int]:
    if type(generator).__basicsize__ < where + 4 * (_WORDS + 1):
        return -1, -1, -1
    address = id(generator) + where
    places = (address, address + 4, address + 4 * _WORDS)
    count, first, last = (ctypes.c_uint32.from_address(place).value for place in places)
    return count, first, last


def mark_of_torch(generator: torch.Generator) -> Mark:
    """The mark of a generator of torch's for the CPU."""
    where = _where_torch_has_it()
    if where is None:

        def copied() -> bytes:
            state = generator.get_state()
            return ctypes.string_at(state.data_ptr(), len(state))

        return copied
    # The first word is of the seed, and changes when all are read; behind a draw, `next_` is never 0.
    seen = ctypes.c_uint64.from_address(generator._cdata + where + _NEXT)  # type: ignore[attr-defined]
    return lambda: seen.value


_TORCH = struct.Struct("=i?xxxI")
"""Of at::mt19937_data_pod, what is between the seed and the words: left_, seeded_, next_."""
_NEXT = _TORCH.size - 4
_SEED = 0x2545F4914F6CDD1D


def _where_torch_has_it() -> int | None:
    """How far behind the beginning of at::CPUGeneratorImpl the words begin, or None."""
    probe = torch.Generator().manual_seed(_SEED)
    address = getattr(probe, "_cdata", None)
    if not isinstance(address, int):
        return None
    # The object is ten times as long.
    found = ctypes.string_at(address, 256).find(_SEED.to_bytes(8, "little"))
    if found < 0:
        return None
    for draws in (0, 1, 623, 700):
        torch.rand(draws, generator=probe)
        left, seeded, following = _TORCH.unpack(ctypes.string_at(address + found + 8, _TORCH.size))
        words = _words_at(address + found + 8 + _TORCH.size)
        # In get_state(): the seed, left and seeded as int32, next and the words as int64.
        state = probe.get_state()
        halves, wholes = state[:16].view(torch.int32).tolist(), state[16 : 16 + 8 * (_WORDS + 1)].view(torch.int64)
        if [left, int(seeded), following, *words] != [*halves[2:], *wholes.tolist()]:
            return None
    return found + 8


def _generator_of(library: Any) -> Any:
    current = getattr(library, "get_bit_generator", None)
    # Before numpy 1.24 nobody could replace it.
    return current() if current is not None else library.mtrand._rand._bit_generator


def mark_of_numpy(library: Any) -> Mark:
    """The mark of numpy's global generator; `library` is `numpy.random`."""
    generator, current = _generator_of(library), getattr(library, "get_bit_generator", None)
    if type(generator).__name__ != "MT19937":
        return lambda: repr(library.get_state(legacy=False))
    # {uint32_t key[624]; int pos;}
    words = ctypes.c_uint64.from_address(generator.ctypes.state_address + 4 * (_WORDS - 1))
    if current is None:
        return lambda: words.value
    return lambda: (words.value, current() is generator)


def _words_at(address: int) -> list[int]:
    return list(struct.unpack(f"={_WORDS}I", ctypes.string_at(address, 4 * _WORDS)))


def copier(library: Any) -> Callable[[int], bool] | None:
    """A function that seeds numpy's global generator, undrawn since it was seeded before, as `library.seed(seed)` does,
    and gives whether it has: only where torch's global generator has just been seeded with the same 32 bits, whose
    words are the same ones and are copied, at a fifth of the price. None where the words are not found in memory.

    Both libraries fill the words from 32 bits with Knuth's multiplier 1812433253 (`init_genrand` of MT19937, Matsumoto
    and Nishimura 2002); behind numpy's seed its place is that of a generator whose words are all read, as before it.
    """
    where, generator = _where_torch_has_it(), _generator_of(library)
    if where is None or type(generator).__name__ != "MT19937":
        return None
    seen, source = _seeded(where)
    target = _bytes_at(generator.ctypes.state_address, 4 * _WORDS)

    def copy(seed: int) -> bool:
        # next_, which is 0 until somebody draws, and the first word, which is the seed.
        if seen.value != seed << 32:
            return False
        target[:] = source
        return True

    return copy


def key_python(generator: random.Random) -> Callable[[int], None]:
    """A function that puts a generator of the module `random` into the state that has, of the words of torch's
    generator after a seed of the same 32 bits, the second half first. Turned by half they are related to other words of
    each other when all of them change, so that the two libraries' draws have nothing to do with each other.

    They are copied where torch's global generator has just been seeded so: `random.seed` takes 30 times as long.
    """
    where, place = _where_torch_has_it(), _where_python_has_it()

    def set_by_asking(seed: int) -> None:
        words = words_of(seed)
        generator.setstate((3, (*words[_HALF:], *words[:_HALF], _WORDS), None))

    if where is None or place is None:
        return set_by_asking
    half = 4 * _HALF
    seen, words = _seeded(where)
    first, second = words[:half], words[half:]
    state = _bytes_at(id(generator) + place, 4 * (_WORDS + 1))
    read, low, high = state[:4].cast("I"), state[4 : 4 + half], state[4 + half :]

    def copy(seed: int) -> None:
        if seen.value != seed << 32:
            set_by_asking(seed)
            return
        low[:] = second
        high[:] = first
        read[0] = _WORDS
        generator.gauss_next = None  # type: ignore[attr-defined]

    return copy


def words_of(seed: int) -> list[int]:
    """The words that torch and numpy fill a state with, from 32 bits (`init_genrand`)."""
    words = [seed]
    for number in range(1, _WORDS):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + number) & 0xFFFFFFFF)
    return words


def _seeded(where: int) -> tuple[ctypes.c_uint64, memoryview]:
    """Of torch's global generator: next_ with the first word, which is the seed until all words change; all words."""
    address = torch.default_generator._cdata + where  # type: ignore[attr-defined]
    return ctypes.c_uint64.from_address(address + _NEXT), _bytes_at(address + _TORCH.size, 4 * _WORDS)


def _bytes_at(address: int, length: int) -> memoryview:
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")
