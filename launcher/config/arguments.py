"""Where an argument list is taken apart: which tokens are ours, what each abbreviates, where the script's own begin.

argparse's rules, which torchrun's users know, where click's differ: abbreviations, `-r3`, a value may not look like a
flag, and everything after the script is the script's, flags and `--` included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ...agent.errors import UsageError
from .flags import BY_KEY, BY_SHORT, FLAGS, Flag
from .values import suggest

_END = "--"
"""Ends the flags, though they end at the script anyway."""
_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


def spell_out(args: Sequence[str]) -> list[str]:
    """The same arguments with each flag of ours as `--name` or `--name=value`, then `--`, then the script and its own.

    Raises UsageError for a flag that is not known or not unique, a missing value, or one too many.
    """
    spelled: list[str] = []
    rest = list(args)
    while rest:
        token = rest[0]
        if token == _END:
            rest.pop(0)
            break
        if not _looks_like_flag(token.partition("=")[0]):
            break
        rest.pop(0)
        found = _long(token) if token.startswith("--") else _short(token)
        for flag, value in found:
            if flag.read is None:
                spelled.append(f"--{flag.name}")
            else:
                spelled.append(f"--{flag.name}={_value(token, rest) if value is None else value}")
    return [*spelled, _END, *rest]


def from_environment(env: Mapping[str, str], spelled: Sequence[str]) -> dict[str, object]:
    """Defaults by key, read from the PET_ variables that are set, but for flags that `spelled` gives anyway.

    A switch's must be 0 or 1. Raises UsageError, naming the variable.
    """
    given = {token.partition("=")[0] for token in spelled[: spelled.index(_END)]}
    defaults: dict[str, object] = {}
    for flag in FLAGS:
        if not flag.variable or flag.variable not in env or f"--{flag.name}" in given:
            continue
        text = env[flag.variable]
        if flag.read is not None:
            defaults[flag.key] = flag.read(flag.variable, text)
        elif text.strip() in ("0", "1"):
            defaults[flag.key] = text.strip() == "1"
        else:
            raise UsageError(
                f"{flag.variable} is {text!r}, but a switch is on with 1 and off with 0; give one of these"
            )
    return defaults


def find_flag(typed: str) -> Flag:
    """The flag that `typed` (without its hyphens) names or abbreviates; raises UsageError."""
    key = typed.replace("-", "_")
    if key in BY_KEY:
        return BY_KEY[key]
    matching = [flag for flag in FLAGS if key and flag.key.startswith(key)]
    # What abbreviates a flag of torchrun's there does so here, whatever was added since.
    matching = [flag for flag in matching if not flag.ours] or matching
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(f"--{flag.name}" for flag in matching)
        raise UsageError(f"--{typed} could be any of {names}; write more of it")
    hint = suggest(typed.replace("_", "-"), (flag.name for flag in FLAGS)).replace("mean '", "mean '--")
    raise UsageError(f"there is no flag --{typed}{hint}; flags for the script itself go after its name")


def _long(token: str) -> Iterator[tuple[Flag, str | None]]:
    name, equals, value = token[2:].partition("=")
    flag = find_flag(name)
    if flag.read is None and equals:
        raise UsageError(f"--{flag.name} is a switch and takes no value, but got {value!r}; write --{flag.name} alone")
    yield flag, value if equals else None


def _short(token: str) -> Iterator[tuple[Flag, str | None]]:
    letters = token[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        flag = BY_SHORT.get(letter)
        if flag is None:
            known = ", ".join(f"-{short}" for short in BY_SHORT)
            raise UsageError(f"there is no flag -{letter} (in {token!r}); one-letter flags are {known}")
        if flag.read is None:
            yield flag, None
            continue
        yield flag, letters.removeprefix("=") if letters else None
        return


def _value(token: str, rest: list[str]) -> str:
    """Take the next token as the value of `token`, unless it looks like a flag itself."""
    if not rest or _looks_like_flag(rest[0]):
        raise UsageError(f"{token} needs a value; write {token} VALUE, or {token}=VALUE if it starts with a hyphen")
    return rest.pop(0)


def _looks_like_flag(token: str) -> bool:
    """As argparse sees it: a hyphen and more, but no negative number and nothing with a space."""
    return len(token) > 1 and token[0] == "-" and not _NUMBER.fullmatch(token) and " " not in token
