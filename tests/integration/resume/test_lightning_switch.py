"""A Lightning script that knows nothing of elastic-agent, with `--exact-resume`: real Lightning, real SIGKILL."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.resume.jobs import QUIET, Job, again, differences, play
from support.side_environments import side_python
from support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parent / "lightning_script.py"
IMPORTS = ["torch", "numpy", "lightning.pytorch", "torchmetrics"]


@pytest.fixture(scope="module")
def python() -> str:
    return side_python(".frameworks")


class Lightning(Job):
    def __init__(self, directory: Path, name: str, **env: str) -> None:
        super().__init__(directory, name, ELASTIC_AGENT_SAVE_EVERY="1", **env)
        self.env["ELASTIC_AGENT_EXACT_RESUME"] = str(self.checkpoints)


@pytest.fixture(scope="module")
def one_rank(python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Job]:
    """A run without restarts, and one that is killed in training, in the first and the second loader of a validation,
    with other loader processes each time."""
    base = tmp_path_factory.mktemp("lightning")
    whole = Lightning(base, "whole").life()
    killed = Lightning(base, "killed").life(KILL="train:0:5").life(KILL="val:9:0:2", PROCESSES="2")
    killed.life(KILL="train:1:1").life(KILL="val:18:1:2", PROCESSES="1").life()
    play(python, SCRIPT, [whole, killed], IMPORTS)
    return whole, killed


def test_each_batch_is_that_of_a_run_without_restarts(one_rank: tuple[Job, Job]) -> None:
    """Samples, and what torch, random and numpy drew for them, in training and in validation."""
    whole, killed = one_rank
    assert differences(whole, killed) == []
    assert again(whole) == 0
    assert 0 < again(killed) <= 5 * 4  # what was computed after the last checkpoint of each killed life


def test_the_model_has_the_same_bits(one_rank: tuple[Job, Job]) -> None:
    """Dropout in the model included."""
    whole, killed = one_rank
    assert killed.reported()["end", 3] == whole.reported()["end", 3]


def test_means_and_metrics_of_an_epoch_are_the_same(one_rank: tuple[Job, Job]) -> None:
    """self.log's means and maxima, a torchmetrics.Metric, and the state of a callback, at the end of each epoch and of
    each validation: four of six were interrupted."""
    whole, killed = (job.reported() for job in one_rank)
    places = [("epoch", epoch) for epoch in range(3)] + [("validated", epoch) for epoch in range(3)]
    assert [killed[place] for place in places] == [whole[place] for place in places]
    assert {"loss_epoch", "seldom", "error", "val/dataloader_idx_0"} <= whole["epoch", 1][2].keys()


def test_the_ledger_proves_each_sample_once(one_rank: tuple[Job, Job], python: str) -> None:
    _, killed = one_rank
    command = [python, "-m", "elastic_agent.worker", "verify", str(killed.checkpoints)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loader 'train0': 3 finished epochs, 300 samples, each trained on exactly once" in done.stdout


def test_several_training_loaders_go_on_together(python: str, tmp_path: Path) -> None:
    """A shorter loader that is cycled beside a longer one, with its own order and draws."""
    whole = Lightning(tmp_path, "whole", TWO="1").life()
    killed = Lightning(tmp_path, "killed", TWO="1").life(KILL="train:0:6").life(KILL="train:1:2").life()
    play(python, SCRIPT, [whole, killed], IMPORTS)
    assert differences(whole, killed) == []
    assert killed.reported()["end", 3] == whole.reported()["end", 3]


def test_another_number_of_ranks_goes_on_with_the_same_batches(python: str, tmp_path: Path) -> None:
    """One, two and three ranks, which do not divide the last batch: the same samples, draws, and model to rounding."""
    whole = Lightning(tmp_path, "whole", DROPOUT="0").life()
    killed = Lightning(tmp_path, "killed", DROPOUT="0").life(2, KILL="train:0:5").life(1, KILL="val:9:1:1")
    killed.life(2, KILL="train:1:7", PROCESSES="1").life(3)
    play(python, SCRIPT, [whole, killed], IMPORTS)
    assert differences(whole, killed) == []
    for epoch in range(3):
        mean, found = (job.reported()["validated", epoch][2]["val/dataloader_idx_0"] for job in (whole, killed))
        assert found == pytest.approx(mean, rel=1e-9)


def test_without_the_switch_lightning_is_left_alone(python: str) -> None:
    """No callback, and nothing of this library but the module that looks."""
    program = (
        "import sys, lightning.pytorch as pl\n"
        "names = [type(each).__name__ for each in pl.Trainer(logger=False, accelerator='cpu').callbacks]\n"
        "print('found', 'ExactResume' in names, 'elastic_agent.worker.run' in sys.modules)\n"
    )
    done = agent_free(python, program)
    assert "found False False" in done.stdout, done.stdout + done.stderr


def test_the_library_imports_no_framework(python: str) -> None:
    program = (
        "import sys, elastic_agent.worker as worker\n"
        "worker.Run\n"
        "print('found', {'lightning', 'transformers', 'accelerate', 'torchdata', 'datasets'} & set(sys.modules))\n"
    )
    done = agent_free(python, program)
    assert "found set()" in done.stdout, done.stdout + done.stderr


def agent_free(python: str, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", program],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def launched(python: str, directory: Path, script: Path, **env: str) -> subprocess.CompletedProcess[str]:
    flags = ["--standalone", "--nproc-per-node=1", "--max-restarts=2", f"--exact-resume={directory / 'checkpoints'}"]
    added: dict[str, Any] = {**os.environ, **QUIET, "SEEN": str(directory / "seen"), **env}
    return subprocess.run(
        [python, "-m", "elastic_agent", *flags, str(script)],
        env=added,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )


def test_the_flag_makes_a_killed_job_go_on(python: str, tmp_path: Path, one_rank: tuple[Job, Job]) -> None:
    """The agent restarts the killed worker, which ends with the model of the run that was not killed."""
    job = Job(tmp_path, "job")
    done = launched(python, job.directory, SCRIPT, KILL="train:1:4", ELASTIC_AGENT_SAVE_EVERY="2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert differences(one_rank[0], job) == []
    assert job.reported()["end", 3] == one_rank[0].reported()["end", 3]


def test_a_script_that_does_not_use_the_library_is_told_so(tmp_path: Path) -> None:
    import sys

    script = tmp_path / "plain.py"
    script.write_text("import os\nprint('worker', os.environ['ELASTIC_AGENT_EXACT_RESUME'])\n")
    done = launched(sys.executable, tmp_path, script)
    assert done.returncode == 0
    assert f"worker {tmp_path / 'checkpoints'}" in done.stdout
    told = [line for line in done.stderr.splitlines() if "no worker has used" in line]
    assert len(told) == 1, done.stderr


def test_run_takes_the_directory_of_the_switch(tmp_path: Path) -> None:
    import sys

    script = tmp_path / "uses.py"
    script.write_text(
        "from elastic_agent.worker import Run\nrun = Run()\nrun.vars.seen = run.vars.get('seen', 0) + 1\n"
        "run.step()\nrun.close()\n"
    )
    done = launched(sys.executable, tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert "no worker has used" not in done.stderr
    assert list((tmp_path / "checkpoints").glob("step-*")) != []
