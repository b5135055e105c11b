"""The messages of the control service as protobuf's, and requests back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from ...agent.errors import UsageError

Request = TypeVar("Request")
Kind = TypeVar("Kind", bound=Message)


class Unreadable:
    """What came in place of a message: bytes that are none."""


def reader(kind: type[Kind]) -> Callable[[bytes], Kind | Unreadable]:
    """What reads messages of this kind for gRPC. An error in it would have gRPC end the call twice, and keep all that
    belongs to it for good: 25 KiB a call, of callers without a token too."""

    def read(data: bytes) -> Kind | Unreadable:
        try:
            return kind.FromString(data)
        except (DecodeError, ValueError):  # ValueError: the pure-Python runtime, on text that is not UTF-8
            return Unreadable()

    return read


def readable(message: Kind | Unreadable) -> Kind:
    """The message. Raises UsageError where there is none."""
    if isinstance(message, Unreadable):
        raise UsageError("the request is no message of this method; send one of control.proto")
    return message


def fill(made: Message, message: object) -> Message:
    """Give `made`, which is new, the fields of a frozen value of the same name. Returns it."""
    for name in type(message).__annotations__:
        value = getattr(message, name)
        if value is None or value == "" or value == ():
            continue
        if isinstance(value, tuple):
            _extend(getattr(made, name), value)
        elif isinstance(value, Mapping):
            getattr(made, name).update(value)
        elif isinstance(value, (str, int, float)):
            setattr(made, name, text(value) if isinstance(value, str) else value)
        elif isinstance(value, Enum):
            setattr(made, name, value.value)
        else:
            fill(getattr(made, name), value)
            getattr(made, name).SetInParent()
    return made


def _extend(field: Any, values: tuple[object, ...]) -> None:  # noqa: ANN401 - protobuf's containers
    for value in values:
        if isinstance(value, (str, int, float)):
            field.append(text(value) if isinstance(value, str) else value)
        else:
            fill(field.add(), value)


def text(value: str) -> str:
    """Without what UTF-8 has no bytes for: paths may be no text."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def request_of(kind: type[Request], message: Message | Unreadable) -> Request:
    """The request as a frozen value; `Nothing` has no fields. Raises UsageError for one that cannot be read."""
    read, values = readable(message), {}
    for name in kind.__annotations__:
        value = getattr(read, name)
        values[name] = value if isinstance(value, (str, int)) else tuple(value)
    return kind(**values)
