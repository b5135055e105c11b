"""Joining a job: its record is created, or compared with what this node was asked for, which may refuse the node.

The record is written before anything else of a node, so a node that is refused has changed nothing in the store.
"""

from __future__ import annotations

from dataclasses import replace

from ..codec.fields import ForeignBytes, OtherProtocol
from ..codec.job import JobRecord, decode_job, encode_job
from ..store import OtherJob, OtherVersion, Store, StoreForeign

SHOWN_CHARS = 300
"""How much of a command a refusal shows."""


def join(store: Store, run_id: str, mine: JobRecord) -> bytes:
    """Create the job with the record `mine`, or join the one that has the run id already; returns its record as it is
    stored, and sets the store to its incarnation. Where that job has ended and the store outlives jobs, the id is free,
    and the next incarnation begins; elsewhere only a host that is about to go holds such a record, and says so.

    Raises OtherJob or OtherVersion if this node does not belong to it, StoreForeign if its record is not ours.
    """
    holds = store.write_job(encode_job(mine))
    while True:
        found = _read(holds, run_id)
        if found.outcome is None or not store.outlives_jobs:
            break
        following = encode_job(replace(mine, incarnation=found.incarnation + 1))
        # Somebody faster may have begun it, so what is there then is looked at like any other.
        holds = store.write_job(following, over=holds)
    if found.spec_hash != mine.spec_hash:
        raise OtherJob(_refusal(run_id, found, mine))
    store.use_incarnation(found.incarnation)
    return holds


def _read(data: bytes, run_id: str) -> JobRecord:
    try:
        return decode_job(data)
    except OtherProtocol as error:
        raise OtherVersion(f"run id {run_id!r} is taken: {error}, or choose another --rdzv-id") from error
    except ForeignBytes as error:
        raise StoreForeign(
            f"the store's record of job {run_id!r} is not ours: {error}; "
            "somebody else writes to this store: start the job anew on another port"
        ) from error


def _refusal(run_id: str, there: JobRecord, here: JobRecord) -> str:
    begun = f"begun by {there.name} at {there.at}" + (f", {there.outcome.value}" if there.outcome else "")
    return (
        f"run id {run_id!r} is taken by a job that differs in {' and '.join(_differences(there, here))}: "
        f"it runs {_shown(there)} ({begun}), and this node was asked for {_shown(here)}; "
        "ask for the same on every node, or choose another --rdzv-id"
    )


def _differences(there: JobRecord, here: JobRecord) -> list[str]:
    fields = (
        ("--nnodes", (there.min_nodes, there.max_nodes), (here.min_nodes, here.max_nodes)),
        ("--nproc-per-node", there.nproc, here.nproc),
        ("its command", there.command, here.command),
    )
    # Texts are cut, so what differs may not be seen in them.
    return [name for name, ours, theirs in fields if ours != theirs] or ["its command"]


def _shown(record: JobRecord) -> str:
    low, high = record.min_nodes, record.max_nodes
    nodes = str(low) if low == high else f"{low}:{high}"
    command = " ".join(record.command.split())
    if len(command) > SHOWN_CHARS:
        command = command[: SHOWN_CHARS - 1] + "…"
    nproc = "" if record.nproc == "number" else f" --nproc-per-node {record.nproc}"
    return f"`--nnodes {nodes}{nproc} {command}`"
