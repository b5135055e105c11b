"""The record of a job and its encoding. Created once for each run id; `driver/join.py` compares it with a node's."""

from __future__ import annotations

import os
import time

from ...proto import wire
from ...proto.frozen import dataclass, replace
from ..records import JobSpec, Outcome, Survivor
from . import fields
from . import records as codec
from .command import outline
from .digest import sha256

MAX_JOB_BYTES = 32 * 1024
"""A record takes some 200 bytes and the command's outline, which is cut at `fields.MAX_TEXT_CHARS`."""
SALT_BYTES = 16
SECRET_BYTES = 32
JOB_MAGIC = 0x316A4145


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The job that has a run id. Changes only when that job ends, and when the next job with the id begins."""

    digest: bytes
    """A salt, and SHA-256 over it and the whole `JobSpec`. The parts of the spec below are for messages."""
    command: str = ""
    """Outline of the command (`command.py`), quoted as for a shell."""
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
    """Counts the jobs with this id in this store, from 1. Each sees only its own nodes and announcements."""
    outcome: Outcome | None = None
    """How the job ended; None while it runs."""
    secret: bytes = b""
    """By which agents know each other when they ask; empty: they do not ask."""
    lease_s: float = 0.0
    """As `JobSpec.lease_s`."""


def digest(spec: JobSpec, salt: bytes) -> bytes:
    """The salt, and SHA-256 over it and all parts of the spec, each after its length, so that no two specs give the
    same bytes."""
    nodes = (str(spec.min_nodes), str(spec.max_nodes), spec.nproc, repr(spec.lease_s))
    survivor = (f"survivor={spec.survivor.value}",) if spec.survivor is not Survivor.WAIT else ()
    parts = (spec.run_id, *nodes, *survivor, *spec.command)
    raw = [part.encode("utf-8", "surrogatepass") for part in parts]
    return salt + sha256(salt + b"".join(len(part).to_bytes(8, "big") + part for part in raw)).digest()


def new_record(spec: JobSpec, node: str, name: str, salt: bytes = b"") -> JobRecord:
    """The record that this node creates if it is the first. `node`: its identity; `name`: the same for people; `salt`:
    a random one if none is given."""
    from shlex import join

    salt = salt or os.urandom(SALT_BYTES)
    return JobRecord(
        digest=digest(spec, salt),
        command=join(outline(spec.command, salt)),
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        nproc=spec.nproc,
        node=node,
        name=name,
        at=time.strftime("%Y-%m-%d %H:%M:%S"),
        secret=os.urandom(SECRET_BYTES) if spec.lease_s else b"",
        lease_s=spec.lease_s,
    )


def same_job(record: JobRecord, spec: JobSpec) -> bool:
    """Whether the record is that of a job with this spec."""
    return record.digest == digest(spec, record.digest[:SALT_BYTES])


def encode_job(record: JobRecord) -> bytes:
    """The record as bytes. A long command is cut. Raises ForeignBytes for what `decode_job` would refuse."""
    message = wire.JobRecord(
        magic=JOB_MAGIC,
        version=fields.PROTOCOL_VERSION,
        spec_hash=record.digest,
        command=fields.cut(record.command),
        min_nodes=fields.checked("min_nodes", record.min_nodes),
        max_nodes=fields.checked("max_nodes", record.max_nodes),
        nproc=fields.utf8(record.nproc),
        node=fields.utf8(record.node),
        name=fields.utf8(record.name),
        at=fields.utf8(record.at),
        incarnation=fields.checked("incarnation", record.incarnation, least=1),
        secret=fields.bounded("secret", record.secret, SECRET_BYTES),
        lease_s=fields.seconds("lease_s", record.lease_s),
    )
    if record.outcome is not None:
        message.outcome = codec.OUTCOME_CODES[record.outcome]  # type: ignore[assignment]
    return fields.bounded("job record", message.SerializeToString(), MAX_JOB_BYTES)


def decode_job(data: bytes) -> JobRecord:
    """The record in these bytes. Raises ProtocolMismatch for a record of another protocol version, ForeignBytes for
    anything else."""
    message = wire.JobRecord()
    fields.parse("job record", message, data, MAX_JOB_BYTES)
    fields.check_head("job record", message.magic, JOB_MAGIC, message.version)
    return JobRecord(
        digest=message.spec_hash,
        command=message.command,
        min_nodes=fields.checked("min_nodes", message.min_nodes),
        max_nodes=fields.checked("max_nodes", message.max_nodes),
        nproc=message.nproc,
        node=message.node,
        name=message.name,
        at=message.at,
        incarnation=fields.checked("incarnation", message.incarnation, least=1),
        outcome=fields.enum_member("outcome", codec.OUTCOMES, message.outcome) if message.outcome else None,
        secret=fields.bounded("secret", message.secret, SECRET_BYTES),
        lease_s=fields.seconds("lease_s", message.lease_s),
    )


def with_outcome(record: bytes, outcome: Outcome) -> bytes:
    """The encoded record `record` with the outcome added."""
    return encode_job(replace(decode_job(record), outcome=outcome))
