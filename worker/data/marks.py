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
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

Mark = Callable[[], Any]
"""Gives a value that is another one after a draw, or after another seed."""

_WORDS = 624
"""Words of 32 bits in the state of a Mersenne Twister (MT19937). Draws read them one after the other; when all are
read, all change."""
_HALF = _WORDS // 2
_POINTER = ctypes.sizeof(ctypes.c_void_p)


def mark_of_python(generator: random.Random) -> Mark:
    """The mark of a generator of the module `random`; of two seeds that nobody has drawn from, only where `key_python`
    has set one."""
    where = _where_python_has_it()
    if where is None:
        return generator.getstate
    # The words read, and the first word.
    return _bytes_at(id(generator) + where, 8).tobytes


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
    return _bytes_at(generator._cdata + where + _NEXT, 8).tobytes  # type: ignore[attr-defined]


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
        torch.rand(draws, generator=probe, device="cpu")
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


def _twister_of(library: Any) -> Any:
    """numpy's global generator where it is a Mersenne Twister, else None; `library` may be None."""
    generator = None if library is None else _generator_of(library)
    return generator if type(generator).__name__ == "MT19937" else None


def mark_of_numpy(library: Any) -> Mark:
    """The mark of numpy's global generator; `library` is `numpy.random`."""
    if (generator := _twister_of(library)) is None:
        return lambda: repr(library.get_bit_generator().state)
    words, place = _numpys_words(generator.ctypes.state_address), _numpys_place(library)
    held = place()
    # Of a generator in its place nothing is known, and `object()` equals nothing. The words are where they are as long
    # as their generator lives, so it is kept.
    return lambda: words() if place() == held else (generator, object())


def _numpys_place(library: Any) -> Mark:
    """Gives another value once another generator stands in the place of numpy's global one: the address that the
    RandomState behind the functions of `numpy.random` holds, as to ask numpy costs a training whose caches are full of
    other things 3 us."""
    holder = library.mtrand._rand
    held = id(_generator_of(library)).to_bytes(_POINTER, sys.byteorder)
    memory = ctypes.string_at(id(holder), type(holder).__basicsize__)
    where = [at for at in range(0, len(memory), _POINTER) if memory[at : at + _POINTER] == held]
    if len(where) != 1:
        return lambda: id(_generator_of(library))
    return _bytes_at(id(holder) + where[0], _POINTER).tobytes


def _numpys_words(state: int) -> Mark:
    """The last word and the number of words read, of {uint32_t key[624]; int pos;} at this address."""
    return _bytes_at(state + 4 * (_WORDS - 1), 8).tobytes


def _words_at(address: int) -> list[int]:
    return list(struct.unpack(f"={_WORDS}I", ctypes.string_at(address, 4 * _WORDS)))


class Keyed(Protocol):
    """A library's generator."""

    mark: Mark
    known: Any
    """Its mark behind the last key."""

    def seed(self, key: int) -> None:
        """Seeds it from a key."""

    def key(self, key: int) -> None:
        """The same, and sets `known`."""


class Together(NamedTuple):
    """Of the global generators of torch, Python and numpy."""

    key: Callable[[int], None]
    undrawn: Callable[[], bool]
    """Whether nobody has drawn from any of these three since it was keyed, or parked."""


def key_together(
    torchs: Keyed,
    generator: random.Random,
    pythons: Keyed,
    library: Any,
    numpys: Keyed,
    further: Sequence[Keyed] = (),
) -> Together | None:
    """What keys the global generators of torch, of the module `random` (`generator`) and of numpy (`library`
    is `numpy.random`; None: nobody has imported it), as their own `key` does, at a tenth of the price: torch's words
    are copied; and then those that are given further. None where words are not found in memory.

    Both libraries fill the words from 32 bits with Knuth's multiplier 1812433253 (`init_genrand` of MT19937, Matsumoto
    and Nishimura 2002). Behind numpy's seed its place is that of a generator whose words are all read, as before it,
    and where nobody has drawn since the key before, there is no second number of a pair to be forgotten.
    """
    where, pythons_at = _where_torch_has_it(), _where_python_has_it()
    if where is None or pythons_at is None:
        return None
    bits = _twister_of(library)
    words, state = _seeded(where), _bytes_at(id(generator) + pythons_at, 4 * (_WORDS + 1))
    (first, second), read, (low, high) = _halves(words), state[:4].cast("I"), _halves(state[4:])
    target = words if bits is None else _bytes_at(bits.ctypes.state_address, 4 * _WORDS)
    seen = numpys.mark if bits is None else _numpys_words(bits.ctypes.state_address)
    place = (lambda: None) if bits is None else _numpys_place(library)
    held = place()
    seed, mark_torch, mark_python = torchs.seed, mark_of_torch(torch.default_generator), mark_of_python(generator)

    def key(key: int) -> None:
        seed(key)
        torchs.known = mark_torch()
        low[:] = second
        high[:] = first
        read[0] = _WORDS
        generator.gauss_next = None  # type: ignore[attr-defined]
        pythons.known = mark_python()
        if bits is not None and seen() == numpys.known and place() == held:
            target[:] = words
            numpys.known = seen()
        else:
            numpys.seed(key)
            numpys.known = numpys.mark()
        for one in further:
            one.key(key)

    def undrawn() -> bool:
        alike = mark_torch() == torchs.known and mark_python() == pythons.known and seen() == numpys.known
        return alike and place() == held

    return Together(key, undrawn)


def _halves(words: memoryview) -> tuple[memoryview, memoryview]:
    return words[: 4 * _HALF], words[4 * _HALF :]


def key_python(generator: random.Random, key: int) -> None:
    """Puts a generator of the module `random` into the state that has, of the words of torch's generator after a seed
    of the low 32 bits of a key, the second half first. Turned by half they are related to other words of each other
    when all of them change, so that the two libraries' draws have nothing to do with each other."""
    words = words_of(key & 0xFFFFFFFF)
    generator.setstate((3, (*words[_HALF:], *words[:_HALF], _WORDS), None))


def words_of(seed: int) -> list[int]:
    """The words that torch and numpy fill a state with, from 32 bits (`init_genrand`)."""
    words = [seed]
    for number in range(1, _WORDS):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + number) & 0xFFFFFFFF)
    return words


def _seeded(where: int) -> memoryview:
    """The words of torch's global generator."""
    return _bytes_at(torch.default_generator._cdata + where + _TORCH.size, 4 * _WORDS)  # type: ignore[attr-defined]


def _bytes_at(address: int, length: int) -> memoryview:
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")
