"""Records to bytes and back: protobuf (`proto/elastic.proto`), bounded, and total when reading.

Whatever lies in a shared store may have been written by a stranger, so `decode_*` answers any bytes with a record
or with `ForeignBytes`, and with nothing else. `encode_*` refuses what `decode_*` would refuse.

The record of the job itself is in `jobs.py`, in the same manner.

Imports protobuf; a single-machine agent does without, as `memory.py` does not ask for bytes to mean anything.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ..proto import elastic_pb2 as wire
from .records import Ending, EndKind, Member, NodeRecord, NodeState, Outcome, Round, RoundPhase, WorkerFailure

PROTOCOL_VERSION = 1
MAX_NODE_BYTES = 64 * 1024
"""A node's record is some 300 bytes plus two texts of `MAX_TEXT_CHARS`; a coordinator reads thousands of them."""
MAX_ROUND_BYTES = 1024 * 1024
"""A member takes some 150 bytes, so 1 MiB holds about 7,000 nodes; TCPStore's own limit is 8 MiB."""
MAX_TEXT_CHARS = 4096
"""Texts for people (`because`, a failure's `message`) are cut here when written, never refused."""
MAX_NUMBER = 2**53
"""No count reaches it; above, a number is taken for garbage."""

NODE_MAGIC = 0x316E4145
ROUND_MAGIC = 0x31724145


class ForeignBytes(ValueError):
    """These bytes are not a record of ours. One line: which record was expected and what was found."""


class OtherProtocol(ForeignBytes):
    """These bytes are a record of ours in another protocol version. One line that names both."""


E = TypeVar("E", bound=Enum)


def _codes(members: type[E]) -> dict[E, int]:
    return {member: code for code, member in enumerate(members, start=1)}


# Order of definition is the numbering of elastic.proto; tests/test_codec.py compares the names one by one.
STATE_CODES = _codes(NodeState)
PHASE_CODES = _codes(RoundPhase)
OUTCOME_CODES = _codes(Outcome)
END_CODES = _codes(EndKind)
_STATES = {code: state for state, code in STATE_CODES.items()}
_PHASES = {code: phase for phase, code in PHASE_CODES.items()}
OUTCOMES = {code: outcome for outcome, code in OUTCOME_CODES.items()}
_END_KINDS = {code: kind for kind, code in END_CODES.items()}


def encode_node(record: NodeRecord) -> bytes:
    """The record as bytes. Long texts for people are cut.

    Raises ForeignBytes if it would not decode: a number out of range, or over `MAX_NODE_BYTES`.
    """
    message = wire.NodeRecord(
        magic=NODE_MAGIC,
        version=PROTOCOL_VERSION,
        node=utf8(record.node),
        name=utf8(record.name),
        seq=checked("seq", record.seq),
        round=checked("round", record.round),
        nproc=checked("nproc", record.nproc),
        role=utf8(record.role),
        addr=utf8(record.addr),
        port=checked("port", record.port, limit=65535),
        restarts_left=checked("restarts_left", record.restarts_left),
        finished=record.finished,
        because=cut(record.because),
        min_nodes=checked("min_nodes", record.min_nodes),
        max_nodes=checked("max_nodes", record.max_nodes),
    )
    # The enum fields are typed by name in the stubs; what is stored is this number.
    message.state = STATE_CODES[record.state]  # type: ignore[assignment]
    if record.wish is not None:
        message.wish = checked("wish", record.wish)
    if record.failure is not None:
        message.failure.CopyFrom(_failure_out(record.failure))
    return bounded("node record", message.SerializeToString(), MAX_NODE_BYTES)


def decode_node(data: bytes) -> NodeRecord:
    """The record in these bytes. Raises ForeignBytes for anything that is not one."""
    message = wire.NodeRecord()
    parse("node record", message, data, MAX_NODE_BYTES)
    check_head("node record", message.magic, NODE_MAGIC, message.version)
    return NodeRecord(
        node=message.node,
        name=message.name,
        state=known("state", _STATES, message.state),
        seq=checked("seq", message.seq),
        round=checked("round", message.round),
        nproc=checked("nproc", message.nproc),
        role=message.role,
        addr=message.addr,
        port=checked("port", message.port, limit=65535),
        wish=checked("wish", message.wish) if message.HasField("wish") else None,
        restarts_left=checked("restarts_left", message.restarts_left),
        failure=_failure_in(message.failure) if message.HasField("failure") else None,
        finished=message.finished,
        because=message.because,
        min_nodes=checked("min_nodes", message.min_nodes),
        max_nodes=checked("max_nodes", message.max_nodes),
    )


def encode_round(record: Round) -> bytes:
    """The round as bytes. Long texts for people are cut.

    Raises ForeignBytes if it would not decode: a number out of range, or over `MAX_ROUND_BYTES`.
    """
    message = wire.Round(
        magic=ROUND_MAGIC,
        version=PROTOCOL_VERSION,
        record=checked("version", record.version),
        epoch=checked("epoch", record.epoch),
        number=checked("number", record.number),
        because=cut(record.because),
        members=[_member_out(member) for member in record.members],
        master_addr=utf8(record.master_addr),
        master_port=checked("master_port", record.master_port, limit=65535),
        restarts=checked("restarts", record.restarts),
        finishing=record.finishing,
    )
    message.phase = PHASE_CODES[record.phase]  # type: ignore[assignment]
    if record.ended is not None:
        message.ended.CopyFrom(_ending_out(record.ended))
    if record.outcome is not None:
        message.outcome = OUTCOME_CODES[record.outcome]  # type: ignore[assignment]
    return bounded("round", message.SerializeToString(), MAX_ROUND_BYTES)


