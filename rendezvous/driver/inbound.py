"""Decoding what the store holds. Any program may have written it, so bytes that do not decode are reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ..codec import job as jobs
from ..codec import member_pages
from ..codec import records as codec
from ..codec.fields import ForeignBytes
from ..coordinator.events import Elected
from ..records import NodeRecord, Outcome, Round
from ..store import Store, StoreError, StoreForeign

Warn = Callable[[str], None]
"""Gets sentences for people about bytes of other programs; called from the driver's threads."""
OWN_RECORD_S = 1.0
"""Length of one wait for the record of this node itself."""


def read_state(epoch: int, job: bytes, newest_seen: int, warn: Warn, session: Store) -> tuple[int, Elected]:
    """What the store holds when a coordinator is elected, and the cursor up to which the records were read. `job`: the
    job's record when this node joined; `newest_seen`: the newest version that this node has received.

    Raises StoreForeign if the newest announcement cannot be read, StoreError if another job uses the run id by now."""
    outcome = _recorded_outcome(job, session.write_job(job))
    values: dict[str, bytes] = {}
    cursor, more = session.wait_nodes(0, 0.0)
    while more:
        values.update(more)
        cursor, more = session.wait_nodes(cursor, 0.0)
    newest = session.wait_round(0, 0.0)
    announced = None if newest is None else with_all_members(session, read_round(*newest))
    records = tuple(read_records(values, warn))
    return cursor, Elected(epoch, announced, records, max(newest_seen, newest[0] if newest else 0), outcome)


def await_records(awaited: frozenset[str], until: float, session: Store, own: str = "") -> bool:
    """Return once all of these nodes have published a record here; or then (monotonic clock): they are lost by then,
    but this node, `own`, which is not."""
    missing, cursor = set(awaited), 0
    while missing and ((left_s := until - time.monotonic()) > 0 or own in missing):
        cursor, found = session.wait_nodes(cursor, left_s if left_s > 0 else OWN_RECORD_S)
        missing -= found.keys()
    return not missing


def _recorded_outcome(job: bytes, stored: bytes) -> Outcome | None:
    """How the job ended, by its stored record; None while it runs. Raises as `read_state`."""
    try:
        now, ours = jobs.decode_job(stored), jobs.decode_job(job)
    except ForeignBytes as error:
        raise StoreForeign(
            f"the job's record in the store cannot be read: {error}; another program writes to this store"
        ) from error
    if now.incarnation != ours.incarnation:
        raise StoreError(
            f"this job (incarnation {ours.incarnation} of its run id) has ended, "
            f"and incarnation {now.incarnation} uses the id now: restart this node to join it"
        )
    return now.outcome


def read_round(version: int, value: bytes) -> Round:
    """The announcement in these bytes. Raises StoreForeign if they do not decode: the coordinator does not repeat it,
    so a node that ignored it would wait for ever."""
    try:
        return codec.decode_round(value)
    except ForeignBytes as error:
        raise StoreForeign(
            f"the announcement in the store's key round/{version} cannot be read: {error}; "
            "another program writes to this store: restart the job on another port"
        ) from error


def with_all_members(session: Store, announcement: Round) -> Round:
    """The announcement with all members, from their pages where they are on pages. Raises StoreForeign if one of these
    is missing or cannot be read, StoreError as `Store`."""
    crowd = announcement.crowd
    if crowd is None:
        return announcement
    names = member_pages.all_pages(crowd)
    values = session.read_values(names)
    return member_pages.whole(announcement, [read_page(name, values.get(name, b"")) for name in names])


def read_page(name: str, value: bytes) -> member_pages.Page:
    """The page of members in these bytes, empty where there is none. Raises StoreForeign if they do not decode."""
    try:
        return member_pages.decode_page(value)
    except ForeignBytes as error:
        raise StoreForeign(
            f"the members of a round in the store's key value/{name} cannot be read: {error}; "
            "another program writes to this store: restart the job on another port"
        ) from error


def read_records(values: Mapping[str, bytes], warn: Warn) -> list[NodeRecord]:
    """The node records in these bytes. Those that cannot be read are left out, with a warning."""
    found: list[NodeRecord] = []
    for node, value in values.items():
        try:
            record = codec.decode_node(value)
        except ForeignBytes as error:
            warn(f"the record of node {node[:80]!r} in the store cannot be read and is ignored: {error}")
            continue
        if record.node == node:
            found.append(record)
        else:
            warn(f"the record of node {node[:80]!r} in the store names node {record.node[:80]!r} and is ignored")
    return found


class OwnPlace:
    """Reads the page of members that this node is on, once for each membership. Used by one thread."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._held: tuple[str, member_pages.Page] | None = None
        """Its name and the page that was read last."""
        self._missed = 0
        """The last version whose page was missing."""

    def read(self, announced: Round, session: Store) -> Round | None:
        """The announcement with the members of this node's page. None: the page is gone, as happens once several newer
        memberships were announced: the newest announcement is to be read again. Raises StoreForeign if it is still
        missing then, StoreError as `Store`."""
        crowd = announced.crowd
        if crowd is None:
            return announced
        name = member_pages.own_page(crowd, self._node)
        if self._held is None or self._held[0] != name:
            value = session.read_values([name]).get(name, b"")
            if not value and announced.version != self._missed:
                self._missed = announced.version
                return None
            self._held = name, read_page(name, value)
        return member_pages.with_page(announced, crowd, self._held[1])
