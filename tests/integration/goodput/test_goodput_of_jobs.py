"""Goodput of real jobs whose workers are killed: it adds up, and says what the workers themselves wrote down."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns import goodput
from support.workers.counting_steps import EVERY, SAVE_S, STEP_S, STEPS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 3])
def test_a_killed_job_says_where_its_seconds_went(tmp_path: Path, seed: int) -> None:
    """Each account adds up; useful are the new steps, repeated those that a kill undid, saving the checkpoints."""
    found = goodput.play(tmp_path, seed)
    buckets = found["buckets"]
    assert found["exit_code"] == 0
    # What is new to the job is not to each worker: at a kill one may be a step ahead of the other.
    assert buckets["useful steps"] >= (found["new"] - found["killed"]) * STEP_S
    again = found["steps"] - found["new"]
    assert buckets["steps repeated"] >= again * STEP_S
    assert buckets["saving"] >= goodput.WORKERS * (STEPS // EVERY - 1) * SAVE_S
    assert found["measured"]
    assert found["share"] == pytest.approx(buckets["useful steps"] / sum(buckets.values()), abs=1e-5)
