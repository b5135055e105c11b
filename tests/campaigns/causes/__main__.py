"""`python -m tests.campaigns.causes`: which cause is named when jobs fail in known ways."""

from __future__ import annotations

import sys

from .campaign import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
