"""Requests on etcd's keys and their answers, as frozen values. Keys and values are bytes, revisions integers.

A `Read`, `Put` or `Delete` is a request of its own or part of a transaction; a `Compare` is a transaction's condition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ...proto import etcd_pb2 as pb
from ...proto.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """A key at one revision."""

    key: bytes
    value: bytes
    create_revision: int
    """The revision that created it; unchanged by puts, another one after a deletion."""
    mod_revision: int
    """The revision that wrote this value."""
    version: int
    """Puts since it was created, the first included; 0 for a deleted key."""
    lease: int
    """The lease that it is attached to; 0: none."""


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a `Read`."""

    revision: int
    """The cluster's revision when it was read: a watch from the next one misses nothing."""
    items: tuple[Item, ...]
    """Sorted by key."""
    more: bool
    """Whether `limit` cut the list."""


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch."""

    item: Item
    """As the event left it. A deleted key has no value, version 0, and the deletion's revision as `mod_revision`."""
    deleted: bool
    """Deleted by a request, or because its lease ended."""


@dataclass(frozen=True, slots=True)
class Read:
    """One key, or with `prefix` all that begin with it."""

    key: bytes
    prefix: bool = False
    changed_since: int = 0
    """Only keys written at this revision or later."""
    revision: int = 0
    """The revision to read at; 0: the newest. Raises EtcdCompacted if it is no longer kept."""
    limit: int = 0
    """Most items; 0: no limit."""
    keys_only: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key, whatever it holds."""

    key: bytes
    value: bytes
    lease: int = 0
    """The lease to attach the key to, with which it is deleted; 0: none."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one key, or with `prefix` all that begin with it."""

    key: bytes
    prefix: bool = False


Op = Read | Put | Delete


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on one key. A key that does not exist has version, revisions and lease 0; a compare of its value is
    false, even with b"" (etcd 3.4)."""

    key: bytes
    target: Literal["version", "create_revision", "mod_revision", "lease", "value"]
    operator: Literal["=", "!=", "<", ">"]
    operand: int | bytes
    """bytes for "value", int for the others."""


def is_absent(key: bytes) -> Compare:
    """The key does not exist."""
    return Compare(key, "create_revision", "=", 0)


def is_unchanged(key: bytes, mod_revision: int) -> Compare:
    """The key was last written by this revision; 0: it does not exist."""
    return Compare(key, "mod_revision", "=", mod_revision)


def holds(key: bytes, value: bytes) -> Compare:
    """The key exists and has this value."""
    return Compare(key, "value", "=", value)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a transaction."""

    succeeded: bool
    """Whether all compares held, and so which of the two lists of requests was carried out."""
    revision: int
    """The cluster's revision after it."""
    found: tuple[Found, ...]
    """The answers to the reads among the requests carried out, in order."""


# -- to and from the wire ---------------------------------------------------------------------------------------------

_OPERATORS = {"=": pb.Compare.EQUAL, "!=": pb.Compare.NOT_EQUAL, "<": pb.Compare.LESS, ">": pb.Compare.GREATER}
_TARGETS = {
    "version": pb.Compare.VERSION,
    "create_revision": pb.Compare.CREATE,
    "mod_revision": pb.Compare.MOD,
    "lease": pb.Compare.LEASE,
    "value": pb.Compare.VALUE,
}


def range_end(key: bytes, prefix: bool) -> bytes:
    """etcd's `range_end`: empty for one key, else the first key after all that begin with `key`."""
    if not prefix:
        return b""
    head = key.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else b"\0"


def range_start(key: bytes, prefix: bool) -> bytes:
    """etcd's `key` of a range: `key`, but the least key there is for an empty prefix, which means all keys."""
    return key or (b"\0" if prefix else b"")


def range_request(read: Read) -> pb.RangeRequest:
    return pb.RangeRequest(
        key=range_start(read.key, read.prefix),
        range_end=range_end(read.key, read.prefix),
        limit=read.limit,
        revision=read.revision,
        keys_only=read.keys_only,
        min_mod_revision=read.changed_since,
    )


def delete_request(delete: Delete) -> pb.DeleteRangeRequest:
    return pb.DeleteRangeRequest(
        key=range_start(delete.key, delete.prefix), range_end=range_end(delete.key, delete.prefix)
    )


def put_request(put: Put) -> pb.PutRequest:
    return pb.PutRequest(key=put.key, value=put.value, lease=put.lease)


def txn_request(compares: Iterable[Compare], then: Iterable[Op], otherwise: Iterable[Op]) -> pb.TxnRequest:
    return pb.TxnRequest(
        compare=[_compare(compare) for compare in compares],
        success=[_op(op) for op in then],
        failure=[_op(op) for op in otherwise],
    )


def _compare(compare: Compare) -> pb.Compare:
    message = pb.Compare(key=compare.key, result=_OPERATORS[compare.operator], target=_TARGETS[compare.target])
    setattr(message, compare.target, compare.operand)
    return message


def _op(op: Op) -> pb.RequestOp:
    if isinstance(op, Read):
        return pb.RequestOp(request_range=range_request(op))
    if isinstance(op, Put):
        return pb.RequestOp(request_put=put_request(op))
    return pb.RequestOp(request_delete_range=delete_request(op))


def item_of(kv: pb.KeyValue) -> Item:
    return Item(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def found_of(response: pb.RangeResponse) -> Found:
    return Found(response.header.revision, tuple(item_of(kv) for kv in response.kvs), response.more)


def outcome_of(response: pb.TxnResponse) -> Outcome:
    revision = response.header.revision
    ranges = [part.response_range for part in response.responses if part.WhichOneof("response") == "response_range"]
    found = tuple(Found(revision, tuple(map(item_of, one.kvs)), one.more) for one in ranges)
    return Outcome(response.succeeded, revision, found)


def change_of(event: pb.Event) -> Change:
    return Change(item_of(event.kv), event.type == pb.Event.DELETE)
