"""Laying out a job's keys on a TCPStore server, and making sure that they are there."""

from __future__ import annotations

import os

from ..store import StoreForeign
from .client import Wire
from .keys import MAX_COUNT, MAX_NOTES, SERVED, Keys, count_of, shown


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
