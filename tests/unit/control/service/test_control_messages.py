"""The messages of the control service are those of `proto/control.proto`, and their JSON is proto3's."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from google.protobuf import json_format

from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.control.ctl.remote import as_fields
from elastic_agent.control.remote.conversion import fill
from elastic_agent.control.service import messages
from elastic_agent.control.service.messages import from_json, json_name, to_json
from elastic_agent.control.service.methods import METHODS
from elastic_agent.proto import control_pb2

CONTRACT = control_pb2.DESCRIPTOR
EMPTY = ("WorkersRequest", "GoodputRequest")


@pytest.mark.parametrize("name", sorted(set(CONTRACT.message_types_by_name) - {*EMPTY}))
def test_a_message_has_the_fields_of_the_contract(name: str) -> None:
    """Name for name, in its order, and as JSON names them."""
    kind = getattr(messages, name)
    contract = CONTRACT.message_types_by_name[name].fields
    assert [field.name for field in fields(kind)] == [field.name for field in contract]
    assert [json_name(field.name) for field in fields(kind)] == [field.json_name for field in contract]


def test_the_methods_are_those_of_the_contract() -> None:
    """The same names, requests and streams."""
    service = CONTRACT.services_by_name["Control"]
    assert set(METHODS) == {method.name for method in service.methods}
    for method in service.methods:
        ours = METHODS[method.name]
        assert ours.request.__name__ == ("Nothing" if method.input_type.name in EMPTY else method.input_type.name)
        assert ours.streams is method.server_streaming


MEMBER = messages.Member("0a", "node1", 1, 2, 2, "trainer", 0, "node1:9500")
ENDING = messages.Ending(3, "failure", "rank 0 failed", "node1", 0, "rank 0", "cause")
NODE = messages.Node("node1", "running", 0, 0, 2, 0.0, 3, True, "because", 3, False, "node1:9500")
CAPACITY = messages.Capacity(1, 2, ("node3",), ("node2", "node1"))
STATUS = messages.Status(
    "node1", Phase.WORKING, "why", 3, 0, 2, (MEMBER,), 1, 3, False, True, True, {0: 17, 1: 18}, "/logs", ""
)
FULL: list[Any] = [
    STATUS,
    messages.Job(
        "job", "node1", "coordinator", 0.5, "running", "why", 3, 1.0, 1, 2, 2, 1, (NODE,), ENDING,
        messages.Agreement("save", "label \u00fc\udc80", "who", 7, True), "failed", True,
        "c10d host:1", "away", 5.0, 9.0, 4, "train.py", -3.5, "/checkpoints", CAPACITY,
        messages.OtherNodes(500, 499), 0.0004,
    ),
    messages.Workers("node1", 3, (messages.Worker(0, 0, 17, "running", 1.0, 2.0**40, 2.0**33, 3.0, "step", 7, 0.1),)),
    messages.Event(1, 2.0, 3.0, "node1", "event", members=(MEMBER,), ended=ENDING, missed=2),
    messages.Goodput(
        "node1", 9.0, 2, 0.5, True, (messages.SpentTime("useful steps", 9.0),),
        (messages.LostTime(1, "failure", 9.0, "node1", "boom"),),
    ),
    messages.Stacks("node1", 3, (messages.StackGroup((0, 1), "f (x.py:1)", True, "text"),), ("native",)),
    messages.LogPart(0, "stdout", "text\n\t\"", "/file", 12.0),
    messages.Done("done"),
]  # fmt: skip


@pytest.mark.parametrize("message", FULL, ids=lambda message: type(message).__name__)
def test_what_is_written_is_read_by_protobuf_and_means_the_same(message: Any) -> None:
    """protobuf refuses fields that it does not know, and values of another type."""
    parsed = json_format.Parse(to_json(message), getattr(control_pb2, type(message).__name__)())
    for field in fields(message):
        ours, theirs = getattr(message, field.name), getattr(parsed, field.name)
        if isinstance(ours, Phase):
            assert theirs == ours.value
        elif isinstance(ours, int | float) or (isinstance(ours, str) and ours.isascii()):
            assert theirs == ours, field.name
        elif ours is None:
            assert not parsed.HasField(field.name)


@pytest.mark.parametrize("message", FULL, ids=lambda message: type(message).__name__)
def test_what_crosses_hosts_as_protobuf_is_read_as_what_the_socket_says(message: Any) -> None:
    """Field for field, also through bytes: `elasticctl` need not know which way it asked."""
    made = fill(getattr(control_pb2, type(message).__name__)(), message)
    read = type(made).FromString(made.SerializeToString())
    assert as_fields(read) == json.loads(to_json(message))


@pytest.mark.parametrize("name", sorted({method.request.__name__ for method in METHODS.values()} - {"Nothing"}))
def test_what_protobuf_writes_is_read(name: str) -> None:
    """All fields of each request, with either kind of names."""
    made = getattr(control_pb2, name)()
    for field in made.DESCRIPTOR.fields:
        if isinstance(default := getattr(made, field.name), str | int):
            setattr(made, field.name, type(default)("7"))
        else:
            default.extend([3, 4])
    for keep in (False, True):
        text = json_format.MessageToJson(made, preserving_proto_field_name=keep)
        found = from_json(getattr(messages, name), text.encode())
        for field in made.DESCRIPTOR.fields:
            theirs = getattr(made, field.name)
            wanted = theirs if isinstance(theirs, str | int) else tuple(theirs)
            assert getattr(found, field.name) == wanted


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 5000, "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"labl": "x"}', "'labl' is no field of this request; it has reason, label"),
        (b'{"label": 1}', "label is 1; it is of type str"),
    ],
)
def test_a_request_that_is_none_says_why(body: bytes, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        from_json(messages.SaveRequest, body)


@pytest.mark.parametrize(
    "body", [b'{"since": 1.5}', b'{"since": true}', b'{"since": 4294967296}', b'{"follow": 1}', b'{"since": "1"}']
)
def test_a_value_of_another_type_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"(since|follow) is "):
        from_json(messages.EventsRequest, body)
