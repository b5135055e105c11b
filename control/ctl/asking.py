"""Asks one agent: through its control socket where that is a path, by gRPC where it is HOST:PORT."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .call import Call, Message


def begin(path: str, method: str, fields: Mapping[str, Any] | None = None) -> Call:
    """Ask the agent with this socket, or at this HOST:PORT. Raises AgentUnreachable where nobody listens."""
    if os.sep in path or ":" not in path:
        return Call(path, method, fields)
    from .remote import RemoteCall

    return RemoteCall(path, method, fields)


def call(path: str, method: str, **fields: object) -> Message:
    """One answer. Raises AgentUnreachable, CallRefused."""
    return begin(path, method, fields).answer()
