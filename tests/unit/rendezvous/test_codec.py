"""Records are encoded and decoded without change, and any bytes decode to a record or raise ForeignBytes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.proto import elastic_pb2 as wire
from elastic_agent.rendezvous.agreements import MAX_LABEL_BYTES, MAX_REQUESTS, Act, Agreement, Answer, Request
from elastic_agent.rendezvous.codec import failures as failure_codec
from elastic_agent.rendezvous.codec import fields, limits
from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.failures import Ending, EndKind, WorkerFailure
from elastic_agent.rendezvous.records import Member, NodeRecord, NodeState, Outcome, Round, RoundPhase

texts = st.text(max_size=60)
counts = st.integers(0, fields.MAX_NUMBER)
ports = st.integers(0, 65535)
failures = st.builds(
    WorkerFailure,
    node=texts,
    host=texts,
    rank=st.integers(-1, 2**31),
    local_rank=st.integers(-1, 2**31),
    pid=counts,
    exit_code=st.integers(-64, 255),
    message=texts,
    error_file=texts,
    at=texts,
    startup=st.booleans(),
    final=st.booleans(),
)
labels = texts.filter(lambda label: len(label.encode()) <= MAX_LABEL_BYTES)
requests = st.builds(
    Request, number=st.integers(1, fields.MAX_NUMBER), act=st.sampled_from(Act), label=labels, because=texts
)
agreements = st.builds(
    Agreement,
    number=counts,
    act=st.sampled_from(Act),
    label=labels,
    because=texts,
    at=counts,
    over=st.booleans(),
    requests=st.lists(st.tuples(texts, counts), max_size=4).map(tuple),
    round=counts,
)
nodes = st.builds(
    NodeRecord,
    node=texts,
    name=texts,
    state=st.sampled_from(NodeState),
    seq=counts,
    round=counts,
    nproc=counts,
    role=texts,
    addr=texts,
    port=ports,
    preferred_rank=st.none() | counts,
    restarts_left=counts,
    failure=st.none() | failures,
    finished=st.booleans(),
    because=texts,
    min_nodes=counts,
    max_nodes=counts,
    requests=st.lists(requests, max_size=MAX_REQUESTS).map(tuple),
    answer=st.none() | st.builds(Answer, agreement=counts, bound=counts, done=st.booleans()),
    presence=texts,
    ended_here=st.lists(texts, max_size=4).map(tuple),
)
members = st.builds(
    Member,
    node=texts,
    name=texts,
    group_rank=counts,
    rank_offset=counts,
    nproc=counts,
    role=texts,
    role_offset=counts,
)
endings = st.builds(
    Ending,
    round=counts,
    kind=st.sampled_from(EndKind),
    because=texts,
    charged=texts,
    failure=st.none() | failures,
)
rounds = st.builds(
    Round,
    version=counts,
    epoch=counts,
    number=counts,
    phase=st.sampled_from(RoundPhase),
    because=texts,
    members=st.lists(members, max_size=4).map(tuple),
    master_addr=texts,
    master_port=ports,
    ended=st.none() | endings,
    unsettled=st.none() | endings,
    restarts=counts,
    finishing=st.booleans(),
    outcome=st.none() | st.sampled_from(Outcome),
    agreement=st.none() | agreements,
)

A_NODE = NodeRecord(
    "id-1", "host (pid 7)", NodeState.WAITING, seq=3, nproc=2, preferred_rank=0, because="it has just arrived"
)
A_ROUND = Round(
    4, 1, 2, RoundPhase.RUNNING, "two nodes are here", (Member("id-1", "host (pid 7)", 0, 0, 2),), "10.0.0.1", 29
)


@given(nodes)
def test_a_node_record_survives_the_round_trip(record: NodeRecord) -> None:
    """What one node writes is exactly what another reads."""
    assert codec.decode_node(codec.encode_node(record)) == record


@given(rounds)
def test_a_round_survives_the_round_trip(record: Round) -> None:
    """What the coordinator writes is exactly what the nodes read."""
    assert codec.decode_round(codec.encode_round(record)) == record


@given(st.binary(max_size=400))
def test_random_bytes_raise_foreign_bytes_and_nothing_else(data: bytes) -> None:
    """Whatever another program stores is refused in one line."""
    for decode in (codec.decode_node, codec.decode_round):
        with pytest.raises(fields.ForeignBytes) as caught:
            decode(data)
        assert "\n" not in str(caught.value)


@given(st.data())
def test_a_damaged_record_decodes_or_is_foreign(data: st.DataObject) -> None:
    """A record with some bytes changed gives a record or ForeignBytes, never another error."""
    whole = bytearray(codec.encode_round(A_ROUND))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = codec.decode_round(bytes(whole))
    except fields.ForeignBytes:
        return
    assert isinstance(decoded, Round)


@pytest.mark.parametrize("cut", range(len(codec.encode_node(A_NODE))))
def test_a_truncated_record_is_foreign(cut: int) -> None:
    """No prefix of a record decodes, wherever it is cut."""
    with pytest.raises(fields.ForeignBytes):
        codec.decode_node(codec.encode_node(A_NODE)[:cut])


def test_one_kind_of_record_does_not_decode_as_the_other() -> None:
    """An announcement is not a node record, nor the other way round."""
    with pytest.raises(fields.ForeignBytes):
        codec.decode_node(codec.encode_round(A_ROUND))
    with pytest.raises(fields.ForeignBytes):
        codec.decode_round(codec.encode_node(A_NODE))


def test_another_protocol_version_is_refused_by_name() -> None:
    """Agents of two versions in one job get an error that names both, instead of misreading each other."""
    message = wire.NodeRecord.FromString(codec.encode_node(A_NODE))
    message.version = 1
    with pytest.raises(fields.ForeignBytes, match=r"protocol version 1.*uses version 6.*same elastic-agent"):
        codec.decode_node(message.SerializeToString())


def test_unknown_fields_are_ignored() -> None:
    """A later agent of the same protocol version may add fields."""
    added = b"\xfa\x03\x03new"  # field 63, three bytes of text
    assert codec.decode_node(added + codec.encode_node(A_NODE)) == A_NODE
    assert codec.decode_node(codec.encode_node(A_NODE) + added) == A_NODE


@pytest.mark.parametrize(
    ("field", "value"),
    [("state", 0), ("state", 99), ("seq", -1), ("port", 65536), ("port", -1), ("preferred_rank", -2), ("nproc", 2**60)],
)
def test_a_number_out_of_range_is_foreign(field: str, value: int) -> None:
    """A field outside its range is refused and named."""
    message = wire.NodeRecord.FromString(codec.encode_node(A_NODE))
    setattr(message, field, value)
    with pytest.raises(fields.ForeignBytes, match=f"field {field} is {value}"):
        codec.decode_node(message.SerializeToString())


def test_too_large_a_record_is_refused_on_both_sides() -> None:
    """The bounds hold for the writer and for the reader."""
    with pytest.raises(fields.ForeignBytes, match=str(codec.MAX_NODE_BYTES)):
        codec.encode_node(replace(A_NODE, role="x" * codec.MAX_NODE_BYTES))
    with pytest.raises(fields.ForeignBytes, match=str(limits.MAX_ROUND_BYTES)):
        codec.decode_round(codec.encode_round(A_ROUND) + b"\xfa\x01" * limits.MAX_ROUND_BYTES)


def test_a_round_of_four_thousand_nodes_fits() -> None:
    """The bound of an announcement leaves room for any cluster that one store can serve."""
    many = tuple(
        Member(f"{number:032x}", f"node-{number:05}.cluster.local (pid 123456)", number, 8 * number, 8)
        for number in range(4096)
    )
    record = replace(A_ROUND, members=many)
    assert codec.decode_round(codec.encode_round(record)) == record


def test_long_texts_for_people_are_cut_and_never_refused() -> None:
    """A worker that writes a megabyte into its error file does not keep its node from publishing."""
    failure = WorkerFailure("n", "h", 0, 0, 1, 1, message="m" * 10**6)
    decoded = codec.decode_node(codec.encode_node(replace(A_NODE, because="b" * 10**6, failure=failure)))
    assert decoded.failure is not None
    assert len(decoded.because) == len(decoded.failure.message) == fields.MAX_TEXT_CHARS


def test_text_that_is_not_unicode_is_replaced() -> None:
    """A host name with undecodable bytes does not keep its node from publishing."""
    assert codec.decode_node(codec.encode_node(replace(A_NODE, name="caf\udce9"))).name == "caf?"


@pytest.mark.parametrize(
    ("codes", "enum"),
    [
        (codec.STATE_CODES, wire.NodeState),
        (codec.PHASE_CODES, wire.RoundPhase),
        (codec.OUTCOME_CODES, wire.Outcome),
        (failure_codec.END_CODES, wire.EndKind),
        (failure_codec.SIGN_CODES, wire.Sign),
        (failure_codec.ROLE_CODES, wire.Role),
    ],
)
def test_enum_numbers_are_those_of_the_schema(codes: dict[NodeState, int], enum: type[wire.NodeState]) -> None:
    """Fails if a member is added in Python but not in elastic.proto, or at another position."""
    assert {member.name: code for member, code in codes.items()} == {name: code for name, code in enum.items() if code}


def test_a_memory_store_needs_no_protobuf() -> None:
    """A single-node agent, which never encodes, does not load protobuf."""
    check = "import sys, elastic_agent.rendezvous.memory_store; sys.exit('google.protobuf' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
