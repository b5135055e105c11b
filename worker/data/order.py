"""The order of the samples of an epoch: a permutation that can be entered anywhere, without the part before.

Arithmetic of our own, because neither `torch.randperm` nor `random.shuffle` promises to stay the same over versions.
`VERSION` is in every checkpoint.
"""

from __future__ import annotations

import torch

from ..keys import below, mix

VERSION = 1
SMALL = 4096
"""Below this many samples a Fisher-Yates shuffle is made whole: a Feistel network on few bits is not random enough."""
ROUNDS = 6
"""Rounds of the Feistel network. Four pass the tests of shuffle quality; two are a margin."""
CHUNK = 8192
"""Indices that are computed at once and kept."""


class Permutation:
    """A permutation of range(n) that `key` chooses. `indices` costs the same at every position."""

    __slots__ = ("_chunk", "_chunk_number", "_halves", "_keys", "_whole", "key", "n")

    def __init__(self, key: int, n: int) -> None:
        self.key, self.n = key, n
        self._whole = _shuffled(key, n) if n < SMALL else None
        bits = max(2, (n - 1).bit_length())
        self._halves = (bits // 2, bits - bits // 2)
        self._keys = [mix(key, number) & 0x7FFFFFFF for number in range(ROUNDS)]
        self._chunk: list[int] = []
        self._chunk_number = -1

    def indices(self, first: int, last: int) -> list[int]:
        """The indices at the positions from `first` up to `last`, not included; 0 <= first <= last <= n."""
        if self._whole is not None:
            return self._whole[first:last]
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
        while bool((outside := walked >= self.n).any()):
            walked[outside] = self._network(walked[outside])
        return walked

    def _network(self, numbers: torch.Tensor) -> torch.Tensor:
        left_bits, right_bits = self._halves
        left, right = numbers >> right_bits, numbers & ((1 << right_bits) - 1)
        for key in self._keys:
            # An unbalanced network: the halves change places, and their widths with them.
            left, right = right, left ^ (_scramble(right ^ key) & ((1 << left_bits) - 1))
            left_bits, right_bits = right_bits, left_bits
        return (left << right_bits) | right


def _scramble(numbers: torch.Tensor) -> torch.Tensor:
    """32 bits to 32 bits, each bit on all: `lowbias32` of Chris Wellons' hash prospector (2018, public domain).

    In int64 arithmetic, whose low 32 bits wrap as those of unsigned numbers do.
    """
    mask = 0xFFFFFFFF
    numbers = ((numbers ^ (numbers >> 16)) * 0x7FEB352D) & mask
    numbers = ((numbers ^ (numbers >> 15)) * 0x846CA68B) & mask
    return numbers ^ (numbers >> 16)


def _shuffled(key: int, n: int) -> list[int]:
    """Fisher and Yates, from the end."""
    order = list(range(n))
    for last in range(n - 1, 0, -1):
        other = below(key, last, last + 1)
        order[last], order[other] = order[other], order[last]
    return order
