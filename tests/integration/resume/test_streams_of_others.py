"""Datasets of other libraries that are read as streams: refused with what to change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.resume.jobs import QUIET

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
