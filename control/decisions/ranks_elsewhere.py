"""Where the ranks of other nodes are, for a node whose ranks seem to stand still. Pure.

shown(progress, now_s)    a node's answer
summed_up(answers)        of all answers what `hang.judge` needs: for each section the rank that came there last
read(...)                 that, as it comes from another node
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...proto.durations import BUCKETS, Durations
from .hang import Mark, Standing

SECTIONS, NAME_MAX = 16, 40
"""Sections that are read of an answer, and characters of a section's name."""
LONGEST_S = 1e9
"""No time that a node has measured is longer."""


def summed_up(answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The same of all nodes."""
    found: dict[str, Any] = {}
    for answer in answers:
        ranks, learned = read(answer)
        for rank, each in ranks.items():
            section = each.mark.section
            if section not in found or each.still_s < found[section][1]:
                found[section] = row(rank, each.still_s, learned[section])
    return {"sections": found}


def read(answer: Mapping[str, Any]) -> tuple[dict[int, Standing], dict[str, Durations]]:
    """(by rank, by section); what is in no known form is left out."""
    ranks: dict[int, Standing] = {}
    learned: dict[str, Durations] = {}
    sections = answer.get("sections")
    for section, shown in list(sections.items())[:SECTIONS] if isinstance(sections, dict) else ():
        match shown:
            case [int(rank), int() | float() as still_s, *times] if 0 <= still_s < LONGEST_S and (
                known := _times(times)
            ):
                name = section[:NAME_MAX]
                ranks[rank], learned[name] = Standing(Mark(name, 0), still_s, 0.0), known
    return ranks, learned


def row(rank: int, still_s: float, times: Durations) -> list[Any]:
    """As the module says."""
    buckets = {str(at): number for at, number in enumerate(times.buckets) if number}
    return [rank, still_s, times.count, times.total_s, times.longest_s, buckets]


def _times(shown: list[Any]) -> Durations | None:
    match shown:
        case [int(count), int() | float() as total_s, int() | float() as longest_s, dict(by_bucket)]:
            if count >= 0 and 0 <= longest_s < LONGEST_S and 0 <= total_s < LONGEST_S:
                return Durations(count, total_s, longest_s, _buckets(by_bucket))
    return None


def _buckets(by_bucket: Mapping[str, Any]) -> tuple[int, ...]:
    counts = [0] * BUCKETS
    for at, number in by_bucket.items():
        if at.isdecimal() and len(at) <= 3 and int(at) < BUCKETS and type(number) is int and number >= 0:
            counts[int(at)] = number
    return tuple(counts)
