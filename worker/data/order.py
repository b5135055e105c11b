"""The order of the samples of an epoch: a permutation that can be entered anywhere, without the part before.

Arithmetic of our own, because neither `torch.randperm` nor `random.shuffle` promises to stay the same over versions.
`VERSION` is in every checkpoint.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..keys import belows, mix

VERSION = 3
SMALL = 4096
"""Below this many samples a Fisher-Yates shuffle is made whole: a Feistel network on few bits is not random enough."""
ROUNDS = 6
"""Rounds of the Feistel network. Four pass the tests of shuffle quality; two are a margin."""
CHUNK = 8192
"""Indices that are computed at once and kept."""


class Permutation:
    """A permutation of range(n) that `key` chooses. `indices` costs the same at every position."""

    __slots__ = ("_begins", "_chunk", "_highs", "_keys", "_low_bits", "key", "n")

    def __init__(self, key: int, n: int) -> None:
        self.key, self.n = key, n
        self._low_bits = (n - 1).bit_length() // 2
        self._highs = -(-n >> self._low_bits)
        self._keys = [mix(key, number) & 0x7FFFFFFF for number in range(ROUNDS)]
        self._chunk, self._begins = _shuffled(key, n) if n < SMALL else [], 0

    def indices(self, first: int, last: int) -> list[int]:
        """The indices at the positions from `first` up to `last`, not included; 0 <= first <= last <= n."""
        begins, chunk = self._begins, self._chunk
        if begins <= first and last <= begins + len(chunk):
            return chunk[first - begins : last - begins]
        found: list[int] = []
        while first < last:
            if not self._begins <= first < self._begins + len(self._chunk):
                self._begins = first - first % CHUNK
                self._chunk = self._encrypt(self._begins, min(self._begins + CHUNK, self.n))
            part = self._chunk[first - self._begins : last - self._begins]
            found += part
            first += len(part)
        return found

    def _encrypt(self, begins: int, ends: int) -> list[int]:
        """Walks each number of a range along its cycle of the network until it is below n (cycle walking)."""
        numpy = sys.modules.get("numpy")
        if hasattr(numpy, "uint32") and self._highs < 1 << 31:
            return self._encrypt_with(numpy, begins, ends)
        walked = self._network(torch.arange(begins, ends, device="cpu"))
        while len(outside := (walked >= self.n).nonzero().squeeze(1)):
            walked[outside] = self._network(walked[outside])
        return walked.tolist()

    def _encrypt_with(self, numpy: Any, begins: int, ends: int) -> list[int]:
        """The same where torch has imported numpy, in half the time: it has unsigned numbers of 32 bits."""
        walked = self._network_with(numpy, numpy.arange(begins, ends, dtype=numpy.int64))
        while len(outside := numpy.flatnonzero(walked >= self.n)):
            walked[outside] = self._network_with(numpy, walked[outside])
        return walked.tolist()  # type: ignore[no-any-return]

    def _network_with(self, numpy: Any, numbers: Any) -> Any:
        word, long = numpy.uint32, numpy.uint64
        low_bits, highs = self._low_bits, word(self._highs)
        mask = word((1 << low_bits) - 1)
        low, high = (numbers & ((1 << low_bits) - 1)).astype(word), (numbers >> low_bits).astype(word)
        mixed, spare = numpy.empty_like(low), numpy.empty_like(low)
        for turn, key in enumerate(self._keys):
            numpy.bitwise_xor(low if turn % 2 else high, word(key), out=mixed)
            for shift, factor in ((16, word(0x7FEB352D)), (15, word(0x846CA68B)), (16, None)):
                numpy.right_shift(mixed, word(shift), out=spare)
                mixed ^= spare
                if factor is not None:
                    mixed *= factor
            if turn % 2:
                product = mixed.astype(long)
                product *= long(self._highs)
                product >>= long(32)
                high += product.astype(word)
                # Below its range the difference wraps to a larger number than the sum.
                numpy.subtract(high, highs, out=spare)
                numpy.minimum(high, spare, out=high)
            else:
                mixed &= mask
                low ^= mixed
        return (high.astype(numpy.int64) << low_bits) | low

    def _network(self, numbers: torch.Tensor) -> torch.Tensor:
        """A permutation of 2**low_bits x highs numbers, which are n and fewer than 2**low_bits more.

        Each half is changed by what the other one is, in turns: the low one, whose range is a power of two, by XOR, the
        high one by addition modulo its range. In place, as that is half the price.
        """
        low, high = numbers & ((1 << self._low_bits) - 1), numbers >> self._low_bits
        for turn, key in enumerate(self._keys):
            if turn % 2:
                high += (_scramble(low ^ key) * self._highs) >> 32
                high -= self._highs
                high += (high >> 63) & self._highs  # back where the sum was below the range
            else:
                low ^= _scramble(high ^ key) & ((1 << self._low_bits) - 1)
        return (high << self._low_bits) | low


def _scramble(numbers: torch.Tensor) -> torch.Tensor:
    """32 bits to 32 bits, each bit on all: `lowbias32` of Chris Wellons' hash prospector (2018, public domain). Changes
    what it is given.

    In int64 arithmetic, whose low 32 bits wrap as those of unsigned numbers do.
    """
    mask = 0xFFFFFFFF
    numbers ^= numbers >> 16
    numbers *= 0x7FEB352D
    numbers &= mask
    numbers ^= numbers >> 15
    numbers *= 0x846CA68B
    numbers &= mask
    numbers ^= numbers >> 16
    return numbers


def _shuffled(key: int, n: int) -> list[int]:
    """Fisher and Yates, from the end."""
    order = list(range(n))
    for last, other in zip(range(n - 1, 0, -1), reversed(belows(key, n)), strict=False):
        order[last], order[other] = order[other], order[last]
    return order
