"""Stacks of all ranks of a round: each node takes those of its own workers, and the one that asked compares all.

`reply` makes a node's answer, `compare` reads the answers, whatever is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...proto.frozen import dataclass
from ...rendezvous.codec.digest import sha256
from ...rendezvous.text import shorten
from ..answers import ask
from ..job_view import JobView
from ..readings.processes import matching
from ..table.watch import Watch
from .flight import begun, behind
from .stacks import PROCESSES_MAX, Dump, ProcessStack, grouped, native, stacks_of

TEXTS_MAX = 48 * 1024
"""Characters of all texts in a node's answer: one of each group first, then the others as far as there is room."""
TEXT_MAX = 16 * 1024
"""The same of one text."""
LINE_MAX = 300
"""The same of a place, or of the name of a process or a collective."""
GROUPS_MAX = 64
"""Process groups of a rank whose collectives are compared."""


@dataclass(frozen=True)
class World:
    """What the stacks of a round say."""

    found: Dump
    """Of all ranks whose node has answered."""
    late: tuple[int, ...]
    """Ranks that have not come to a collective that others are in, by torch's flight recorders."""
    said: str
    """A sentence about these; empty where there is none."""
    native: tuple[str, ...]
    """Stacks with native frames, of processes that do not wait for others."""

    @property
    def odd(self) -> int:
        """The rank that the failure is about: one that is behind in a collective, else the first of the odd group."""
        known = {each.rank for group in self.found.groups for each in group}
        return next((rank for rank in self.late if rank in known), min(each.rank for each in self.found.groups[0]))


def chosen(job: JobView, process: str) -> dict[int, int]:
    """Process ids by rank of this node's workers, or of those of them that the pattern finds."""
    return {rank: pid for rank, pid in job.workers().items() if not process or pid in matching(process)}


def reply(job: JobView, watch: Watch) -> dict[str, Any]:
    """This node's answer: the stacks of its workers, and which collectives they have begun last. `watch`: of this
    node's own table; a pattern or a signal of another node would be a stranger's."""
    workers = chosen(job, watch.process)
    ranks = {pid: rank for rank, pid in workers.items()}
    sockets = {rank: job.answers(rank) for rank in workers}
    found = stacks_of(list(ranks), watch.signal, {workers[rank]: path for rank, path in sockets.items()})
    flights = {rank: answer.flight for rank, path in sockets.items() if (answer := ask(path)) is not None}
    room, rows = TEXTS_MAX, []
    for each in (*(group[0] for group in found.groups), *(each for group in found.groups for each in group[1:])):
        text = each.text[: min(TEXT_MAX, room)]
        room -= len(text)
        key = sha256(each.key.encode("utf-8", "replace")).hexdigest()
        rows.append([ranks[each.pid], each.who[:LINE_MAX], key, each.at[:LINE_MAX], each.waits, text])
    return {
        "stacks": rows,
        "begun": {
            str(rank): {group[:LINE_MAX]: [number, name[:LINE_MAX]] for group, (number, name) in _first(begun(flight))}
            for rank, flight in flights.items()
        },
        "native": [text[:TEXT_MAX] for text in native(found, waiting=job.nodes == 1)],
    }


def compare(answers: Mapping[str, Mapping[str, Any]], *, named: bool = True) -> World:
    """The answers by the names of the nodes, which processes are called by too if `named`."""
    taken = [stacks for node, answer in answers.items() for stacks in _stacks(answer, node if named else "")]
    taken.sort(key=lambda stacks: stacks.rank)
    late, said = behind({rank: groups for answer in answers.values() for rank, groups in _begun(answer)})
    texts = [text for answer in answers.values() for text in _list(answer.get("native"))[:3] if isinstance(text, str)]
    return World(grouped(taken), late, said, tuple(text[:TEXT_MAX] for text in texts))


def _first(begun_last: Mapping[str, tuple[int, str]]) -> list[tuple[str, tuple[int, str]]]:
    return sorted(begun_last.items())[:GROUPS_MAX]


def _stacks(answer: Mapping[str, Any], node: str) -> list[ProcessStack]:
    found = []
    for row in _list(answer.get("stacks"))[:PROCESSES_MAX]:
        match row:
            case [int(rank), str(who), str(key), str(at), bool(waits), str(text)]:
                whose = f"{who[:LINE_MAX]} on {node}" if node else who[:LINE_MAX]
                place = shorten(" ".join(at.split()), LINE_MAX)
                found.append(ProcessStack(whose, text[:TEXT_MAX], key, place, waits=waits, rank=rank))
    return found


def _begun(answer: Mapping[str, Any]) -> list[tuple[int, dict[str, tuple[int, str]]]]:
    found = []
    by_rank = answer.get("begun")
    for rank, groups in by_rank.items() if isinstance(by_rank, dict) else ():
        if not rank.isdecimal() or not isinstance(groups, dict):
            continue
        read: dict[str, tuple[int, str]] = {}
        for group, last in groups.items():
            match last:
                case [int(number), str(name)]:
                    read[group] = number, name[:LINE_MAX]
        found.append((int(rank), read))
    return found


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
