"""How the command line prints what the agent says."""

from __future__ import annotations

from typing import NamedTuple


class Printing(NamedTuple):
    """What `--quiet`, `--verbose` and `--log-format` ask for."""

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False


PLAIN = Printing()
