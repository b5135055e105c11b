"""Questions and answers of nodes as bytes: JSON. Bytes from the store may be anybody's."""

from __future__ import annotations

import json
from typing import Any

from ..decisions.questions import Question

NAME_MAX = 200
"""Characters of a node's name."""


def encode(question: Question) -> bytes:
    """The question's value in the store."""
    return json.dumps({**vars(question), "body": dict(question.body)}, separators=(",", ":")).encode()


def decode(value: bytes) -> Question | None:
    """The question in a value; None where it is none, as of another version."""
    found = decode_answer(value)
    if found is None:
        return None
    body, number = found.get("body"), found.get("round")
    texts = [found.get(key) for key in ("kind", "asker", "name")]
    if not isinstance(body, dict) or type(number) is not int or not all(isinstance(text, str) for text in texts):
        return None
    kind, asker, name = (str(text)[:NAME_MAX] for text in texts)
    return Question(kind, number, asker, name, body)


def decode_answer(value: bytes) -> dict[str, Any] | None:
    """The JSON object in a value; None where there is none."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
