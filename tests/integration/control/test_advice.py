"""`elastic-agent-watch advise` on checkpoints of the worker library."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.rendezvous.text import duration
from elastic_agent.worker import Every, Retention, Run

ADVISE = [sys.executable, "-m", "elastic_agent.control.watcher", "advise"]
WAIT_S = 60.0


def advise(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ADVISE, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_how_long_a_save_holds_the_training_up_is_read_from_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is to be measured by hand: each manifest says it of the save before. The path may be relative."""
    monkeypatch.chdir(tmp_path)
    run = Run("kept", every=Every(steps=2, seconds=None), keep=Retention(newest=9))
    batches = run.loader(DataLoader(TensorDataset(torch.arange(12)), batch_size=1))
    for _ in run.epochs(1):
        for _ in batches:
            run.step()
    held = [json.loads(path.read_text())["made_by"]["held_s"] for path in sorted(tmp_path.glob("kept/*/manifest.json"))]
    assert held[0] == 0, "before the first there was none"
    assert min(held[1:]) > 0
    done = advise("--checkpoints", "kept", "--every", "3h", "--between-failures", "24h")
    assert done.returncode == 0, done.stderr
    assert f"now: a save of {duration(statistics.median(held[1:]))} every 3 h" in done.stdout


def test_without_the_time_of_a_save_the_advice_says_how_to_give_it(tmp_path: Path) -> None:
    """Checkpoints of other tools do not say it."""
    done = advise("--checkpoints", tmp_path, "--every", "3h")
    assert done.returncode == 2
    assert "give --save, or --checkpoints of the worker library" in done.stderr


def test_failures_of_each_start_that_shares_a_file_count(tmp_path: Path) -> None:
    """Rounds are numbered anew by each start, which a queue makes one after the other; the time between two starts is
    none of the training."""
    lines = []
    for start in range(3):
        node, at_s = f"here:{start + 1}", 10_000.0 * (start + 1)
        line = {"node": node, "time_s": at_s, "at_s": at_s, "because": "every place is taken", "version": 1}
        place = [{"node": node, "name": node, "group_rank": 0, "rank_offset": 0, "nproc": 1}]
        ended = {"round": 1, "kind": "failure", "because": "boom", "charged": node}
        lines += [
            {**line, "what": "announced", "number": 1, "phase": "running", "members": place},
            {**line, "what": "announced", "number": 1, "phase": "closed", "version": 2, "at_s": at_s + 60,
             "time_s": at_s + 60, "ended": ended, "outcome": "failed"},
            {**line, "what": "concluded", "at_s": at_s + 60, "time_s": at_s + 60, "exit_code": 1},
        ]  # fmt: skip
    (tmp_path / "events").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = advise("--save", "1s", "--events", tmp_path / "events")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a failure every 60 s (3 failures in 3 min)"), done.stdout


def test_checkpoints_of_one_time_have_no_interval(tmp_path: Path) -> None:
    """As copies have it, and files of a file system that counts whole seconds."""
    for step in (100, 200, 300):
        (tmp_path / f"step-{step}").write_bytes(b"weights")
        os.utime(tmp_path / f"step-{step}", (1000, 1000))
    done = advise("--checkpoints", tmp_path, "--save", "40s")
    assert f"advise: {tmp_path} has no two checkpoints, whose interval would be measured; give --every" in done.stderr
    os.utime(tmp_path / "step-300", (11_800, 11_800))
    done = advise("--checkpoints", tmp_path, "--save", "40s")
    assert done.stdout.startswith("now: a save of 40 s every 3 h (100 steps) costs 0.37 % of the time"), done.stdout
