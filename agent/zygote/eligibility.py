"""Whether a worker may be forked from this zygote: would it have become the same by a start of its own? Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Command:
    """What the zygote was started as. (No dataclass: that module would be in every script's way.)"""

    __slots__ = ("cwd", "env", "per_round", "words")

    def __init__(self, words: Sequence[str], cwd: str, env: Mapping[str, str], per_round: Collection[str]) -> None:
        self.words = tuple(words)
        self.cwd = cwd
        self.env = env
        self.per_round = frozenset(per_round)
        """Variables that differ from worker to worker and from round to round; no interpreter or C library reads
        them when it is loaded."""

    @property
    def fixed(self) -> int:
        """How many of the words Python has understood already: all up to the script's own arguments."""
        return 4 if self.words[2] == "-m" else 3


def misfit(command: Command, words: Sequence[str], cwd: str, env: Mapping[str, str], read: Collection[str]) -> str:
    """Why this worker needs a start of its own, in one clause; empty if it may be forked.

    `read`: variables that the imported modules have looked at, which a worker's own import might have found different.
    """
    at = command.fixed
    if list(words[:at]) != list(command.words[:at]):
        return f"the command {' '.join(words[:at])!r} is not the one preloaded for, {' '.join(command.words[:at])!r}"
    if cwd != command.cwd:
        return f"the working directory is {cwd!r} now, and was {command.cwd!r} when modules were preloaded"
    differing = sorted(name for name in {*env, *command.env} if env.get(name) != command.env.get(name))
    if changed := [name for name in differing if name not in command.per_round]:
        return f"{changed[0]} is not what it was when modules were preloaded, and may be read by an import"
    if seen := [name for name in differing if name in read]:
        return f"a preloaded module reads {seen[0]} when it is imported, which is each worker's own"
    return ""
