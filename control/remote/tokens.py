"""Who may ask an agent over TCP: a file of tokens, each with a name and its rights."""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Iterable

from ...agent.errors import UsageError
from ...proto.frozen import dataclass

RIGHTS = {"read": False, "write": True}
"""What stands in the file, and whether it may change something."""
TOKEN_MIN = 16
"""Characters below which a token could be guessed."""
FILE_MAX = 1 << 16
"""Bytes of the file."""
SCHEME = "Bearer "
HEADER = "authorization"
"""The call's metadata with the token, behind SCHEME."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a token."""

    name: str
    writes: bool


class Tokens:
    """Those that this agent takes; read once, at its start."""

    def __init__(self, path: str) -> None:
        """Raises UsageError for a file that cannot be used; no token is in its text."""
        self._tokens = _parsed(path, _content(path))

    def holder(self, metadata: Iterable[tuple[str, str | bytes]]) -> Holder | None:
        """Whose token a call has; None: none, or one that is not known. Takes the same time for all that are wrong."""
        given = next((value for key, value in metadata if key == HEADER), "")
        text = given if isinstance(given, str) else ""
        shown = text.removeprefix(SCHEME).encode() if text.startswith(SCHEME) else b""
        found = None
        for token, holder in self._tokens.items():
            if hmac.compare_digest(shown, token):
                found = holder
        return found


def _content(path: str) -> str:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_MAX + 1)
    except OSError as error:
        raise UsageError(f"--control-tokens {path}: {error.strerror}; give a file of tokens") from None
    if not stat.S_ISREG(mode) or mode & 0o007:
        raise UsageError(
            f"--control-tokens {path}: others may read it (mode {stat.S_IMODE(mode):04o}); run chmod 600 on it"
        )
    if len(data) > FILE_MAX:
        raise UsageError(f"--control-tokens {path}: more than {FILE_MAX} bytes; leave out tokens that nobody uses")
    return data.decode("utf-8", "replace")


def _parsed(path: str, text: str) -> dict[bytes, Holder]:
    found: dict[bytes, Holder] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"--control-tokens {path}: line {number}"
        if len(words) != 3 or words[1] not in RIGHTS or not words[0].isprintable():
            raise UsageError(f"{where} is not `NAME read|write TOKEN`; correct it")
        name, rights, token = words
        if len(token) < TOKEN_MIN or not token.isascii() or not token.isprintable():
            raise UsageError(f"{where}: the token of {name} needs {TOKEN_MIN} characters of ASCII; make a longer one")
        if token.encode() in found:
            raise UsageError(f"{where}: {name} has the token of another line; give each its own")
        found[token.encode()] = Holder(name, RIGHTS[rights])
    if not found:
        raise UsageError(f"--control-tokens {path} has no token; add a line `NAME read|write TOKEN`")
    return found
