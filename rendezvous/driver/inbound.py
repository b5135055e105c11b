"""Reading what others wrote into the store: any bytes at all, of which only what is ours counts."""

from __future__ import annotations

from collections.abc import Mapping

from ..codec import job as jobs
from ..codec import records as codec
from ..codec.fields import ForeignBytes
from ..coordinator.events import Elected
from ..records import NodeRecord, Outcome, Round
from ..store import Store, StoreError, StoreForeign
from .listener import Listener


def look_around(epoch: int, job: bytes, seen: int, listener: Listener, session: Store) -> tuple[int, Elected]:
    """What a coordinator that was just elected finds, and the cursor up to which it read the records. `job`: the job's
    record when we joined, `seen`: the newest version that we have seen.

    Raises StoreForeign if the newest announcement is none of ours, StoreError if the run id is another job's by now."""
    outcome = _outcome(job, session.write_job(job))
    values: dict[str, bytes] = {}
    cursor, more = session.wait_nodes(0, 0.0)
    while more:
        values.update(more)
        cursor, more = session.wait_nodes(cursor, 0.0)
    newest = session.wait_round(0, 0.0)
    word = None if newest is None else read_round(*newest)
    records = tuple(read_records(values, listener))
    return cursor, Elected(epoch, word, records, max(seen, newest[0] if newest else 0), outcome)


def _outcome(job: bytes, holds: bytes) -> Outcome | None:
    """How the job ended, if it has."""
    try:
        now, ours = jobs.decode_job(holds), jobs.decode_job(job)
    except ForeignBytes as error:
        raise StoreForeign(f"the job's record in the store is not ours: {error}; somebody else writes there") from error
    if now.incarnation != ours.incarnation:
        raise StoreError(
            f"this job (incarnation {ours.incarnation} of its run id) has ended, "
            f"and incarnation {now.incarnation} has the id: start this node anew to take part in that"
        )
    return now.outcome


def read_round(version: int, value: bytes) -> Round:
    """The announcement in these bytes. Raises StoreForeign if it is none: the coordinator never says it again, so who
    ignored it would wait for ever."""
    try:
        return codec.decode_round(value)
    except ForeignBytes as error:
        raise StoreForeign(
            f"the store's key round/{version} holds no announcement of ours: {error}; "
            "somebody else writes to this store: start the job anew on another port"
        ) from error


def read_records(values: Mapping[str, bytes], listener: Listener) -> list[NodeRecord]:
    """The records in these bytes; what is not ours is told of and left out."""
    found: list[NodeRecord] = []
    for node, value in values.items():
        try:
            record = codec.decode_node(value)
        except ForeignBytes as error:
            listener.strange_bytes(f"the record of node {node[:80]!r} in the store is not ours and is ignored: {error}")
            continue
        if record.node == node:
            found.append(record)
        else:
            listener.strange_bytes(f"the record under node {node[:80]!r} speaks of {record.node[:80]!r} and is ignored")
    return found
