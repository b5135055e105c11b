"""Node records and announcements to bytes and back: protobuf (`proto/elastic.proto`), of bounded size.

Other programs may have written to a shared store, so `decode_*` turns any bytes into a record or `ForeignBytes`, and
raises nothing else. `encode_*` refuses what `decode_*` would refuse. The job's record is in `job.py`.

Imports protobuf, which a single-node agent never loads: it exchanges records without encoding them.
"""

from __future__ import annotations

from ...proto import wire
from ..agreements import MAX_REQUESTS
from ..election.electorate import VOTERS
from ..failures import MAX_REPORTED_EXITS
from ..records import MAX_ENDED_HERE, Crowd, Member, NodeRecord, NodeState, Outcome, Round, RoundPhase, Witness
from . import fields
from .agreements import (
    agreement_from_message,
    agreement_to_message,
    answer_from_message,
    answer_to_message,
    request_from_message,
    request_to_message,
    served_from_messages,
    served_to_messages,
)
from .failures import ending_from_message, ending_to_message, failure_from_message, failure_to_message
from .fields import bounded, check_head, checked, cut, enum_codes, enum_member, parse, seconds, utf8
from .limits import MAX_DIGEST_BYTES, MAX_ROUND_BYTES

MAX_NODE_BYTES = 256 * 1024
"""A node's record takes some 300 bytes, and at most `MAX_REPORTED_EXITS` exits of workers with their texts."""
MAX_WITNESSES = 3
"""Of a round."""
NODE_MAGIC = 0x316E4145
ROUND_MAGIC = 0x31724145


# Members are numbered in elastic.proto as they are ordered here; test_codec.py compares names and numbers.
STATE_CODES = enum_codes(NodeState)
PHASE_CODES = enum_codes(RoundPhase)
OUTCOME_CODES = enum_codes(Outcome)
_STATES = {code: state for state, code in STATE_CODES.items()}
_PHASES = {code: phase for phase, code in PHASE_CODES.items()}
OUTCOMES = {code: outcome for outcome, code in OUTCOME_CODES.items()}


def encode_node(record: NodeRecord) -> bytes:
    """The node record as bytes. Long texts for people are cut.

    Raises ForeignBytes for what `decode_*` would refuse: a number out of range, or more than `MAX_NODE_BYTES`.
    """
    message = wire.NodeRecord(
        magic=NODE_MAGIC,
        version=fields.PROTOCOL_VERSION,
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
        deaths=[failure_to_message(death) for death in record.deaths[:MAX_REPORTED_EXITS]],
        charge_local=record.charge_local,
        all_exits_reported=record.all_exits_reported,
        grace_s=seconds("grace_s", record.grace_s),
        requests=[request_to_message(request) for request in record.requests[:MAX_REQUESTS]],
        control=utf8(record.control),
        witness_port=checked("witness_port", record.witness_port, limit=65535),
        fenced_round=checked("fenced_round", record.fenced_round),
        permitted_round=checked("permitted_round", record.permitted_round),
        alone_s=seconds("alone_s", record.alone_s),
        presence=utf8(record.presence),
        ended_here=[utf8(each) for each in record.ended_here[:MAX_ENDED_HERE]],
        store=utf8(record.store),
        vote_port=checked("vote_port", record.vote_port, limit=65535),
    )
    # The stubs type enum fields by name; the number is what is stored.
    message.state = STATE_CODES[record.state]  # type: ignore[assignment]
    if record.preferred_rank is not None:
        message.preferred_rank = checked("preferred_rank", record.preferred_rank)
    if record.failure is not None:
        message.failure.CopyFrom(failure_to_message(record.failure))
    if record.answer is not None:
        message.answer.CopyFrom(answer_to_message(record.answer))
    return bounded("node record", message.SerializeToString(), MAX_NODE_BYTES)


def decode_node(data: bytes) -> NodeRecord:
    """The node record in these bytes. Raises ForeignBytes if they hold anything else."""
    message = wire.NodeRecord()
    parse("node record", message, data, MAX_NODE_BYTES)
    check_head("node record", message.magic, NODE_MAGIC, message.version)
    return NodeRecord(
        node=message.node,
        name=message.name,
        state=enum_member("state", _STATES, message.state),
        seq=checked("seq", message.seq),
        round=checked("round", message.round),
        nproc=checked("nproc", message.nproc),
        role=message.role,
        addr=message.addr,
        port=checked("port", message.port, limit=65535),
        preferred_rank=_preferred_rank(message),
        restarts_left=checked("restarts_left", message.restarts_left),
        failure=failure_from_message(message.failure) if message.HasField("failure") else None,
        finished=message.finished,
        because=message.because,
        min_nodes=checked("min_nodes", message.min_nodes),
        max_nodes=checked("max_nodes", message.max_nodes),
        deaths=tuple(failure_from_message(death) for death in message.deaths[:MAX_REPORTED_EXITS]),
        charge_local=message.charge_local,
        all_exits_reported=message.all_exits_reported,
        grace_s=seconds("grace_s", message.grace_s),
        requests=tuple(request_from_message(request) for request in message.requests[:MAX_REQUESTS]),
        answer=answer_from_message(message.answer) if message.HasField("answer") else None,
        control=message.control,
        witness_port=checked("witness_port", message.witness_port, limit=65535),
        fenced_round=checked("fenced_round", message.fenced_round),
        permitted_round=checked("permitted_round", message.permitted_round),
        alone_s=seconds("alone_s", message.alone_s),
        presence=message.presence,
        ended_here=tuple(message.ended_here[:MAX_ENDED_HERE]),
        store=message.store,
        vote_port=checked("vote_port", message.vote_port, limit=65535),
    )


