"""The record of a job: what it holds, and its bytes. Created once for each run id; `driver/join.py` compares it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ...proto import elastic_pb2 as wire
from ..records import JobSpec, Outcome
from . import fields
from . import records as codec
from .digest import sha256

MAX_JOB_BYTES = 32 * 1024
"""A record is some 200 bytes and the command's text, which is cut at `fields.MAX_TEXT_CHARS`."""
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


def with_outcome(record: bytes, outcome: Outcome) -> bytes:
    """The stored record `record`, saying how the job ended."""
    return encode_job(replace(decode_job(record), outcome=outcome))
