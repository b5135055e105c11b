"""What a worker's own library answers when an agent asks it."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from ..proto.frozen import dataclass, field

ANSWER_S = 3.0
"""How long a worker has to answer; one that holds the interpreter in C never does."""
ANSWER_MAX = 1 << 24
"""Bytes that are read of an answer."""


@dataclass(frozen=True)
class Answer:
    """What one worker answered."""

    stacks: str = ""
    flight: Mapping[str, Any] = field(default_factory=dict)
    """As torch writes it."""
    cached: Mapping[str, int] = field(default_factory=dict)
    """By UUID of a GPU: bytes that torch holds there and does not use."""


def ask(path: str) -> Answer | None:
    """What the worker answers at this socket; None if it does not."""
    parts, size = [], 0
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(path)
            while (part := connection.recv(1 << 20)) and size < ANSWER_MAX:
                parts.append(part)
                size += len(part)
        found = json.loads(b"".join(parts))
        return Answer(str(found["stacks"]), dict(found["flight"]), dict(found["cached"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
