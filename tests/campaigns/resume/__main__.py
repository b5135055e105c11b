"""`python -m tests.campaigns.resume`: what random kills and resizes cost, with this library and with others."""

from __future__ import annotations

import sys

from .campaign import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
