"""Asks one agent: through its control socket where that is a path, by gRPC where it is HOST:PORT."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .call import AgentUnreachable, Call, CallRefused, Message


def begin(path: str, method: str, fields: Mapping[str, Any] | None = None) -> Call:
    """Ask the agent with this socket, or at this HOST:PORT. Raises AgentUnreachable where nobody listens."""
    if os.sep in path or ":" not in path:
        return Call(path, method, fields)
    from .remote import RemoteCall

    return RemoteCall(path, method, fields)


def call(path: str, method: str, **fields: object) -> Message:
    """One answer. Raises AgentUnreachable, CallRefused."""
    return begin(path, method, fields).answer()


def call_brief(path: str, method: str) -> Message:
    """The brief answer to Status or Job. An agent that is older than this program knows no such thing, and gives the
    whole one. Raises AgentUnreachable, CallRefused."""
    try:
        return call(path, method, brief=True)
    except CallRefused as error:
        if "brief" not in str(error):
            raise
        return call(path, method)


Answer = Message | AgentUnreachable | CallRefused
"""What came of one of several calls."""
MARGIN_S = 1.0
"""What a call that keeps its own limit has beyond it, so that it can say itself what it lacked."""


def ask_all(paths: Sequence[str], method: str, fields: Mapping[str, Any] | None = None) -> list[Answer]:
    """The answers of these agents, asked at once, in their order: all together take no longer than one may."""
    calls: dict[int, Call] = {}
    found: dict[int, Answer] = {}
    for at, path in enumerate(paths):
        try:
            calls[at] = begin(path, method, fields)
        except AgentUnreachable as error:
            found[at] = error
    try:
        _collect(calls, found)
    finally:
        for each in calls.values():
            each.close()
    return [found[at] for at in range(len(paths))]


def _collect(calls: Mapping[int, Call], found: dict[int, Answer]) -> None:
    """Take what arrives until each call has its answer, or its time is over."""
    began_s = time.monotonic()
    poll = select.poll()
    waits = {each.fileno(): at for at, each in calls.items()}
    for fd in waits:
        poll.register(fd, select.POLLIN)
    while waits:
        left_s = began_s + max(calls[at].limit_s for at in waits.values()) + MARGIN_S - time.monotonic()
        ready = poll.poll(1000 * max(0.0, left_s))
        for fd in [fd for fd, _ in ready] if ready else list(waits):
            one = calls[waits[fd]]
            answer = _arrived(one) if ready else AgentUnreachable(one.late())
            if answer is not None:
                found[waits.pop(fd)] = answer
                poll.unregister(fd)


def _arrived(one: Call) -> Answer | None:
    """What has come of this call; None: nothing yet."""
    try:
        messages = one.arrived()
    except (AgentUnreachable, CallRefused) as error:
        return error
    if messages:
        return messages[0]
    return AgentUnreachable(one.unanswered()) if one.ended else None


def ask_all_brief(paths: Sequence[str], method: str) -> list[Answer]:
    """As `call_brief`, of several at once."""
    found = ask_all(paths, method, {"brief": True})
    older = [at for at, each in enumerate(found) if isinstance(each, CallRefused) and "brief" in str(each)]
    for at, each in zip(older, ask_all([paths[at] for at in older], method), strict=True):
        found[at] = each
    return found
