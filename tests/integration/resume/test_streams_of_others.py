"""Datasets of other libraries that are read as streams: exact with the real package, or refused with what to change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import support.resume
from support.resume.jobs import QUIET, Job, again, differences, play
from support.side_environments import side_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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


def test_mosaicml_streaming_is_refused_with_what_to_write() -> None:
    """By the name of its package and its methods: the package itself needs an older transformers and torchvision."""
    dataset = (
        "from torch.utils.data import IterableDataset\n"
        "class StreamingDataset(IterableDataset):\n"
        "    def __len__(self): return 64\n"
        "    def __iter__(self): return iter(range(64))\n"
        "    def __getitem__(self, index): return index\n"
        "    def state_dict(self, num_samples, from_beginning): return {}\n"
        "    def load_state_dict(self, obj): pass\n"
        "StreamingDataset.__module__ = 'streaming.base.dataset'\n"
        "data = StreamingDataset()\n"
    )
    said = refusal(sys.executable, dataset)
    assert "StreamingDataset of MosaicML Streaming cuts its samples" in said
    assert "so that it is read by index" in said


def installed(python: str, package: str) -> bool:
    looks = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", looks], check=False, timeout=60).returncode == 0


def test_a_stream_of_hugging_faces_datasets_goes_on_exactly(tmp_path: Path) -> None:
    """The real package: SIGKILL in the second epoch, then on with a loader process."""
    python = side_python(".frameworks")
    if not installed(python, "datasets"):
        pytest.skip("datasets is not installed in .frameworks")
    whole = Job(tmp_path, "whole", MODE="streams ours").life()
    killed = Job(tmp_path, "killed", MODE="streams ours").life(KILL="1:5").life(PROCESSES="1")
    play(python, Path(support.resume.__path__[0]) / "tools_script.py", [whole, killed], ["torch", "datasets"])
    assert differences(whole, killed) == []
    assert killed.told()["end", 3] == whole.told()["end", 3]
    assert again(killed) <= 5


def test_the_real_package_of_mosaicml_is_refused(tmp_path: Path) -> None:
    """Where mosaicml-streaming is installed in .frameworks: four shards of numbers, written and read by it."""
    python = side_python(".frameworks")
    if not installed(python, "streaming"):
        pytest.skip("mosaicml-streaming is not installed in .frameworks: it needs an older transformers")
    dataset = (
        "from streaming import MDSWriter, StreamingDataset\n"
        f"with MDSWriter(out={str(tmp_path / 'shards')!r}, columns={{'x': 'int'}}, size_limit=256) as writer:\n"
        "    for number in range(64): writer.write({'x': number})\n"
        f"data = StreamingDataset(local={str(tmp_path / 'shards')!r}, batch_size=4)\n"
    )
    said = refusal(python, dataset)
    assert "StreamingDataset of MosaicML Streaming cuts its samples" in said
