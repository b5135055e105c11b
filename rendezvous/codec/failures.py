"""Failures of workers and endings of rounds as protobuf messages, for `records.py`."""

from __future__ import annotations

from ...proto import wire
from ..failures import MAX_ANNOUNCED_EXITS, MAX_SAID_BYTES, Ending, EndKind, Judged, Role, Sign, WorkerFailure
from .fields import MAX_NUMBER, checked, cut, enum_codes, enum_member, last_bytes, utf8

# Members are numbered in elastic.proto as they are ordered here; test_codec.py compares names and numbers.
END_CODES = enum_codes(EndKind)
SIGN_CODES = enum_codes(Sign)
ROLE_CODES = enum_codes(Role)
_END_KINDS = {code: kind for kind, code in END_CODES.items()}
_SIGNS = {code: sign for sign, code in SIGN_CODES.items()}
_ROLES = {code: role for role, code in ROLE_CODES.items()}


def ending_to_message(ending: Ending) -> wire.Ending:
    """Keeps the first `MAX_ANNOUNCED_EXITS` exits. Raises ForeignBytes for a number out of range, as all here."""
    message = wire.Ending(
        round=checked("ended.round", ending.round), because=cut(ending.because), charged=utf8(ending.charged)
    )
    message.kind = END_CODES[ending.kind]  # type: ignore[assignment]
    message.role = ROLE_CODES[ending.role]  # type: ignore[assignment]
    message.judged.extend(_judged_to_message(judged) for judged in ending.judged[:MAX_ANNOUNCED_EXITS])
    if ending.failure is not None:
        message.failure.CopyFrom(failure_to_message(ending.failure))
    return message


def ending_from_message(message: wire.Ending) -> Ending:
    """The inverse of `ending_to_message`. Also raises ForeignBytes for an unknown enum number."""
    return Ending(
        round=checked("ended.round", message.round),
        kind=enum_member("ended.kind", _END_KINDS, message.kind),
        because=message.because,
        charged=message.charged,
        failure=failure_from_message(message.failure) if message.HasField("failure") else None,
        role=enum_member("ended.role", _ROLES, message.role),
        judged=tuple(_judged_from_message(judged) for judged in message.judged[:MAX_ANNOUNCED_EXITS]),
    )


def _judged_to_message(judged: Judged) -> wire.Judged:
    message = wire.Judged(death=failure_to_message(judged.death), because=cut(judged.because))
    message.role = ROLE_CODES[judged.role]  # type: ignore[assignment]
    return message


def _judged_from_message(message: wire.Judged) -> Judged:
    return Judged(failure_from_message(message.death), enum_member("role", _ROLES, message.role), message.because)


def failure_to_message(failure: WorkerFailure) -> wire.WorkerFailure:
    """Long texts are cut at their end, `said` at its beginning."""
    message = wire.WorkerFailure(
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
        order=checked("order", failure.order),
        after_s=failure.after_s,
        stopped_by=checked("stopped_by", failure.stopped_by),
        sign_because=cut(failure.sign_because),
        suspects=[checked("suspect", rank) for rank in failure.suspects],
        said=last_bytes(failure.said, MAX_SAID_BYTES),
        note=cut(failure.note),
        lived_s=failure.lived_s,
    )
    message.sign = SIGN_CODES[failure.sign]  # type: ignore[assignment]
    return message


def failure_from_message(message: wire.WorkerFailure) -> WorkerFailure:
    """The inverse of `failure_to_message`. Also raises ForeignBytes for an unknown enum number."""
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
        order=checked("order", message.order),
        after_s=message.after_s,
        stopped_by=checked("stopped_by", message.stopped_by),
        sign=enum_member("sign", _SIGNS, message.sign),
        sign_because=message.sign_because,
        suspects=tuple(checked("suspect", rank) for rank in message.suspects),
        said=message.said,
        note=message.note,
        lived_s=message.lived_s,
    )
