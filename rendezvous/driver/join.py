"""Joining a job: create its record, or compare it with this node's spec and refuse the node if they differ.

A node writes the job's record before anything else, so a node that is refused has changed nothing in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote, split

from ...proto.frozen import replace
from ..codec import command
from ..codec.fields import ForeignBytes, ProtocolMismatch, cut
from ..codec.job import SALT_BYTES, JobRecord, decode_job, encode_job, new_record, same_job
from ..records import JobSpec, Survivor
from ..store import JobMismatch, Store, StoreForeign, VersionMismatch

MAX_COMMAND_CHARS = 300
"""Characters of a command that a refusal quotes."""
MOST_NAMES = 8
"""Names of differing arguments that a refusal lists."""


def join(store: Store, spec: JobSpec, node: str, name: str) -> bytes:
    """Create the job with this spec, or join the one that has its run id already. Returns the stored record and sets
    the store to its incarnation. If that job has ended and the store outlives jobs, the id is free and the next
    incarnation begins. In other stores the record of an ended job means that the host is about to exit; it is returned.

    `node`: identity of this agent process; `name`: the same for people.

    Raises JobMismatch or VersionMismatch if this node is not part of that job, StoreForeign if its record cannot be
    read.
    """
    mine = new_record(spec, node, name)
    stored = store.write_job(encode_job(mine))
    while True:
        found = _read(stored, spec.run_id)
        if found.outcome is None or not store.outlives_jobs:
            break
        following = encode_job(replace(mine, incarnation=found.incarnation + 1))
        # Another node may have written first, so the record returned is checked as well.
        stored = store.write_job(following, over=stored)
    if not same_job(found, spec):
        raise JobMismatch(_refusal(found, spec))
    store.use_incarnation(found.incarnation)
    return stored


def _read(data: bytes, run_id: str) -> JobRecord:
    try:
        return decode_job(data)
    except ProtocolMismatch as error:
        raise VersionMismatch(f"run id {run_id!r} is taken: {error}, or choose another --rdzv-id") from error
    except ForeignBytes as error:
        raise StoreForeign(
            f"the store's record of job {run_id!r} cannot be read: {error}; "
            "another program writes to this store: restart the job on another port"
        ) from error


def _refusal(there: JobRecord, spec: JobSpec) -> str:
    started = f"started by {there.name} at {there.at}" + (f", {there.outcome.value}" if there.outcome else "")
    theirs = _words(there)
    shown = command.readable(theirs)
    return (
        f"run id {spec.run_id!r} is taken by a job that differs in {' and '.join(_differences(there, theirs, spec))}: "
        f"it runs {_shown(there.min_nodes, there.max_nodes, there.nproc, shown)}{_lease(there, spec)} ({started})"
        f"{', where … stands for a value' if '…' in shown else ''}, and this node was asked for "
        f"{_shown(spec.min_nodes, spec.max_nodes, spec.nproc, _quoted(command.masked(spec.command)))}; "
        "use the same on every node, or choose another --rdzv-id"
    )


def _lease(there: JobRecord, spec: JobSpec) -> str:
    """Both leases, if they differ."""
    return f" with lease={there.lease_s:g}, here {spec.lease_s:g}," if there.lease_s != spec.lease_s else ""


def _quoted(words: Sequence[str]) -> str:
    return " ".join(word if command.MASKED in word else quote(word) for word in words)


def _words(record: JobRecord) -> list[str]:
    try:
        return split(record.command)
    except ValueError:  # cut within a quotation, or written by another program
        return record.command.split()


def _differences(there: JobRecord, theirs: list[str], spec: JobSpec) -> list[str]:
    fields = (
        ("--nnodes", (there.min_nodes, there.max_nodes), (spec.min_nodes, spec.max_nodes)),
        ("--nproc-per-node", there.nproc, spec.nproc),
        ("--rdzv-conf lease", there.lease_s, spec.lease_s),
    )
    found = [name for name, left, right in fields if left != right]
    if any(same_job(there, replace(spec, survivor=other)) for other in Survivor if other is not spec.survivor):
        found.append("--rdzv-conf survivor")
    here = new_record(spec, "", "", there.digest[:SALT_BYTES])
    names = command.differing(_words(replace(here, command=cut(here.command))), theirs)
    if names:
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        found.append(f"its command ({', '.join(names[:MOST_NAMES])}{more})")
    # Commands are cut in the record, and the digests of values are short: two that differ may look equal.
    return found or ["its command"]


def _shown(low: int, high: int, nproc: str, text: str) -> str:
    nodes = str(low) if low == high else f"{low}:{high}"
    text = " ".join(text.split())
    if len(text) > MAX_COMMAND_CHARS:
        text = text[: MAX_COMMAND_CHARS - 1] + "…"
    return f"`--nnodes {nodes}{'' if nproc == 'number' else f' --nproc-per-node {nproc}'} {text}`"
