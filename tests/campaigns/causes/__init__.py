"""Jobs that fail in known ways, and who is named as the cause, beside torchrun.

`plan.py` draws a job from a kind of failure and a seed; `ours.py` and `theirs.py` let it fail under real agents, each
node with a wall clock of its own, and read what they told; `campaign.py` does it many times over and keeps the score.
The workers are plain Python (`worker.py`) or meet in a process group of torch's (`gloo_worker.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[2])
if TESTS not in sys.path:  # `python -m tests.campaigns.causes`; under pytest it is there
    sys.path.insert(0, TESTS)
