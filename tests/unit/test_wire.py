"""The message classes that agents exchange are made without the half of protobuf that is written in Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from elastic_agent.proto import elastic_pb2, wire
from elastic_agent.proto.elastic_bytes_pb2 import SERIALIZED

PYTHON_HALF = ("google.protobuf.internal.python_message", "google.protobuf.text_format", "pickle")
LOOK = f"""
import sys
from elastic_agent.rendezvous.codec import records
from elastic_agent.rendezvous.records import NodeRecord, NodeState
record = NodeRecord("a", "a", NodeState.WAITING, 7, 3, preferred_rank=2)
assert records.decode_node(records.encode_node(record)) == record
try:
    records.decode_node(b"no record")
except records.fields.ForeignBytes as error:
    print(error)
print([name for name in {PYTHON_HALF} if name in sys.modules])
"""


def looked(**variables: str) -> list[str]:
    """What a process prints that encodes, decodes and refuses a record."""
    env = {name: value for name, value in os.environ.items() if name != wire.CHOSEN} | variables
    done = subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


@pytest.mark.skipif(wire.CHOSEN in os.environ, reason=f"{wire.CHOSEN} is set")
def test_an_agent_loads_upb_alone() -> None:
    """The rest took a fifth of the time in which a joining agent imports what it needs."""
    refused, loaded = looked()
    assert refused.startswith("not a node record: 9 bytes that do not parse")
    assert loaded == "[]"


def test_another_runtime_does_as_well() -> None:
    """That of protobuf in Python, which a user may have chosen; its errors are the same."""
    refused, loaded = looked(**{wire.CHOSEN: "python"})
    assert refused.startswith("not a node record: 9 bytes that do not parse")
    assert "python_message" in loaded


def test_the_classes_are_those_of_the_generated_module() -> None:
    """Protobuf has one of each message in a process, whoever made it first."""
    assert elastic_pb2.DESCRIPTOR.serialized_pb == SERIALIZED, "make proto"
    for name in elastic_pb2.DESCRIPTOR.message_types_by_name:
        assert getattr(wire, name) is getattr(elastic_pb2, name)
