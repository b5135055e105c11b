"""How the command line prints what the agent says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

FORMAT = "--log-format="


class Printing(NamedTuple):
    """What `--quiet`, `--verbose` and `--log-format` ask for."""

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False


PLAIN = Printing()


def formats_in(args: Sequence[str]) -> list[str]:
    """The flags --log-format among arguments of which others cannot be read, as `spell_out` has them."""
    found = []
    for word, following in zip(args, [*args[1:], ""], strict=True):
        name, given, value = word.partition("=")
        if name.replace("_", "-") == FORMAT.rstrip("="):
            found.append(FORMAT + (value if given else following))
    return found


def printing_of(env: Mapping[str, str], flags: Collection[str] = ()) -> Printing:
    """What the PET_ variables and these flags, as `spell_out` has them, ask for; a wrong value asks for nothing."""
    quiet, verbose = (env.get(name, "").strip() == "1" for name in ("PET_QUIET", "PET_VERBOSE"))
    formats = [flag for flag in flags if flag.startswith(FORMAT)] or [FORMAT + env.get("PET_LOG_FORMAT", "").strip()]
    return Printing("--quiet" in flags or quiet, "--verbose" in flags or verbose, formats[-1] == FORMAT + "json")
