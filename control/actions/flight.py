"""Which collective of torch's each rank has begun last, by its flight recorder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..decisions.hang import named


def begun(flight: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """By process group: how many collectives this rank has begun, and which was the last."""
    found: dict[str, tuple[int, str]] = {}
    for entry in flight.get("entries", ()):
        try:
            group = ":".join(str(part) for part in entry["process_group"])
            number, name = int(entry["collective_seq_id"]), str(entry["profiling_name"])
        except (KeyError, TypeError, ValueError):
            continue  # of another version of torch: what it does not say is not compared
        if not entry.get("is_p2p") and number >= found.get(group, (0, ""))[0]:
            found[group] = number, name
    return found


def behind(by_rank: Mapping[int, Mapping[str, tuple[int, str]]]) -> tuple[tuple[int, ...], str]:
    """(ranks that have not come to a collective that others are in, a sentence about it); nothing where all have.
    `by_rank`: what each has begun."""
    for group in sorted({group for groups in by_rank.values() for group in groups}):
        numbers = {rank: groups[group][0] for rank, groups in by_rank.items() if group in groups}
        most = max(numbers.values())
        late = tuple(sorted(rank for rank, number in numbers.items() if number < most))
        if late:
            name = next(groups[group][1] for groups in by_rank.values() if groups.get(group, (0, ""))[0] == most)
            which = f"collective {most} ({name}) of group {group.rpartition(':')[2]}"
            return late, f"{named(late)} did not enter {which}, in which the others are"
    return (), ""
