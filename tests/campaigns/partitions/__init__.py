"""Partitions of real nodes on real etcd: are there ever two worlds, and is anybody stopped needlessly?

`plan.py` makes a seed into a job and its partitions; `router.py` cuts namespaces from each other; `job.py` plays them;
`judge.py` judges by what the workers have written themselves; `campaign.py` does it many times.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[2])
if TESTS not in sys.path:  # for `python -m tests.campaigns.partitions`; pytest adds it itself
    sys.path.insert(0, TESTS)
