"""One job, one record: making it, reading it, and refusing a node that was asked for something else.

The record is written before anything else of a node, so a node that is refused has disturbed nobody.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ...proto import elastic_pb2 as wire
from ..records import JobSpec, Outcome
from ..store import OtherJob, OtherVersion, Store, StoreForeign
from . import fields
from . import records as codec
from .digest import sha256
from .fields import ForeignBytes, OtherProtocol

MAX_JOB_BYTES = 32 * 1024
"""A record is some 200 bytes and the command's text, which is cut at `fields.MAX_TEXT_CHARS`."""
SHOWN_CHARS = 300
"""How much of a command a refusal shows."""

JOB_MAGIC = 0x316A4145


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Whose run id this is. Created once; changes only when the job ends, and when another takes its id after that."""

    spec_hash: bytes
    """SHA-256 over the whole `JobSpec`. What follows of the spec is for people."""
    command: str = ""
    min_nodes: int = 1
    max_nodes: int = 1
    nproc: str = "number"
    node: str = ""
    """Identity of the agent process that created it."""
    name: str = ""
    """The same for people."""
    at: str = ""
    """Wall-clock time there, for people only; never compared."""
    incarnation: int = 1
    """How many jobs this id has had in this store, this one included. Each sees only its own nodes and rounds."""
    outcome: Outcome | None = None
    """How it ended; None while it goes on."""


def spec_hash(spec: JobSpec) -> bytes:
    """SHA-256 over all of the spec, each part with its length, so that no two specs share their bytes."""
    parts = (spec.run_id, str(spec.min_nodes), str(spec.max_nodes), spec.nproc, *spec.command)
    raw = [part.encode("utf-8", "surrogatepass") for part in parts]
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in raw)).digest()


def record_of(spec: JobSpec, node: str, name: str) -> JobRecord:
    """The record that this node would create now. `node` is its identity, `name` the same for people."""
    from shlex import quote

    return JobRecord(
        spec_hash=spec_hash(spec),
        command=" ".join(quote(word) for word in spec.command),
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        nproc=spec.nproc,
        node=node,
        name=name,
        at=time.strftime("%Y-%m-%d %H:%M:%S"),
    )


def encode_job(record: JobRecord) -> bytes:
    """The record as bytes. A long command is cut. Raises ForeignBytes if it would not decode."""
    message = wire.JobRecord(
        magic=JOB_MAGIC,
        version=fields.PROTOCOL_VERSION,
        spec_hash=record.spec_hash,
        command=fields.cut(record.command),
        min_nodes=fields.checked("min_nodes", record.min_nodes),
        max_nodes=fields.checked("max_nodes", record.max_nodes),
        nproc=fields.utf8(record.nproc),
        node=fields.utf8(record.node),
        name=fields.utf8(record.name),
        at=fields.utf8(record.at),
        incarnation=fields.checked("incarnation", record.incarnation, least=1),
    )
    if record.outcome is not None:
        message.outcome = codec.OUTCOME_CODES[record.outcome]  # type: ignore[assignment]
    return fields.bounded("job record", message.SerializeToString(), MAX_JOB_BYTES)


def decode_job(data: bytes) -> JobRecord:
    """The record in these bytes. Raises OtherProtocol if it is of another protocol version, ForeignBytes for anything
    else that is none."""
    message = wire.JobRecord()
    fields.parse("job record", message, data, MAX_JOB_BYTES)
    fields.check_head("job record", message.magic, JOB_MAGIC, message.version)
    return JobRecord(
        spec_hash=message.spec_hash,
        command=message.command,
        min_nodes=fields.checked("min_nodes", message.min_nodes),
        max_nodes=fields.checked("max_nodes", message.max_nodes),
        nproc=message.nproc,
        node=message.node,
        name=message.name,
        at=message.at,
        incarnation=fields.checked("incarnation", message.incarnation, least=1),
        outcome=fields.known("outcome", codec.OUTCOMES, message.outcome) if message.outcome else None,
    )


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


def with_outcome(record: bytes, outcome: Outcome) -> bytes:
    """The stored record `record`, saying how the job ended."""
    return encode_job(replace(decode_job(record), outcome=outcome))


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
