"""Asks one agent: through its control socket where that is a path, by gRPC where it is HOST:PORT."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .call import Call, CallRefused, Message


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
