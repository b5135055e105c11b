"""Requests, answers and agreements to messages and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...proto import wire
from ..agreements import MAX_LABEL_BYTES, MAX_SERVED, Act, Agreement, Answer, Request
from .fields import ForeignBytes, checked, cut, enum_codes, enum_member, utf8

ACT_CODES = enum_codes(Act)
_ACTS = {code: act for act, code in ACT_CODES.items()}


def request_to_message(request: Request) -> wire.Request:
    message = wire.Request(
        number=checked("request", request.number, least=1), label=_label(request.label), because=cut(request.because)
    )
    message.act = ACT_CODES[request.act]  # type: ignore[assignment]
    return message


def request_from_message(message: wire.Request) -> Request:
    """Raises ForeignBytes."""
    number = checked("request", message.number, least=1)
    return Request(number, enum_member("act", _ACTS, message.act), _label(message.label), message.because)


def answer_to_message(answer: Answer) -> wire.Answer:
    return wire.Answer(
        agreement=checked("agreement", answer.agreement), bound=checked("bound", answer.bound), done=answer.done
    )


def answer_from_message(message: wire.Answer) -> Answer:
    """Raises ForeignBytes."""
    return Answer(checked("agreement", message.agreement), checked("bound", message.bound), message.done)


def agreement_to_message(agreement: Agreement) -> wire.Agreement:
    message = wire.Agreement(
        number=checked("agreement", agreement.number),
        label=_label(agreement.label),
        because=cut(agreement.because),
        at=checked("at", agreement.at),
        over=agreement.over,
        round=checked("round", agreement.round),
        requests=served_to_messages(agreement.requests),
    )
    message.act = ACT_CODES[agreement.act]  # type: ignore[assignment]
    return message


def agreement_from_message(message: wire.Agreement) -> Agreement:
    """Raises ForeignBytes."""
    return Agreement(
        number=checked("agreement", message.number),
        act=enum_member("act", _ACTS, message.act),
        label=_label(message.label),
        because=message.because,
        at=checked("at", message.at),
        over=message.over,
        round=checked("round", message.round),
        requests=served_from_messages(message.requests),
    )


def served_to_messages(served: Iterable[tuple[str, int]]) -> list[wire.Served]:
    """The first `MAX_SERVED` of these requests."""
    return [wire.Served(node=utf8(node), number=checked("request", number)) for node, number in [*served][:MAX_SERVED]]


def served_from_messages(messages: Sequence[wire.Served]) -> tuple[tuple[str, int], ...]:
    """Raises ForeignBytes."""
    return tuple((served.node, checked("request", served.number)) for served in messages[:MAX_SERVED])


def _label(text: str) -> str:
    label = utf8(text)
    if len(label.encode()) > MAX_LABEL_BYTES:
        raise ForeignBytes(f"field label has {len(label.encode())} bytes; the limit is {MAX_LABEL_BYTES}")
    return label
