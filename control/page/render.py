"""The page as bytes: with the policy that lets its own script and style run and nothing else, and with its data."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

PATH = os.path.join(os.path.dirname(__file__), "page.html")
EVENTS_MAX = 20_000
"""Events in a report; of more, the newest."""


def render(data: object = None) -> bytes:
    """The whole page; `data`: what it shows, or None where it follows an agent."""
    with open(PATH, encoding="utf-8") as file:
        page = file.read()
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    style = page.partition("<style>")[2].partition("</style>")[0]
    policy = (
        f"default-src 'none'; connect-src 'self'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    # In a script element nothing but `<` can end the text, or begin a comment.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return page.replace("@POLICY@", policy).replace("@DATA@", text).encode()


def report(events: Sequence[Mapping[str, Any]], note: str) -> bytes:
    """The page of these events, as lines of an events file have them. `note` says where they come from."""
    ordered = sorted(events, key=lambda event: event.get("time_s") or event.get("at_s") or 0.0)
    if missing := max(0, len(ordered) - EVENTS_MAX):
        note += f"; the first {missing} events are left out"
    return render({"events": ordered[-EVENTS_MAX:], "note": note})


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
