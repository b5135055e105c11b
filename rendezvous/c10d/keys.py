"""How a job's records are named in a TCPStore, and how what lies there is read.

Below `elastic_agent/<run id, percent-encoded>/`:

    job              the job's record, create-only
    life             a token of the server's life, so that a restarted, empty server is not taken for the old one

and, below that, in a folder for each incarnation of the job, 1/, 2/ and so on; counters are decimal text:

    node/<id>        the node's record
    beat/<id>        its heartbeat counter
    log/<n>          the n-th notification: the id of a node that published, or VOID
    log/head         how many notifications were begun
    round/<version>  what was announced, create-only
    round/head       the newest version

and `elastic_agent/served`, the run id whose host this is, written last: whoever sees it finds the rest in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ..store import StoreForeign
from .client import Wire

SERVED = "elastic_agent/served"
VOID = b"\xff"
"""A notification that a reader has given up on. No id is that, and not empty: compare_set takes empty for absent."""
MAX_COUNT = 2**53
"""No count reaches it; above, a number is taken for garbage."""
MAX_NOTES = 1_000_000
"""Notifications in a job's life: 100 MB at the host. A thousand nodes through a hundred rounds make half of it."""
MAX_NODE_ID_BYTES = 512
"""A longer id in a notification is not ours."""

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class Keys:
    """The keys of one incarnation of one job."""

    def __init__(self, run_id: str, incarnation: int = 1) -> None:
        self._run_id = run_id
        self.incarnation = incarnation
        self.served = run_id.encode("utf-8", "surrogateescape")
        """What the key `SERVED` holds. A run id from the command line may be any bytes."""
        job = f"elastic_agent/{quoted(self.served)}/"
        self.job = job + "job"
        self.life = job + "life"
        self.under = f"{job}{incarnation}/"
        self.log_head = self.under + "log/head"
        self.round_head = self.under + "round/head"

    def of(self, incarnation: int) -> Keys:
        """The keys of another incarnation of the job."""
        return Keys(self._run_id, incarnation)

    def node(self, node: str) -> str:
        return f"{self.under}node/{node}"

    def beat(self, node: str) -> str:
        return f"{self.under}beat/{node}"

    def note(self, number: int) -> str:
        return f"{self.under}log/{number}"

    def round(self, version: int) -> str:
        return f"{self.under}round/{version}"


def quoted(name: bytes) -> str:
    """A name as one plain word, percent-encoded."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name)


def count_in(value: bytes) -> int | None:
    """The count in these bytes; None if they hold something else."""
    if not 0 < len(value) <= 16 or not value.isdigit():
        return None
    number = int(value)
    return number if number <= MAX_COUNT else None


def count_of(where: str, key: str, found: Mapping[str, bytes], most: int, least: int = 0) -> int:
    """The count that `key` holds in what was found at the endpoint `where`. Raises StoreForeign if it is none, or not
    from `least` to `most`."""
    value = found.get(key)
    number = None if value is None else count_in(value)
    if number is None or not least <= number <= most:
        raise foreign_count(where, key, value, most, least)
    return number


def foreign_count(where: str, key: str, value: bytes | None, most: int, least: int = 0) -> StoreForeign:
    """What to say of a counter that is none of ours."""
    return StoreForeign(
        f"{where}: key {key} holds {shown(value)}, where a count from {least} to {most} belongs; "
        "somebody else writes to this store: start the job anew on another port"
    )


def nodes_in(notes: Iterable[bytes]) -> list[str]:
    """The nodes that these notifications name, each once; void ones and other people's bytes are left out."""
    found: dict[str, None] = {}
    for note in notes:
        if 0 < len(note) <= MAX_NODE_ID_BYTES:
            try:
                found[note.decode("utf-8")] = None
            except UnicodeDecodeError:
                continue  # not ours; the store is open to everybody on the network
    return list(found)


def shown(value: bytes | None) -> str:
    """The value for a message: short, and on one line; None is a key that is not there."""
    if value is None:
        return "nothing"
    return repr(value[:40].decode("utf-8", "replace")) + ("..." if len(value) > 40 else "")


def lay_out(wire: Wire, keys: Keys) -> bytes:
    """As the host: lay the keys out, but for the one that invites others. Returns the token of the server's life."""
    token = os.urandom(8).hex().encode("ascii")
    for key, value in ((keys.log_head, b"0"), (keys.round_head, b"0")):
        wire.put_later(key, value)
    wire.put(keys.life, token)
    return token


def invite(wire: Wire, keys: Keys) -> None:
    """As the host: let the others in."""
    wire.put(SERVED, keys.served)


def check(wire: Wire, where: str, keys: Keys, timeout_s: float, token: bytes = b"") -> bytes:
    """As a client of the endpoint `where`: make sure that this store is the job's (and still the one with this token).
    Returns its token.

    Raises StoreForeign if it is not, or holds counters that are none.
    """
    if not wire.wait(SERVED, timeout_s):
        raise StoreForeign(
            f"{where} is a TCPStore, but no elastic-agent hosts a job there; "
            "choose another port, or start elastic-agent on the node that the endpoint names"
        )
    served = wire.get([SERVED]).get(SERVED, b"")
    if served != keys.served:
        raise StoreForeign(
            f"{where} serves job {shown(served)}, not {shown(keys.served)}: choose another port or the same --rdzv-id"
        )
    found = wire.get([keys.log_head, keys.round_head, keys.life])
    count_of(where, keys.log_head, found, MAX_NOTES)
    count_of(where, keys.round_head, found, MAX_COUNT)
    life = found.get(keys.life, b"")
    if token and life != token:
        raise StoreForeign(
            f"{where} was restarted and has lost the records of job {shown(served)}; start all agents anew"
        )
    return life
