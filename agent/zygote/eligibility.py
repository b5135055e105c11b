"""Whether a worker may be forked from this zygote: would a plain start have made it the same? Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Command:
    """What the zygote was started as. (No dataclass: every script would find that module imported.)"""

    __slots__ = ("argv", "cwd", "env", "per_round")

    def __init__(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], per_round: Collection[str]) -> None:
        self.argv = tuple(argv)
        self.cwd = cwd
        self.env = env
        self.per_round = frozenset(per_round)
        """Variables that differ from worker to worker and from round to round; no interpreter or C library reads
        them when it is loaded."""

    @property
    def fixed(self) -> int:
        """How many of the arguments Python has interpreted already: all up to the script's own."""
        return 4 if self.argv[2] == "-m" else 3


def mismatch(command: Command, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> str:
    """Why this worker needs a plain start, in one clause; empty if it may be forked."""
    at = command.fixed
    if list(argv[:at]) != list(command.argv[:at]):
        return f"the command {' '.join(argv[:at])!r} is not the one preloaded for, {' '.join(command.argv[:at])!r}"
    if cwd != command.cwd:
        return f"the working directory is {cwd!r} now, and was {command.cwd!r} when modules were preloaded"
    if changed := sorted(name for name in differing(command, env) if name not in command.per_round):
        return f"{changed[0]} has changed since modules were preloaded, and an import may have read it"
    return ""


def differing(command: Command, env: Mapping[str, str]) -> set[str]:
    """The variables that this worker has, or has otherwise, than the modules have seen when they were imported."""
    return {name for name in {*env, *command.env} if env.get(name) != command.env.get(name)}
