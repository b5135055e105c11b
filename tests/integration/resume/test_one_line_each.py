"""accelerate, Fabric, Hugging Face's Trainer and StatefulDataLoader's protocol with one line of ours: real SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

import support.resume
from support.resume.jobs import Job, again, differences, play, unkept
from support.side_environments import side_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(support.resume.__path__[0]) / "tools_script.py"
IMPORTS = {
    "accelerate": ["torch", "accelerate"],
    "fabric": ["torch", "lightning.fabric"],
    "hugging_face": ["torch", "transformers.trainer", "accelerate"],
    "torchdata": ["torch", "torchdata.stateful_dataloader"],
}


@pytest.fixture(scope="module")
def python() -> str:
    return side_python(".frameworks")


@pytest.mark.parametrize("tool", sorted(IMPORTS))
def test_a_killed_job_goes_on_exactly(python: str, tmp_path: Path, tool: str) -> None:
    """Samples, draws and model are those of the run that was not killed, though the number of loader processes
    changes at the restart."""
    whole = Job(tmp_path, "whole", MODE=f"{tool} ours", ELASTIC_AGENT_SAVE_EVERY="1").life()
    killed = Job(tmp_path, "killed", MODE=f"{tool} ours", ELASTIC_AGENT_SAVE_EVERY="1")
    killed.life(KILL="1:5").life(PROCESSES="2")
    play(python, SCRIPT, [whole, killed], IMPORTS[tool])
    assert differences(whole, killed) == []
    assert killed.reported()["end", 3] == whole.reported()["end", 3]
    assert again(killed) <= unkept(killed) < 22


@pytest.mark.parametrize("tool", ["accelerate", "fabric", "hugging_face"])
def test_two_killed_ranks_go_on_exactly(python: str, tmp_path: Path, tool: str) -> None:
    """The same with two ranks over gloo: both have their parts of every batch, and the model's bits are the same."""
    whole = Job(tmp_path, "whole", MODE=f"{tool} ours", ELASTIC_AGENT_SAVE_EVERY="1").life(2)
    killed = Job(tmp_path, "killed", MODE=f"{tool} ours", ELASTIC_AGENT_SAVE_EVERY="1")
    killed.life(2, KILL="1:5").life(2, PROCESSES="2")
    play(python, SCRIPT, [whole, killed], IMPORTS[tool])
    assert {len(parts) for parts in whole.batches().values()} == {2}
    assert differences(whole, killed) == []
    assert killed.reported()["end", 3] == whole.reported()["end", 3]
    assert again(killed) <= len(whole.batches()) + 2 * unkept(killed)


@pytest.mark.parametrize("tool", ["accelerate", "fabric", "hugging_face"])
def test_a_killed_job_goes_on_exactly_with_another_number_of_ranks(python: str, tmp_path: Path, tool: str) -> None:
    """Two ranks, then four, then one: each sample once, in the batch and with the draws that it has with one rank."""
    whole = Job(tmp_path, "whole", MODE=f"{tool} ours", ELASTIC_AGENT_SAVE_EVERY="1").life()
    resized = Job(tmp_path, "resized", MODE=f"{tool} ours", ELASTIC_AGENT_SAVE_EVERY="1")
    resized.life(2, KILL="0:9").life(4, KILL="1:5", PROCESSES="1").life(1, PROCESSES="2")
    play(python, SCRIPT, [whole, resized], IMPORTS[tool])
    assert differences(whole, resized) == []
