"""`python -m tests.campaigns.chaos`: run seeds, repeat one seed, or judge a saved run again."""

from __future__ import annotations

import sys

from .campaign import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
