"""How far a worker is: a piece of memory that the worker alone writes, and that its agent reads.

For each section of the run (`step`, `evaluation`, `save`, ...) it holds how often it came to an end, and how long that
took, as `durations` counts it. Times are of CLOCK_MONOTONIC, the same for all processes
of a host. Standard library only: a worker loads it, and an agent that watches.
"""

from __future__ import annotations

import struct

from .durations import BUCKETS, Durations
from .frozen import dataclass, field

VERSION = 0x45504731
"""The first word: `1GPE`, for the form of what follows."""
SECTIONS = 8
"""Most sections that are told apart; what comes later counts as the last one."""
NAME_BYTES = 40
DIRECTORY = "ELASTIC_AGENT_PROGRESS"
"""The variable with the directory in which workers show their progress; without it they show none."""
HEADER = struct.Struct("=IIQQQddd")
"""VERSION, the section that goes on, writes (odd while one is under way), marks, steps, when the last mark was made,
`Progress.stepped_s`, `Progress.own_s`."""
SECTION = struct.Struct(f"={NAME_BYTES}sQdd{BUCKETS}I")
SIZE = HEADER.size + SECTIONS * SECTION.size
"""Bytes of the whole."""
LONG = 8
"""All of it is words of so many bytes, and pairs of half as many. Below, numbers of such words."""
WRITES, MARKS, STEPS, AT = range(1, 5)
COUNT, TOTAL, LONGEST, BUCKETS_AT = range(NAME_BYTES // LONG, NAME_BYTES // LONG + 4)
"""Of a section, behind its first word."""


def section_at(slot: int) -> int:
    """The first word of a section."""
    return HEADER.size // LONG + slot * (SECTION.size // LONG)


def file_of(directory: str, round_number: int, rank: int) -> str:
    """Where a worker of a round shows its progress. With `.ask` behind it: the socket at which it answers."""
    return f"{directory}/{round_number}-{rank}"


@dataclass(frozen=True)
class Progress:
    """What a worker has written."""

    section: str
    """The one that goes on."""
    marks: int
    """Signs of life so far: ends of steps and of sections, and whatever else the script has marked."""
    steps: int
    at_s: float
    """When the last mark was made."""
    stepped_s: float
    """How long all steps took together."""
    own_s: float
    """The part of it in which the rank waited for no other: its processor time, and its waits for data."""
    sections: dict[str, Durations] = field(default_factory=dict)


def read(memory: bytes | bytearray | memoryview, afterwards: bytes | bytearray | memoryview) -> Progress | None:
    """What the memory says; None where nothing was written yet, or it is in another form, or is being written.
    afterwards: its header, read behind it."""
    version, now_in, writes, marks, steps, at_s, stepped_s, own_s = HEADER.unpack_from(memory)
    if version != VERSION or writes % 2:
        return None
    names, sections = [], {}
    for slot in range(SECTIONS):
        name, count, total_s, longest_s, *buckets = SECTION.unpack_from(memory, HEADER.size + slot * SECTION.size)
        text = name.rstrip(b"\0").decode(errors="replace")
        names.append(text)
        if text:
            sections[text] = Durations(count, total_s, longest_s, tuple(buckets))
    if HEADER.unpack_from(afterwards)[2] != writes:
        return None
    current = names[now_in] if now_in < SECTIONS else ""
    return Progress(current, marks, steps, at_s, stepped_s, own_s, sections)
