"""What a flag of the command line is."""

from __future__ import annotations

from collections.abc import Callable

from ...proto.frozen import dataclass

Reader = Callable[[str, str], object]
"""Turns text into a flag's value; the first argument is what errors call it (`--tee` or `PET_TEE`)."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. If `read` is None, it is a switch, which takes no value."""

    name: str
    group: str
    help: str
    read: Reader | None = None
    default: object = None
    metavar: str = ""
    short: str = ""
    env: bool = True
    """Whether PET_<NAME> sets its default."""
    ours: bool = False
    """torchrun does not have it. An abbreviation that means one of torchrun's flags never means this one."""
    many: bool = False
    """It may be repeated; the reader gets all its values, a line each. Its variable has lines, too."""

    @property
    def key(self) -> str:
        """Name as a variable: `rdzv_conf`."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """Environment variable that sets its default; empty if there is none."""
        return f"PET_{self.key.upper()}" if self.env else ""
