"""`elastic-agent --as-torchrun COMMAND`: this process becomes COMMAND, with the switch of `place.py` on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from ...agent import signals
from ...agent.errors import UsageError
from ..config.arguments import find_flag
from .place import variables

SWITCH = "--as-torchrun"


def environment(spelled: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """What must be added to `env`: the switch, and each other flag of `spelled` (see `arguments.spell_out`) as its
    PET_ variable, which reaches every launch within. Raises UsageError for a flag without one."""
    added = variables(env)
    for token in spelled[: spelled.index("--")]:
        name, equals, value = token.partition("=")
        if name == SWITCH:
            continue
        flag = find_flag(name[2:])
        if not flag.variable:
            raise UsageError(f"{name} beside {SWITCH} cannot reach the launches within; give it to the command instead")
        added[flag.variable] = value if equals else "1"
    return added


def become(spelled: Sequence[str], *, as_program: bool) -> None:
    """Run the command of `spelled` (see `arguments.spell_out`) in place of this process. Without a command, print what
    would be added to its environment, for a shell. Raises UsageError if the command is not found, or if this process is
    somebody else's program."""
    argv, added = spelled[spelled.index("--") + 1 :], environment(spelled, os.environ)
    if not argv:
        sys.stdout.write("".join(f"export {name}={_quoted(value)}\n" for name, value in added.items()))
        return
    if not as_program:
        raise UsageError(f"{SWITCH} replaces this process; call elastic_agent.torchrun.install() instead")
    whole = {**os.environ, **added}
    signals.abandon()
    try:
        os.execvpe(argv[0], list(argv), whole)
    except OSError as error:
        raise UsageError(f"{SWITCH} cannot run {argv[0]!r}: {error.strerror}; give a command on PATH") from error


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
