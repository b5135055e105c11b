"""Secrets in the addresses of channels: `{env:NAME}` and `{file:PATH}`, read when they are used, never shown."""

from __future__ import annotations

import os
import re
from urllib.parse import quote, unquote

from ...agent.errors import UsageError

_PLACE = re.compile(r"\{(env|file):([^{}]+)\}")
HIDDEN = "***"
SHORTEST = 4
"""Texts shorter than this are no secrets, and hiding them would spoil errors."""


def fill(text: str, safe: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The text with its secrets, and the secrets. In a URL they are percent-encoded, but for the characters in `safe`.

    Raises UsageError that names the variable or file, and not the text around it, which may be secret itself.
    """
    found: list[str] = []

    def value(match: re.Match[str]) -> str:
        secret = _variable(match[2]) if match[1] == "env" else _file(match[2])
        found.append(secret)
        return secret if safe is None else quote(secret, safe=safe)

    return _PLACE.sub(value, text), tuple(found)


def shown(text: str) -> str:
    """The text with the names of its secrets hidden, too."""
    return _PLACE.sub(HIDDEN, text)


def hide(text: str, secrets: tuple[str, ...]) -> str:
    """An error's text without the secrets, however a server has quoted them."""
    forms = {form for secret in secrets for form in (secret, quote(secret), quote(secret, safe=""), unquote(secret))}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= SHORTEST:
            text = text.replace(form, HIDDEN)
    return text


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise UsageError(f"a notification needs the variable {name}, which is not set; set it, or use {{file:PATH}}")
    return value


def _file(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            value = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"a notification needs the file {path}: {why}; write the secret into it") from None
    if not value:
        raise UsageError(f"a notification needs the file {path}, which is empty; write the secret into it")
    return value
