"""The program: `python -m elastic_agent`, and the command `elastic-agent`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Handle signals first of all; only then load the rest, which takes a while and more on a slow disk."""
    from .agent import signals

    signals.begin()
    from .launcher.cli import entry

    entry()


if __name__ == "__main__":
    main()
