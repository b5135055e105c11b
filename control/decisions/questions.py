"""What nodes ask each other, and whether one of them has asked already. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...proto.frozen import dataclass, field

STACKS, STANDING, PACES, CLOCK = "stacks", "standing", "paces", "clock"
"""Questions, by their kind."""
CONCLUSION = "-conclusion"
"""Behind a kind: what a node has concluded from the answers. It needs no answer."""
END = "end"
"""A rank is to fail, as it stands still; for the agent of that rank. It needs no answer."""


@dataclass(frozen=True)
class Question:
    """One of the numbered questions of a job."""

    kind: str
    round: int
    """Nodes that are in another round do not answer."""
    asker: str
    """Identity of the node that asks: no two of them write the same bytes."""
    name: str
    """The same for people."""
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """A question that came by."""

    number: int
    question: Question
    at_s: float
    """When it was seen here."""


def under_way(seen: Mapping[str, Seen], kind: str, round_number: int, now: float, most_s: float) -> Seen | None:
    """The newest question of this kind and round that was asked less than `most_s` ago and has no conclusion yet."""
    asked = seen.get(kind)
    if asked is None or asked.question.round != round_number or now - asked.at_s >= most_s:
        return None
    return None if concluded(seen, asked) is not None else asked


def recent(seen: Mapping[str, Seen], kind: str, round_number: int, now: float, most_s: float) -> Seen | None:
    """The newest conclusion of this kind and round, if it is less than `most_s` old."""
    found = seen.get(kind + CONCLUSION)
    if found is None or found.question.round != round_number or now - found.at_s >= most_s:
        return None
    return found


def concluded(seen: Mapping[str, Seen], asked: Seen) -> Seen | None:
    """The conclusion of this question."""
    found = seen.get(asked.question.kind + CONCLUSION)
    return found if found is not None and found.question.body.get("of") == asked.number else None
