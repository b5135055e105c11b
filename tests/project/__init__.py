"""What checks the repository itself: house rules, pages, packaging, and the pages that scripts write."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[1])
if TESTS not in sys.path:  # `python -m tests.project.house_map`; under pytest it is there
    sys.path.insert(0, TESTS)
