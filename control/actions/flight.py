"""What the workers' own library answers: their stacks, and which collective of torch's each rank has begun last."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..decisions.hang import named

ANSWER_S = 3.0
"""How long a worker has to answer; one that holds the interpreter in C never does."""
ANSWER_MAX = 1 << 24
"""Bytes that are read of an answer."""


@dataclass(frozen=True)
class Answer:
    """Of one worker."""

    stacks: str = ""
    flight: Mapping[str, Any] = field(default_factory=dict)
    """As torch writes it."""


def ask(path: str) -> Answer | None:
    """What the worker answers at this socket; None if it does not."""
    parts, size = [], 0
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(path)
            while (part := connection.recv(1 << 20)) and size < ANSWER_MAX:
                parts.append(part)
                size += len(part)
        found = json.loads(b"".join(parts))
        return Answer(str(found["stacks"]), dict(found["flight"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


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


def behind(flights: Mapping[int, Mapping[str, Any]]) -> tuple[tuple[int, ...], str]:
    """(ranks that have not come to a collective that others are in, a sentence about it); nothing where all have."""
    by_rank = {rank: begun(flight) for rank, flight in flights.items() if flight}
    for group in sorted({group for groups in by_rank.values() for group in groups}):
        numbers = {rank: groups[group][0] for rank, groups in by_rank.items() if group in groups}
        most = max(numbers.values())
        late = tuple(sorted(rank for rank, number in numbers.items() if number < most))
        if late:
            name = next(groups[group][1] for groups in by_rank.values() if groups.get(group, (0, ""))[0] == most)
            which = f"collective {most} ({name}) of group {group.rpartition(':')[2]}"
            return late, f"{named(late)} did not come to {which}, where the others are"
    return (), ""
