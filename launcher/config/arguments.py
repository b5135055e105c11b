"""Splits an argument list: which tokens are the agent's flags, what each abbreviates, where the script's own begin.

The rules are argparse's, which torchrun's users are used to: abbreviations, `-r3`, a
value may not look like a flag, and everything after the script is the script's, flags and `--` included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ...agent.errors import UsageError
from .flag import Flag
from .flags import BY_KEY, BY_SHORT, FLAGS
from .values import suggest

STANDALONE = "PET_STANDALONE"
"""Kubeflow's training operator sets it empty where a PyTorchJob is to be standalone."""
_END = "--"
"""Marks the end of the flags; a user need not write it, because they end at the script."""
_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


def spell_out(args: Sequence[str]) -> list[str]:
    """The same arguments with each of the agent's flags as `--name` or `--name=value`, then `--`, then the script and
    its own arguments.

    Raises UsageError for an unknown or ambiguous flag, a missing value, and a value given to a switch.
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
    """Defaults by key, read from the PET_ variables that are set; variables of flags that `spelled` has are not read.

    A switch's variable is 0 or 1; that of --standalone may be empty, which is on. Raises UsageError, naming the
    variable.
    """
    given = {token.partition("=")[0] for token in spelled[: spelled.index(_END)]}
    defaults: dict[str, object] = {}
    for flag in FLAGS:
        if not flag.variable or flag.variable not in env or f"--{flag.name}" in given:
            continue
        defaults[flag.key] = read_variable(flag, env[flag.variable])
    return defaults


def read_variable(flag: Flag, text: str) -> object:
    """The flag's value, from the text of its variable. Raises UsageError, naming the variable."""
    if flag.read is not None:
        return flag.read(flag.variable, text)
    if text.strip() in ("0", "1"):
        return text.strip() == "1"
    if not text and flag.variable == STANDALONE:
        return True
    raise UsageError(f"{flag.variable} is {text!r}, but --{flag.name} is a switch; give 1 for on or 0 for off")


def find_flag(typed: str) -> Flag:
    """The flag that `typed` (without its leading hyphens) names or abbreviates. Raises UsageError."""
    key = typed.replace("-", "_")
    if key in BY_KEY:
        return BY_KEY[key]
    matching = [flag for flag in FLAGS if key and flag.key.startswith(key)]
    # An abbreviation that torchrun accepts means the same flag here, whatever flags were added.
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
        raise UsageError(f"--{flag.name} is a switch and takes no value, but has {value!r}; write --{flag.name} alone")
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
    """Take the next token off `rest` as the value of the flag `token`. Raises UsageError if it looks like a flag."""
    if not rest or _looks_like_flag(rest[0]):
        raise UsageError(f"{token} needs a value; write {token} VALUE, or {token}=VALUE if it starts with a hyphen")
    return rest.pop(0)


def _looks_like_flag(token: str) -> bool:
    """argparse's rule: it begins with a hyphen, and is no single hyphen, no negative number, and has no space."""
    return len(token) > 1 and token[0] == "-" and not _NUMBER.fullmatch(token) and " " not in token
