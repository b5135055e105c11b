"""What a loop leaves behind that the script leaves by `break`: real processes, whose interpreters end by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RUN_S = 90
SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from elastic_agent.worker import Every, Run

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
if RANKS > 1:
    dist.init_process_group("gloo")
WAY, WHERE = sys.argv[1:]
kept = torch.nn.Linear(1, 1 if WAY != "waits" else 3_000_000)
run = Run(WHERE, net=kept, every=Every(seconds=None))
loader = run.loader(DataLoader(TensorDataset(torch.arange(40)), batch_size=4), global_batch=4)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def whole():
    return sorted(name for name in os.listdir(WHERE) if name.startswith("step-"))

if WAY == "vars":
    for epoch in run.epochs(2):
        for batch in loader:
            run.vars.seen = run.rank
            run.step()
    say("kept", run.vars.seen)
    sys.exit()
if WAY == "count":
    for epoch in run.epochs(2):
        for number, batch in enumerate(loader, loader.batches_done):
            run.step()
            say("step", run.steps, "batch", number, "of", len(loader), "samples", batch[0].tolist())
            if run.steps == 3:
                run.stop()
    sys.exit()
for epoch in run.epochs(2):
    for batch in loader:
        run.step()
        if run.steps == 5 and WAY == "stops":
            run.stop()
    if WAY == "stops" or (WAY in ("breaks", "closes") and epoch == 0):
        break
    if WAY == "breaks early":
        break
if WAY == "closes":
    run.close()
say("left at", run.steps, *whole())
"""


def job(way: str, path: Path, ranks: int = 1) -> tuple[list[str], str, list[str]]:
    """Lines of the output, stderr, and the checkpoints that there are behind the end of all processes."""
    script, where = path / "train.py", path / "checkpoints"
    script.write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launcher, str(script), way, str(where)],
        env=env, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr, sorted(each.name for each in where.glob("step-*"))


def test_a_save_on_its_way_is_on_the_disk_before_the_process_ends(tmp_path: Path) -> None:
    """`run.stop()` and a `break` behind it: the next start goes on there."""
    _, told, kept = job("stops", tmp_path)
    assert "checkpoint of step 5" in told
    assert kept == ["step-000005"]
    lines, told, _ = job("stops", tmp_path)
    assert "resumed at step 5" in told
    assert lines[-1].startswith("left at 10")


def test_steps_that_a_break_leaves_behind_the_last_checkpoint_are_told_and_close_saves_them(tmp_path: Path) -> None:
    _, told, kept = job("breaks", tmp_path)
    assert "left before its end, 10 steps behind the last checkpoint" in told
    assert kept == []
    lines, told, kept = job("closes", tmp_path)
    assert kept == ["step-000010"]
    assert lines == ["left at 10 step-000010"]


def test_no_rank_is_behind_the_loop_before_the_last_checkpoint_is_on_the_disk(tmp_path: Path) -> None:
    """One that ends with an error then has its launcher end the rank that writes."""
    lines, _, kept = job("waits", tmp_path, ranks=2)
    assert kept[-1] == "step-000020"
    assert [line.split()[-1] for line in lines] == ["step-000020"] * 2


def test_vars_that_differ_over_the_ranks_are_told_once(tmp_path: Path) -> None:
    _, told, _ = job("vars", tmp_path, ranks=2)
    assert told.count("run.vars of rank 1 is not that of rank 0") == 1


def test_a_count_of_the_scripts_goes_on_with_the_epoch(tmp_path: Path) -> None:
    """`enumerate(loader, loader.batches_done)`."""
    seen: list[str] = []
    for _ in range(2):
        seen += job("count", tmp_path)[0]
    samples = [line.split("samples ")[1] for line in seen]
    assert [line.split(" of")[0] for line in seen] == [f"step {n + 1} batch {n % 10}" for n in range(20)]
    assert samples == [str(list(range(4 * n, 4 * n + 4))) for n in [*range(10), *range(10)]]