def decode_round(data: bytes) -> Round:
    """The round in these bytes. Raises ForeignBytes for anything that is not one."""
    message = wire.Round()
    parse("round", message, data, MAX_ROUND_BYTES)
    check_head("round", message.magic, ROUND_MAGIC, message.version)
    return Round(
        version=checked("version", message.record),
        epoch=checked("epoch", message.epoch),
        number=checked("number", message.number),
        phase=known("phase", _PHASES, message.phase),
        because=message.because,
        members=tuple(_member_in(member) for member in message.members),
        master_addr=message.master_addr,
        master_port=checked("master_port", message.master_port, limit=65535),
        ended=_ending_in(message.ended) if message.HasField("ended") else None,
        restarts=checked("restarts", message.restarts),
        finishing=message.finishing,
        outcome=known("outcome", OUTCOMES, message.outcome) if message.outcome else None,
    )


def _member_out(member: Member) -> wire.Member:
    return wire.Member(
        node=utf8(member.node),
        name=utf8(member.name),
        group_rank=checked("group_rank", member.group_rank),
        rank_offset=checked("rank_offset", member.rank_offset),
        nproc=checked("nproc", member.nproc),
        role=utf8(member.role),
        role_offset=checked("role_offset", member.role_offset),
    )


def _member_in(message: wire.Member) -> Member:
    return Member(
        node=message.node,
        name=message.name,
        group_rank=checked("group_rank", message.group_rank),
        rank_offset=checked("rank_offset", message.rank_offset),
        nproc=checked("nproc", message.nproc),
        role=message.role,
        role_offset=checked("role_offset", message.role_offset),
    )


def _ending_out(ending: Ending) -> wire.Ending:
    message = wire.Ending(
        round=checked("ended.round", ending.round), because=cut(ending.because), charged=utf8(ending.charged)
    )
    message.kind = END_CODES[ending.kind]  # type: ignore[assignment]
    if ending.failure is not None:
        message.failure.CopyFrom(_failure_out(ending.failure))
    return message


def _ending_in(message: wire.Ending) -> Ending:
    return Ending(
        round=checked("ended.round", message.round),
        kind=known("ended.kind", _END_KINDS, message.kind),
        because=message.because,
        charged=message.charged,
        failure=_failure_in(message.failure) if message.HasField("failure") else None,
    )


def _failure_out(failure: WorkerFailure) -> wire.WorkerFailure:
    return wire.WorkerFailure(
        node=utf8(failure.node),
        host=utf8(failure.host),
        rank=checked("rank", failure.rank, least=-1),
        local_rank=checked("local_rank", failure.local_rank, least=-1),
        pid=checked("pid", failure.pid),
        exit_code=checked("exit_code", failure.exit_code, least=-MAX_NUMBER),
        message=cut(failure.message),
        error_file=utf8(failure.error_file),
        at=utf8(failure.at),
        startup=failure.startup,
        final=failure.final,
    )


def _failure_in(message: wire.WorkerFailure) -> WorkerFailure:
    return WorkerFailure(
        node=message.node,
        host=message.host,
        rank=checked("rank", message.rank, least=-1),
        local_rank=checked("local_rank", message.local_rank, least=-1),
        pid=checked("pid", message.pid),
        exit_code=checked("exit_code", message.exit_code, least=-MAX_NUMBER),
        message=message.message,
        error_file=message.error_file,
        at=message.at,
        startup=message.startup,
        final=message.final,
    )


def parse(what: str, message: Message, data: bytes, limit: int) -> None:
    """Fill `message` from these bytes. Raises ForeignBytes if they do not parse, or are more than `limit`."""
    bounded(what, data, limit)
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError) as why:  # ValueError: the pure-Python runtime on text that is not UTF-8
        raise ForeignBytes(f"not a {what}: {len(data)} bytes that do not parse ({str(why)[:80]!r})") from None


def check_head(what: str, magic: int, wanted: int, version: int) -> None:
    """Raises ForeignBytes unless the mark is the wanted one, and OtherProtocol unless the version is ours."""
    if magic != wanted:
        raise ForeignBytes(f"not a {what}: its mark is {magic:#x}, not {wanted:#x} (cut short, or somebody else's)")
    if version != PROTOCOL_VERSION:
        raise OtherProtocol(
            f"a {what} of protocol version {version}, and this agent speaks {PROTOCOL_VERSION}: "
            "run the same elastic-agent on every node"
        )


def bounded(what: str, data: bytes, limit: int) -> bytes:
    """The data itself. Raises ForeignBytes if it is longer than `limit` bytes."""
    if len(data) > limit:
        raise ForeignBytes(f"not a {what}: {len(data)} bytes, and the limit is {limit}")
    return data


def checked(field: str, value: int, least: int = 0, limit: int = MAX_NUMBER) -> int:
    """The value itself. Raises ForeignBytes, naming the field, if it is out of range."""
    if not least <= value <= limit:
        raise ForeignBytes(f"field {field} is {value}, outside {least}..{limit}")
    return value


def known(field: str, table: dict[int, E], code: int) -> E:
    """What `code` names. Raises ForeignBytes, naming the field, if it names nothing."""
    member = table.get(code)
    if member is None:
        raise ForeignBytes(f"field {field} is {code}, which names nothing in protocol version {PROTOCOL_VERSION}")
    return member


def utf8(text: str) -> str:
    """The text as protobuf takes it."""
    # Host names and messages may hold undecodable bytes (lone surrogates), which protobuf refuses.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def cut(text: str) -> str:
    """A text for people, no longer than `MAX_TEXT_CHARS`."""
    return utf8(text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…")
