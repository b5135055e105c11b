"""`python -m elastic_agent.worker verify DIR|FILE.pt`."""

from __future__ import annotations

import sys

from .verify import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
