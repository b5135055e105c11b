"""What every record of ours goes through on its way to bytes and back: bounds, texts, and the errors that name a field.

Imports protobuf, as `records.py` does.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

PROTOCOL_VERSION = 1
MAX_TEXT_CHARS = 4096
"""Texts for people (`because`, a failure's `message`) are cut here when written, never refused."""
MAX_NUMBER = 2**53
"""No count reaches it; above, a number is taken for garbage."""


class ForeignBytes(ValueError):
    """These bytes are not a record of ours. One line: which record was expected and what was found."""


class OtherProtocol(ForeignBytes):
    """These bytes are a record of ours in another protocol version. One line that names both."""


E = TypeVar("E", bound=Enum)


def codes(members: type[E]) -> dict[E, int]:
    """Numbers for the wire, by order of definition."""
    return {member: code for code, member in enumerate(members, start=1)}


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


def last_bytes(text: str, limit: int) -> str:
    """The end of the text, at most `limit` bytes of UTF-8, from the beginning of a line on if it was cut."""
    data = utf8(text).encode()
    if len(data) <= limit:
        return utf8(text)
    whole = data[-limit:].decode(errors="ignore")
    return whole[whole.find("\n") + 1 :]
