"""Seeded campaigns with real agents and real workers on this host.

`plan.py` makes a seed into a job and its faults, as data; `runner.py` runs it and records what was done and seen;
`judge.py` checks that against the simulator's own invariants, by way of `replay.py` and `seen_world.py`; `campaign.py`
does it many times. `etcd/` has the same for jobs on three etcd servers that fail too.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[2])
if TESTS not in sys.path:  # for `python -m tests.campaigns.chaos`; pytest adds it itself
    sys.path.insert(0, TESTS)
