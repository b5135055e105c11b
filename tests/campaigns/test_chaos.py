"""Real jobs with real faults, a few seeds of `make chaos`."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from campaigns.chaos.campaign import KINDS, run_seed
from campaigns.chaos.goodput import PART
from campaigns.chaos.judge import ACCOUNTS, Verdict
from campaigns.chaos.plan import Plan, draw

Lines = list[dict[str, Any]]
SMOKE = (3080, 3022, 3001)
"""Seeds with short runs: a freeze, and two kills of the host; a SIGTERM, a kill of the host, and a crash; with one host
a crash and a kill."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SMOKE)
def test_a_job_with_faults_ends_as_the_contract_says(seed: int, tmp_path: Path) -> None:
    """Agents, workers and faults are real, and the recorded history passes the simulator's checkers."""
    verdict = run_seed(seed, keep=tmp_path)
    assert not verdict.wrong
    assert verdict.seen["agents"] >= 2
    assert verdict.seen[ACCOUNTS]
    assert verdict.worst < PART


def test_a_run_that_cannot_be_judged_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that makes the judge fail is reported and kept."""

    def fail(folder: Path) -> Verdict:
        raise KeyError("the round")

    monkeypatch.setattr("campaigns.chaos.runner.Run.play", lambda run: run._clean_up())
    monkeypatch.setitem(KINDS, "c10d", replace(KINDS["c10d"], judge=fail))
    verdict = run_seed(7, keep=tmp_path)
    assert verdict.wrong[0] == "KeyError: 'the round'"
    assert "python -m tests.campaigns.chaos --store c10d --seed 7" in verdict.wrong[1]
    assert (tmp_path / "seed-7" / "plan.json").exists()


def test_a_seed_is_one_plan_that_can_be_saved() -> None:
    """A kept run has the plan that was run, also after a change of what seeds mean."""
    for seed in range(50):
        plan = draw(seed)
        assert plan == draw(seed)
        assert plan == Plan.from_dict(json.loads(json.dumps(plan.as_dict())))


def test_the_seeds_of_a_campaign_have_every_fault_at_every_moment() -> None:
    """Two hundred seeds have each kind of fault while nodes gather, while a round runs and while the job finishes."""
    plans = [draw(seed) for seed in range(200)]
    kinds = {(fault.kind, fault.anchor) for plan in plans for fault in plan.faults}
    moments = {"launch", "served", "round 1", "round 2", "finish"}
    assert kinds == {(kind, moment) for kind in ("kill", "freeze", "term", "crash") for moment in moments}
    late = {start.anchor for plan in plans for start in plan.starts}
    assert late == moments
    pairs = [pair for plan in plans for pair in pairwise(plan.faults)]
    assert any(one.anchor == two.anchor and one.after_s == two.after_s for one, two in pairs)
