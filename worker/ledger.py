"""What has been trained on: a record of every committed batch, chained by hashes, kept as ranges.

Each loader has a chain of its own: link = SHA-256(link before, epoch, first, last, ends). Batches of one size that
follow each other are one range, so that an epoch takes one line, and the chain can be computed again from the ranges.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from .data.cursors import Span

_pack, _sha256 = struct.Struct("<qqq?").pack, hashlib.sha256
_START = bytes(32)
FILE = "ledger.json"
"""Of a checkpoint: what `Ledger.to_bytes` gives."""
TOGETHER = 256
"""Batches that are added at once, at a third of the price of one after each step."""


@dataclass(slots=True)
class Range:
    """Batches of `batch` positions each, the last one perhaps smaller, over [first, last) of an epoch."""

    epoch: int
    first: int
    last: int
    batch: int
    ends_epoch: bool = False

    def spans(self, loader: str) -> list[Span]:
        starts = range(self.first, self.last, self.batch) if self.batch else [self.first]
        return [
            Span(
                loader,
                self.epoch,
                start,
                end := min(start + self.batch, self.last),
                self.ends_epoch and end == self.last,
            )
            for start in starts
        ]


@dataclass
class Chain:
    """The batches of one loader."""

    link: bytes = _START
    ranges: list[Range] = field(default_factory=list)

    def add(self, spans: Iterable[Span]) -> None:
        """In their order."""
        link, now = self.link, self.ranges[-1] if self.ranges else None
        for _, epoch, first, last, ends in spans:
            link = _sha256(link + _pack(epoch, first, last, ends)).digest()
            if (
                (now is not None and now.last == first and now.epoch == epoch and not now.ends_epoch)
                and 0 < last - first <= now.batch
                and (first - now.first) % now.batch == 0
            ):
                now.last, now.ends_epoch = last, ends
            else:
                now = Range(epoch, first, last, last - first, ends)
                self.ranges.append(now)
        self.link = link


class Ledger:
    """The chains of all loaders of a run."""

    def __init__(self) -> None:
        self.chains: dict[str, Chain] = {}
        """By loader."""

    def add(self, spans: Iterable[Span]) -> None:
        """Of one loader in their order."""
        for loader, of_one in itertools.groupby(spans, operator.itemgetter(0)):
            self.chains.setdefault(loader, Chain()).add(of_one)

    def head(self) -> str:
        """One hash over the links of all loaders, in hexadecimal."""
        links = (name.encode() + b"\0" + chain.link for name, chain in sorted(self.chains.items()))
        return hashlib.sha256(b"".join(links)).hexdigest()

    def to_bytes(self) -> bytes:
        """What the file of that name holds."""
        chains = {
            name: [[kept.epoch, kept.first, kept.last, kept.batch, int(kept.ends_epoch)] for kept in chain.ranges]
            for name, chain in self.chains.items()
        }
        return json.dumps(chains).encode()

    @classmethod
    def from_bytes(cls, kept: bytes) -> Ledger:
        """Computes the chains again. Raises ValueError or TypeError for what `to_bytes` never gives."""
        ledger = cls()
        for name, ranges in json.loads(kept).items():
            ledger.chains[name] = Chain()
            for epoch, first, last, batch, ends in ranges:
                ledger.add(Range(int(epoch), int(first), int(last), int(batch), bool(ends)).spans(name))
        return ledger

    def faults(self) -> list[str]:
        """Where the finished epochs are not exactly-once, a sentence each; empty if all are."""
        return [fault for name, chain in sorted(self.chains.items()) for fault in _faults(name, chain)]

    def left(self) -> list[str]:
        """Epochs that a later one of their loader began without, a sentence each: a loop that has limits of its own
        leaves such, and no claim is made for them. Empty after loops that run to the end of each epoch."""
        return [sentence for name, chain in sorted(self.chains.items()) for sentence in _left(name, chain)]

    def finished(self, loader: str) -> dict[int, int]:
        """The finished epochs of a loader, with the positions each has."""
        chain = self.chains.get(loader, Chain())
        return {kept.epoch: kept.last for kept in chain.ranges if kept.ends_epoch}


def _left(name: str, chain: Chain) -> list[str]:
    reached: dict[int, int] = {}
    for kept in chain.ranges:
        reached[kept.epoch] = max(reached.get(kept.epoch, 0), kept.last)
    finished = {kept.epoch for kept in chain.ranges if kept.ends_epoch}
    return [
        f"loader {name!r}, epoch {epoch}: "
        + (f"left at position {reached[epoch]}, before its end" if epoch in reached else "nothing was trained on")
        for epoch in range(min(reached, default=0), max(reached, default=0))
        if epoch not in finished
    ]


def _faults(name: str, chain: Chain) -> list[str]:
    faults = []
    where = f"loader {name!r}, epoch"
    for epoch in sorted({kept.epoch for kept in chain.ranges}):
        ranges = sorted((kept.first, kept.last) for kept in chain.ranges if kept.epoch == epoch)
        ends = [kept.last for kept in chain.ranges if kept.epoch == epoch and kept.ends_epoch]
        reached = 0
        for first, last in ranges:
            if first > reached:
                faults.append(f"{where} {epoch}: positions {reached} to {first - 1} were never trained on")
            elif first < reached:
                again = min(reached, last)
                faults.append(f"{where} {epoch}: positions {first} to {again - 1} were trained on twice")
            reached = max(reached, last)
        if ends and reached != ends[0]:
            faults.append(f"{where} {epoch}: it ended at position {ends[0]}, and {reached} were trained on")
    return faults
