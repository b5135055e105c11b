"""`python -m elastic_agent`: the same as the command `elastic-agent`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from .launcher.cli import entry

    sys.exit(entry())
