"""What encoding and decoding of all records share: bounds, texts, enums, and the errors that name a field."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

PROTOCOL_VERSION = 6
"""1: an announcement lists all members of its round. 2: those of a large round are on pages. 3: on stores that elect,
workers that are cut off end before a newer round begins. 4: on c10d, too. 5: with one endpoint another node may host
the store next, and tells that endpoint. 6: more than half of the voters replace a host of it that is silent, and votes
say for how long it was."""
MAX_TEXT_CHARS = 4096
"""Texts for people (`because`, a failure's `message`) are cut to this length when written, never refused."""
MAX_NUMBER = 2**53
"""No count of elastic-agent reaches this; a larger number was written by another program."""


class ForeignBytes(ValueError):
    """These bytes are not a record of elastic-agent. One line: which record was expected and what was found."""


class ProtocolMismatch(ForeignBytes):
    """These bytes are a record of elastic-agent in another protocol version. One line that names both versions."""


E = TypeVar("E", bound=Enum)


def enum_codes(members: type[E]) -> dict[E, int]:
    """The protobuf number of each member, by order of definition, from 1."""
    return {member: code for code, member in enumerate(members, start=1)}


def parse(what: str, message: Message, data: bytes, limit: int) -> None:
    """Fill `message` from these bytes. Raises ForeignBytes if they do not parse or are longer than `limit` bytes."""
    bounded(what, data, limit)
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError) as why:  # ValueError: the pure-Python runtime, on text that is not UTF-8
        raise ForeignBytes(f"not a {what}: {len(data)} bytes that do not parse ({str(why)[:80]!r})") from None


def check_head(what: str, magic: int, wanted: int, version: int) -> None:
    """Raises ForeignBytes unless `magic` is `wanted`, and ProtocolMismatch unless the version is PROTOCOL_VERSION."""
    if magic != wanted:
        raise ForeignBytes(
            f"not a {what}: its magic number is {magic:#x}, not {wanted:#x} (truncated, or written by another program)"
        )
    if version != PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"a {what} of protocol version {version}, but this agent uses version {PROTOCOL_VERSION}: "
            "run the same elastic-agent on every node"
        )


def bounded(what: str, data: bytes, limit: int) -> bytes:
    """Returns `data`. Raises ForeignBytes if it is longer than `limit` bytes."""
    if len(data) > limit:
        raise ForeignBytes(f"not a {what}: it has {len(data)} bytes; the limit is {limit}")
    return data


def checked(field: str, value: int, least: int = 0, limit: int = MAX_NUMBER) -> int:
    """Returns `value`. Raises ForeignBytes, which names the field, if it is out of range."""
    if not least <= value <= limit:
        raise ForeignBytes(f"field {field} is {value}, outside {least}..{limit}")
    return value


def seconds(field: str, value: float) -> float:
    """Returns `value`. Raises ForeignBytes, which names the field, if it is no length of time, such as NaN."""
    if not 0 <= value <= MAX_NUMBER:
        raise ForeignBytes(f"field {field} is {value} s, outside 0..{MAX_NUMBER}")
    return value


def enum_member(field: str, table: dict[int, E], code: int) -> E:
    """The member with this protobuf number. Raises ForeignBytes, which names the field, if there is none."""
    member = table.get(code)
    if member is None:
        raise ForeignBytes(f"field {field} is {code}, which has no meaning in protocol version {PROTOCOL_VERSION}")
    return member


def utf8(text: str) -> str:
    """The text with what UTF-8 cannot encode replaced by `?`, as protobuf requires."""
    # Host names and messages may hold undecodable bytes (as lone surrogates), which protobuf refuses.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def cut(text: str) -> str:
    """A text for people, cut to `MAX_TEXT_CHARS`."""
    return utf8(text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…")


def last_bytes(text: str, limit: int) -> str:
    """The end of the text, at most `limit` bytes of UTF-8. If it is cut, it begins at the start of a line."""
    data = utf8(text).encode()
    if len(data) <= limit:
        return utf8(text)
    whole = data[-limit:].decode(errors="ignore")
    return whole[whole.find("\n") + 1 :]
