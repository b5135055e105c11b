"""Joining a job: create its record, or compare it with this node's spec and refuse the node if they differ.

A node writes the job's record before anything else, so a node that is refused has changed nothing in the store.
"""

from __future__ import annotations

from dataclasses import replace

from ..codec.fields import ForeignBytes, ProtocolMismatch
from ..codec.job import JobRecord, decode_job, encode_job
from ..store import JobMismatch, Store, StoreForeign, VersionMismatch

MAX_COMMAND_CHARS = 300
"""Characters of a command that a refusal quotes."""


def join(store: Store, run_id: str, mine: JobRecord) -> bytes:
    """Create the job with the record `mine`, or join the job that has the run id already. Returns the stored record and
    sets the store to its incarnation. If that job has ended and the store outlives jobs, the id is free and the next
    incarnation begins. In other stores the record of an ended job means that the host is about to exit; it is returned.

    Raises JobMismatch or VersionMismatch if this node is not part of that job, StoreForeign if its record cannot be
    read.
    """
    stored = store.write_job(encode_job(mine))
    while True:
        found = _read(stored, run_id)
        if found.outcome is None or not store.outlives_jobs:
            break
        following = encode_job(replace(mine, incarnation=found.incarnation + 1))
        # Another node may have written first, so the record returned is checked as well.
        stored = store.write_job(following, over=stored)
    if found.spec_hash != mine.spec_hash:
        raise JobMismatch(_refusal(run_id, found, mine))
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


def _refusal(run_id: str, there: JobRecord, here: JobRecord) -> str:
    started = f"started by {there.name} at {there.at}" + (f", {there.outcome.value}" if there.outcome else "")
    return (
        f"run id {run_id!r} is taken by a job that differs in {' and '.join(_differences(there, here))}: "
        f"it runs {_summary(there)} ({started}), and this node was asked for {_summary(here)}; "
        "use the same on every node, or choose another --rdzv-id"
    )


def _differences(there: JobRecord, here: JobRecord) -> list[str]:
    fields = (
        ("--nnodes", (there.min_nodes, there.max_nodes), (here.min_nodes, here.max_nodes)),
        ("--nproc-per-node", there.nproc, here.nproc),
        ("its command", there.command, here.command),
    )
    # Commands are cut in the record, so two that differ may look equal.
    return [name for name, ours, theirs in fields if ours != theirs] or ["its command"]


def _summary(record: JobRecord) -> str:
    low, high = record.min_nodes, record.max_nodes
    nodes = str(low) if low == high else f"{low}:{high}"
    command = " ".join(record.command.split())
    if len(command) > MAX_COMMAND_CHARS:
        command = command[: MAX_COMMAND_CHARS - 1] + "…"
    nproc = "" if record.nproc == "number" else f" --nproc-per-node {record.nproc}"
    return f"`--nnodes {nodes}{nproc} {command}`"