def _preferred_rank(message: wire.NodeRecord) -> int | None:
    return checked("preferred_rank", message.preferred_rank) if message.HasField("preferred_rank") else None


def encode_round(record: Round) -> bytes:
    """The announcement as bytes. Long texts for people are cut.

    Raises ForeignBytes for what `decode_*` would refuse: a number out of range, or more than `MAX_ROUND_BYTES`.
    """
    message = wire.Round(
        magic=ROUND_MAGIC,
        version=fields.PROTOCOL_VERSION,
        record=checked("version", record.version),
        epoch=checked("epoch", record.epoch),
        number=checked("number", record.number),
        because=cut(record.because),
        members=[member_to_message(member) for member in record.members],
        master_addr=utf8(record.master_addr),
        master_port=checked("master_port", record.master_port, limit=65535),
        restarts=checked("restarts", record.restarts),
        finishing=record.finishing,
        hold=record.hold,
        served=served_to_messages(record.served),
        witnesses=[_witness_to_message(witness) for witness in record.witnesses[:MAX_WITNESSES]],
        coordinator=utf8(record.coordinator),
        voters=[_witness_to_message(voter) for voter in record.voters[:VOTERS]],
        before=[utf8(node) for node in record.before[:VOTERS]],
        finished=[utf8(node) for node in record.finished],
    )
    message.phase = PHASE_CODES[record.phase]  # type: ignore[assignment]
    if record.ended is not None:
        message.ended.CopyFrom(ending_to_message(record.ended))
    if record.unsettled is not None:
        message.unsettled.CopyFrom(ending_to_message(record.unsettled))
    if record.outcome is not None:
        message.outcome = OUTCOME_CODES[record.outcome]  # type: ignore[assignment]
    if record.agreement is not None:
        message.agreement.CopyFrom(agreement_to_message(record.agreement))
    if record.crowd is not None:
        message.crowd.CopyFrom(_crowd_to_message(record.crowd))
    if record.host is not None:
        message.host.CopyFrom(_witness_to_message(record.host))
    return bounded("round", message.SerializeToString(), MAX_ROUND_BYTES)


def decode_round(data: bytes) -> Round:
    """The announcement in these bytes. Raises ForeignBytes if they hold anything else."""
    message = wire.Round()
    parse("round", message, data, MAX_ROUND_BYTES)
    check_head("round", message.magic, ROUND_MAGIC, message.version)
    return Round(
        version=checked("version", message.record),
        epoch=checked("epoch", message.epoch),
        number=checked("number", message.number),
        phase=enum_member("phase", _PHASES, message.phase),
        because=message.because,
        members=tuple(member_from_message(member) for member in message.members),
        master_addr=message.master_addr,
        master_port=checked("master_port", message.master_port, limit=65535),
        ended=ending_from_message(message.ended) if message.HasField("ended") else None,
        unsettled=ending_from_message(message.unsettled) if message.HasField("unsettled") else None,
        restarts=checked("restarts", message.restarts),
        finishing=message.finishing,
        hold=message.hold,
        outcome=enum_member("outcome", OUTCOMES, message.outcome) if message.outcome else None,
        agreement=agreement_from_message(message.agreement) if message.HasField("agreement") else None,
        served=served_from_messages(message.served),
        crowd=_crowd_from_message(message.crowd) if message.HasField("crowd") else None,
        witnesses=tuple(_witness_from_message(witness) for witness in message.witnesses[:MAX_WITNESSES]),
        coordinator=message.coordinator,
        voters=tuple(_witness_from_message(voter) for voter in message.voters[:VOTERS]),
        before=tuple(message.before[:VOTERS]),
        host=_witness_from_message(message.host) if message.HasField("host") else None,
        finished=tuple(message.finished),
    )


def _witness_to_message(witness: Witness) -> wire.Witness:
    port = checked("port", witness.port, limit=65535)
    return wire.Witness(node=utf8(witness.node), addr=utf8(witness.addr), port=port, store=utf8(witness.store))


def _witness_from_message(message: wire.Witness) -> Witness:
    return Witness(message.node, message.addr, checked("port", message.port, limit=65535), message.store)


def _crowd_to_message(crowd: Crowd) -> wire.Crowd:
    return wire.Crowd(
        nodes=checked("nodes", crowd.nodes),
        workers=checked("workers", crowd.workers),
        pages=checked("pages", crowd.pages, least=1),
        digest=bytes.fromhex(crowd.digest),
    )


def _crowd_from_message(message: wire.Crowd) -> Crowd:
    return Crowd(
        nodes=checked("nodes", message.nodes),
        workers=checked("workers", message.workers),
        pages=checked("pages", message.pages, least=1),
        digest=bounded("digest", message.digest, MAX_DIGEST_BYTES).hex(),
    )


def member_to_message(member: Member) -> wire.Member:
    return wire.Member(
        node=utf8(member.node),
        name=utf8(member.name),
        group_rank=checked("group_rank", member.group_rank),
        rank_offset=checked("rank_offset", member.rank_offset),
        nproc=checked("nproc", member.nproc),
        role=utf8(member.role),
        role_offset=checked("role_offset", member.role_offset),
        control=utf8(member.control),
    )


def member_from_message(message: wire.Member) -> Member:
    return Member(
        node=message.node,
        name=message.name,
        group_rank=checked("group_rank", message.group_rank),
        rank_offset=checked("rank_offset", message.rank_offset),
        nproc=checked("nproc", message.nproc),
        role=message.role,
        role_offset=checked("role_offset", message.role_offset),
        control=message.control,
    )
