"""Jobs that fail in known ways, and the cause that is named, by elastic-agent and by torchrun.

`plan.py` draws a job from a kind of failure and a seed; `elastic_agent_jobs.py` and `torchrun_jobs.py` run it under
real agents, each node with a wall clock of its own, and read the cause that they name; `campaign.py` does it many times
and keeps the score. The workers are plain Python (`worker.py`) or use a process group of torch (`gloo_worker.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[2])
if TESTS not in sys.path:  # for `python -m tests.campaigns.causes`; pytest adds it itself
    sys.path.insert(0, TESTS)
