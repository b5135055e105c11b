"""An exception on one rank ends all ranks at once, with the cause: real ranks, under both launchers.

The rank that fails keeps a thread that never ends, as libraries do, so that its interpreter would wait for ever; the
others wait for it in a collective, whose timeout is half an hour.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RUN_S = 90
"""Bound on one job, imports of torch included; far below the collective's timeout."""
SCRIPT = """
import os, sys, threading
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from elastic_agent.worker import Every, Run

dist.init_process_group("gloo")
run = Run(sys.argv[1], every=Every(seconds=None))
loader = run.loader(DataLoader(TensorDataset(torch.arange(24)), batch_size=2), global_batch=4)
if run.rank == 1:
    threading.Thread(target=threading.Event().wait).start()

def body():
    dist.all_reduce(torch.ones(1))
    run.step()
    if run.rank == 1 and run.steps == 3:
        raise ValueError("the fourth sample is not a number")

WAY = sys.argv[2]
if WAY == "epochs":
    for epoch in run.epochs(2):
        for batch in loader:
            body()
elif WAY == "batches":
    for batch in run.batches(loader, steps=10):
        body()
elif WAY == "finally":
    try:
        with run.fail_together():
            for epoch in run.epochs(2):
                for batch in loader:
                    body()
    finally:
        dist.barrier()
elif WAY == "caught":
    for epoch in run.epochs(2):
        for batch in loader:
            try:
                body()
            except ValueError as error:
                os.write(1, f"caught: {error}\\n".encode())
        for batch in loader:
            break
    os.write(1, f"trained {run.steps}\\n".encode())
    os._exit(0)
"""
"""Writes each line in one call: `print` in an unbuffered worker makes several, and two workers' lines would mix."""
LAUNCHERS = {
    "elastic-agent": ["-m", "elastic_agent", "--standalone", "--nproc-per-node", "2"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}


def job(launcher: str, way: str, path: Path) -> subprocess.CompletedProcess[str]:
    script = path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, *LAUNCHERS[launcher], str(script), str(path / "checkpoints"), way]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_S, check=False)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("way", ["epochs", "batches"])
def test_an_exception_that_leaves_the_loop_ends_all_ranks_with_its_cause(
    launcher: str, way: str, tmp_path: Path
) -> None:
    """By default, with nothing around the loop."""
    failed = job(launcher, way, tmp_path)
    assert failed.returncode != 0
    assert "rank 1 failed" in failed.stderr
    assert "ValueError: the fourth sample is not a number" in failed.stderr


def test_a_with_statement_ends_the_rank_before_its_own_clean_up_waits_for_others(tmp_path: Path) -> None:
    failed = job("elastic-agent", "finally", tmp_path)
    assert failed.returncode != 0
    assert "ValueError: the fourth sample is not a number" in failed.stderr


def test_an_exception_that_the_script_catches_and_a_break_end_nobody(tmp_path: Path) -> None:
    job_ended = job("elastic-agent", "caught", tmp_path)
    assert job_ended.returncode == 0, job_ended.stderr
    assert job_ended.stdout.count("caught: the fourth sample is not a number") == 1
    assert job_ended.stdout.count("trained 12") == 2


THREAD = "import threading; threading.Thread(target=threading.Event().wait).start()\n"
OF_A_LOOP = """
import logging
from elastic_agent.worker.failing import fail_together
with fail_together(logging.getLogger("elastic_agent"), 0):
    raise ValueError("the sample is not a number")
"""
OF_A_TRAINER = """
from elastic_agent.trainer.in_worker.ending import ending
from elastic_agent.worker.errors import WrongState
class Channel:
    def failed(self, *what): pass
with ending(Channel(), 0):
    raise WrongState("of another model")
"""


@pytest.mark.parametrize(("script", "status"), [(OF_A_LOOP, 1), (OF_A_TRAINER, 93)], ids=["loop", "trainer"])
def test_a_rank_ends_where_its_error_file_cannot_be_written(script: str, status: int) -> None:
    """It does not wait for a thread that never ends, and says what could not be written."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".typing"), "TORCHELASTIC_ERROR_FILE": "/dev/full"}
    ended = subprocess.run(
        [sys.executable, "-c", THREAD + script], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == status, ended.stderr
    assert "rank 0 cannot write why it" in ended.stderr
    assert "No space left on device" in ended.stderr


WITH_STATUS = """
import logging, sys
from elastic_agent.worker.failing import fail_together
with fail_together(logging.getLogger("elastic_agent"), 0):
    {}
"""


@pytest.mark.parametrize(
    ("body", "status"),
    [("sys.exit(3)", 3), ("sys.exit('no data')", 1), ("raise KeyboardInterrupt", 130), ("sys.exit(256)", 1)],
)
def test_an_exit_that_is_no_success_ends_the_rank_at_once(body: str, status: int) -> None:
    """It does not wait for a thread that never ends."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".typing")}
    command = [sys.executable, "-c", THREAD + WITH_STATUS.format(body)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == status, ended.stderr


def test_a_rank_ends_though_nobody_reads_what_it_says(tmp_path: Path) -> None:
    """Its stderr is a pipe that is full; the error file has the cause."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writes, bytes(65536))
    os.set_blocking(writes, True)
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".typing"), "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}
    command = [sys.executable, "-c", THREAD + OF_A_LOOP]
    ended = subprocess.run(command, env=env, stdout=writes, stderr=writes, timeout=60, check=False)
    os.close(reads)
    os.close(writes)
    assert ended.returncode == 1
    assert "the sample is not a number" in (tmp_path / "error.json").read_text()
