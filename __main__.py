"""The program: `python -m elastic_agent`, and the command `elastic-agent`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Take over signals before anything else is loaded, because loading takes a while, longer on a slow disk."""
    import gc

    from .agent import signals

    signals.begin()
    # What is loaded now stays; to search it for garbage again and again takes a tenth as long as to load it.
    gc.disable()
    from .launcher.cli import entry

    entry()


if __name__ == "__main__":
    main()
