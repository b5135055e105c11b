"""The order of the samples of an epoch: a permutation that can be entered anywhere, without the part before.

Arithmetic of our own, because neither `torch.randperm` nor `random.shuffle` promises to stay the same over versions.
`VERSION` is in every checkpoint.
"""

from __future__ import annotations

import torch

from ..keys import mix, mixed

VERSION = 2
SMALL = 4096
"""Below this many samples a Fisher-Yates shuffle is made whole: a Feistel network on few bits is not random enough."""
ROUNDS = 6
"""Rounds of the Feistel network. Four pass the tests of shuffle quality; two are a margin."""
CHUNK = 8192
"""Indices that are computed at once and kept."""


class Permutation:
    """A permutation of range(n) that `key` chooses. `indices` costs the same at every position."""

    __slots__ = ("_chunk", "_chunk_number", "_highs", "_keys", "_low_bits", "_whole", "key", "n")

    def __init__(self, key: int, n: int) -> None:
        self.key, self.n = key, n
        self._whole = _shuffled(key, n) if n < SMALL else None
        self._low_bits = (n - 1).bit_length() // 2
        self._highs = -(-n >> self._low_bits)
        self._keys = [mix(key, number) & 0x7FFFFFFF for number in range(ROUNDS)]
        self._chunk: list[int] = []
        self._chunk_number = -1

    def indices(self, first: int, last: int) -> list[int]:
        """The indices at the positions from `first` up to `last`, not included; 0 <= first <= last <= n."""
        if self._whole is not None:
            return self._whole[first:last]
        begun = self._chunk_number * CHUNK
        if 0 <= begun <= first and last <= begun + CHUNK:
            return self._chunk[first - begun : last - begun]
        found: list[int] = []
        while first < last:
            number, offset = divmod(first, CHUNK)
            if number != self._chunk_number:
                begins = number * CHUNK
                self._chunk = self._encrypt(torch.arange(begins, min(begins + CHUNK, self.n))).tolist()
                self._chunk_number = number
            part = self._chunk[offset : offset + last - first]
            found += part
            first += len(part)
        return found

    def _encrypt(self, numbers: torch.Tensor) -> torch.Tensor:
        """Walks each number along its cycle of the network until it is below n (cycle walking)."""
        walked = self._network(numbers)
        while len(outside := (walked >= self.n).nonzero().squeeze(1)):
            walked[outside] = self._network(walked[outside])
        return walked

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
    draws = mixed(key, 0, n)
    for last in range(n - 1, 0, -1):
        other = (draws[last] * (last + 1)) >> 64
        order[last], order[other] = order[other], order[last]
    return order
