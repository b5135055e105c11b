"""Seeded campaigns with real agents and real workers on this machine.

`plan.py` makes a seed into a job and its faults, as data; `runner.py` lets it happen and writes down what was done and
seen; `judge.py` holds that to the simulator's own invariants, by `witness.py` and `history.py`; `campaign.py` does it
many times over.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[2])
if TESTS not in sys.path:  # `python -m tests.campaigns.chaos`; under pytest it is there
    sys.path.insert(0, TESTS)
