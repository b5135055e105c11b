"""Datasets of other libraries that are read as streams: exact, or refused with what to change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import support.resume
from support.resume.jobs import QUIET, Job, differences, play
from support.side_environments import side_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(support.resume.__path__[0]) / "tools_script.py"


@pytest.fixture(scope="module")
def python() -> str:
    return side_python(".frameworks")


def test_a_stream_of_hugging_faces_datasets_goes_on_exactly(python: str, tmp_path: Path) -> None:
    """The real package, killed in the middle of an epoch, and read by another process after it."""
    whole = Job(tmp_path, "whole", MODE="streams ours").life()
    killed = Job(tmp_path, "killed", MODE="streams ours").life(KILL="1:5").life(PROCESSES="1")
    play(python, SCRIPT, [whole, killed], ["torch", "datasets"])
    assert differences(whole, killed) == []
    assert killed.told()["end", 3] == whole.told()["end", 3]


REFUSED = """
from torch.utils.data import DataLoader
from elastic_agent.worker.errors import NotResumable
from elastic_agent.worker.frameworks.stateful import exact
{dataset}
try:
    exact(DataLoader(data, batch_size=4))
except NotResumable as refusal:
    print("refused:", refusal)
exact(DataLoader(data, batch_size=4), replay=True)
"""


def refusal(python: str, dataset: str) -> str:
    done = subprocess.run(
        [python, "-c", REFUSED.format(dataset=dataset)],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_shuffle_buffer_of_hugging_faces_datasets_is_refused(python: str) -> None:
    """The real package: its state leaves the buffer out, so samples would be lost; reading again is allowed."""
    dataset = (
        "import datasets\n"
        "data = datasets.Dataset.from_dict({'x': list(range(64))}).to_iterable_dataset().shuffle(buffer_size=8)\n"
        "data = data.map(lambda row: row)\n"
    )
    said = refusal(python, dataset)
    assert "refused: " in said
    assert "shuffle before to_iterable_dataset()" in said


def test_mosaicml_streaming_is_refused_with_what_to_write() -> None:
    """By the name of its package and its methods: the package itself needs an older transformers and torchvision."""
    dataset = (
        "from torch.utils.data import IterableDataset\n"
        "class StreamingDataset(IterableDataset):\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, index): return index\n"
        "    def state_dict(self, num_samples, from_beginning): return {}\n"
        "    def load_state_dict(self, obj): pass\n"
        "StreamingDataset.__module__ = 'streaming.base.dataset'\n"
        "data = StreamingDataset()\n"
    )
    said = refusal(sys.executable, dataset)
    assert "StreamingDataset of MosaicML Streaming cuts its samples" in said
    assert "so that it is read by index" in said
