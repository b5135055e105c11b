"""Keys: 64-bit numbers that stand for a place in a run, such as (seed, loader, epoch), and numbers derived from them.

The arithmetic is part of the format of a checkpoint: order and randomness follow from it, so a change needs a new
`order.VERSION`. Names are hashed with BLAKE2b (RFC 7693); integers are mixed with the finaliser of SplitMix64 (Steele,
Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

MASK_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FEW = 20
"""Numbers below which a loop of Python's is as fast as numpy."""


def key_of(*parts: int | str) -> int:
    """The key of a place, 64 bits. Different parts, or the same parts cut differently, give unrelated keys."""
    text = "".join(f"{type(part).__name__[0]}{len(str(part))}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(key: int, number: int) -> int:
    """A key derived from `key` for `number`, 64 bits: what `key_of` is for names, at a third of the price."""
    z = (key + (number + 1) * _GOLDEN) & MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK_64
    return z ^ (z >> 31)


def mixed(key: int, first: int, count: int, step: int = 1) -> list[int]:
    """`mix(key, number)` for `count` numbers from `first` on, so far from each other; at a tenth of the price where
    there are hundreds."""
    if count < _FEW:
        return [mix(key, number) for number in range(first, first + count * step, step)]
    if (numpy := _imported_numpy()) is not None:
        return _mixed_with(numpy, key, first, count, step).tolist()  # type: ignore[no-any-return]
    import torch

    z = torch.arange(first + 1, first + count * step + 1, step, device="cpu") * _signed(_GOLDEN) + _signed(key)
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    z = z ^ ((z >> 31) & ((1 << 33) - 1))
    return [number & MASK_64 for number in z.tolist()]


def _imported_numpy() -> Any:
    """numpy where torch has imported it, else None."""
    numpy = sys.modules.get("numpy")
    return numpy if hasattr(numpy, "uint64") else None


def _mixed_with(numpy: Any, key: int, first: int, count: int, step: int = 1) -> Any:
    """The same where torch has imported numpy, in a third of the time: it has unsigned numbers of 64 bits."""
    word = numpy.uint64
    z = numpy.arange(first + 1, first + count * step + 1, step, dtype=word)
    z *= word(_GOLDEN)
    z += word(key)
    z ^= z >> word(30)
    z *= word(0xBF58476D1CE4E5B9)
    z ^= z >> word(27)
    z *= word(0x94D049BB133111EB)
    z ^= z >> word(31)
    return z


def _signed(number: int) -> int:
    """The same 64 bits as torch's int64 has them, whose sums and products wrap as unsigned ones do."""
    return number - (1 << 64) if number >> 63 else number


def belows(key: int, count: int) -> list[int]:
    """Of each number below `count`, 2**32 at most, a draw from 0 to the number: `below(key, number, number + 1)`."""
    if count < _FEW or (numpy := _imported_numpy()) is None:
        return [(draw * (number + 1)) >> 64 for number, draw in enumerate(mixed(key, 0, count))]
    word = numpy.uint64
    draws, limits = _mixed_with(numpy, key, 0, count), numpy.arange(1, count + 1, dtype=word)
    low = draws & word(0xFFFFFFFF)
    low *= limits
    low >>= word(32)
    draws >>= word(32)
    draws *= limits
    draws += low
    draws >>= word(32)
    return draws.tolist()  # type: ignore[no-any-return]


def below(key: int, number: int, limit: int) -> int:
    """The `number`-th draw of `key`, uniform over range(limit); a limit below 2**32 leaves a bias below 2**-32."""
    return (mix(key, number) * limit) >> 64
