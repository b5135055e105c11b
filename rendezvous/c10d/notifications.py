"""Who has published, in a TCPStore: a numbered list of node ids, so that a reader finds out in one wait.

A notification takes two steps: take a number (`add` on log/head), create that entry. A writer that dies between them
leaves a hole; the reader voids it after a moment, and a writer that was merely slow finds its number void and takes
another. So nothing is lost, and nobody waits for the dead. Each heartbeat sees to it that its node's newest one stands.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from .client import Wire
from .keys import MAX_NOTES, VOID, Keys, foreign_count, nodes_in

AT_ONCE = 4096
"""Notifications that one call reads; the next goes on."""
HOLE_GRACE_S = 0.2
"""How long a reader waits for notifications between their two steps, which take microseconds."""


class Notice:
    """The newest notification of the node that speaks here. The store is open to everybody on the network, so it may be
    written over before anybody has read it."""

    def __init__(self) -> None:
        self._name = b""
        self._key = ""
        self._number = 0

    def give(self, wire: Wire, where: str, keys: Keys, name: bytes) -> None:
        """Raises StoreForeign if there are too many, no count, or one that went back: what is told under a number that
        was read already, nobody hears."""
        while True:
            last = self._number
            note = wire.add(keys.log_head, 1)
            if not last < note <= MAX_NOTES:
                raise foreign_count(where, keys.log_head, str(note).encode("ascii"), MAX_NOTES, last + 1)
            if wire.create(keys.note(note), name) == name:
                self._name, self._key, self._number = name, keys.note(note), note
                return

    def key_of(self, name: bytes) -> list[str]:
        """Where it is, if this node has spoken."""
        return [self._key] if name == self._name else []

    def repair(self, wire: Wire, where: str, keys: Keys, found: Mapping[str, bytes]) -> None:
        """Give it again if, by what was found at `key_of`, it is not there any more. Raises as `give`."""
        if found.get(self._key) != self._name:
            self.give(wire, where, keys, self._name)


def records_told_of(wire: Wire, keys: Keys, cursor: int, upto: int) -> dict[str, bytes]:
    """By node: the records of those that the notifications after `cursor` name."""
    notes = _read(wire, keys, cursor, upto)
    found = _records(wire, keys, nodes_in(notes))
    if {VOID, *(node.encode("utf-8") for node in found)}.issuperset(notes):
        return found
    # A stranger wrote over one, and whose it was is lost: it may be that of any who spoke before.
    return _records(wire, keys, nodes_in(_read(wire, keys, max(upto - AT_ONCE, 0), upto)))


def _read(wire: Wire, keys: Keys, cursor: int, upto: int) -> list[bytes]:
    """These notifications; those that are not written within a moment become void."""
    names = [keys.note(number) for number in range(cursor + 1, upto + 1)]
    patience = time.monotonic() + HOLE_GRACE_S
    for name, written in zip(names, wire.have(names), strict=True):
        if not written and not wire.wait(name, patience - time.monotonic()):
            wire.create(name, VOID)  # not put: if its writer was faster, the notification stands
    return list(wire.get(names).values())


def _records(wire: Wire, keys: Keys, nodes: Sequence[str]) -> dict[str, bytes]:
    names = {keys.node(node): node for node in nodes}
    return {names[name]: value for name, value in wire.get(list(names)).items()}
