"""A job's command as other nodes, and strangers, may see it: the script, the names of its arguments, no values.

Some arguments are secrets (`--wandb-api-key ...`), and whoever reaches the store can read the job's record. So a
record holds a salted digest of the whole command, and for people an outline: each value is replaced by `#` and a digest
that is long enough to show that two values differ, and too short to find out what a value was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .digest import sha256

HIDDEN, MASKED = "#", "***"
"""Begins a hidden value in an outline; stands for a value that looks secret."""
VALUE_DIGITS = 4
"""Hexadecimal digits of a value's digest."""

# Compiled at their first use: an agent that is not refused needs only the first two.
_FLAG = r"--[A-Za-z][\w.-]{0,60}|-[A-Za-z]"
_SETTING = r"(?s)((?:--|\+{0,2})[A-Za-z_][\w.-]{0,60}=)(?!=|$)(.*)"
"""`--name=value`, and `name=value` as Hydra takes it. Base64 ends in `=` and has no value after it."""
_HIDDEN = rf"(?s)(.*){HIDDEN}([0-9a-f]{{{VALUE_DIGITS}}})"
_NUMBER = r"-?[\d.]+([eE]-?\d+)?"
_SECRET_NAME = r"(?i)key|token|secret|passw|pwd|credential|auth|private|dsn|webhook"
_SECRET_VALUE = (
    r"(?s)(?=.*\d)(?=.*[A-Za-z])(?![./~])[\w+/=.~-]{20,}"  # long, letters and digits mixed, as keys are; no path
    r"|([\w.+-]+://[^/@\s]*|[^/@:\s]+:[^@\s]+)@.*"  # a URL with a user, or user:password@host
    r"|(sk|pk|hf|ghp|gho|glpat|xox[a-z]|AKIA)[_-]?[\w-]{8,}"  # how some services begin their keys
)


def outline(command: Sequence[str], salt: bytes) -> tuple[str, ...]:
    """The words of a command, each value replaced by its digest. The script, a first `-m`, and names stay."""
    return tuple(word if name is None else f"{name}{_digest(value, salt)}" for word, name, value in _words(command))


def masked(command: Sequence[str]) -> tuple[str, ...]:
    """The words of this node's own command, without values that look secret."""
    found: list[str] = []
    flag = ""
    for word, name, value in _words(command):
        secret = name is not None and _looks_secret(name or flag, value)
        found.append(f"{name}{MASKED}" if secret else word)
        flag = word if name is None else flag if not name else ""
    return tuple(found)


def differing(ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, ...]:
    """What differs between two outlines, by name: flags, `name=`s, values by their place. The script is one of them."""
    names: list[str] = []
    left, right = _by_name(ours), _by_name(theirs)
    for name in (*left, *right):
        if left.get(name) != right.get(name) and name not in names:
            names.append(name)
    return tuple(names)


def readable(words: Sequence[str]) -> str:
    """An outline for people: `…` for each value."""
    return " ".join(re.sub(_HIDDEN, r"\1…", word) if at >= _plain(words) else word for at, word in enumerate(words))


def _words(command: Sequence[str]) -> Iterator[tuple[str, str | None, str]]:
    """Each word; for one that holds a value also the name before it (empty: it is all value), and that value."""
    for at, word in enumerate(command):
        if at < _plain(command) or re.fullmatch(_FLAG, word):
            yield word, None, ""
        elif (setting := re.fullmatch(_SETTING, word)) is not None:
            yield word, setting[1], setting[2]
        else:
            yield word, "", word


def _digest(value: str, salt: bytes) -> str:
    return HIDDEN + sha256(salt + value.encode("utf-8", "surrogatepass")).hexdigest()[:VALUE_DIGITS]


def _looks_secret(name: str, value: str) -> bool:
    if re.fullmatch(_NUMBER, value) or value.lower() in ("true", "false", "none", ""):
        return False
    return bool(re.search(_SECRET_NAME, name) or re.fullmatch(_SECRET_VALUE, value))


def _by_name(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The values of an outline by what they belong to: the flag before them, or their place."""
    found: dict[str, tuple[str, ...]] = {}
    flag = ""
    for at, word in enumerate(words):
        if at < _plain(words):
            name, value = "the script", word
        elif (hidden := re.fullmatch(_HIDDEN, word)) is None:
            name = value = flag = word
        elif hidden[1]:
            name, value, flag = hidden[1].removesuffix("="), hidden[2], ""
        else:
            name, value = flag or f"argument {at}", hidden[2]
        found[name] = (*found.get(name, ()), value)
    return found


def _plain(words: Sequence[str]) -> int:
    """How many words at the beginning name what runs."""
    return 2 if words[:1] and words[0] == "-m" else 1
