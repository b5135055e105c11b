"""Datasets of other libraries that are read as streams: exact with the real package, or refused with what to change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import support.resume
from elastic_agent.worker.verify import verify
from support.resume.jobs import QUIET, Job, again, differences, play, unkept
from support.side_environments import side_python
from support.source_tree import ROOT

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
    """By the name of its package and its methods: the package itself needs the CUDA build of torch."""
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
    assert killed.reported()["end", 3] == whole.reported()["end", 3]
    assert again(killed) <= unkept(killed) < 22


def streaming_python() -> str:
    """Of the environment with MosaicML Streaming's own package, which `make streaming` makes."""
    python = ROOT / ".streaming" / "bin" / "python"
    if not python.exists():
        pytest.skip("mosaicml-streaming is not installed in .streaming: `make streaming` does it, with several GB")
    return str(python)


SHARDS = """
from streaming import MDSWriter, StreamingDataset
with MDSWriter(out={shards!r}, columns={{'x': 'int'}}, size_limit=256) as writer:
    for number in range(64): writer.write({{'x': number}})
data = StreamingDataset(local={shards!r}, batch_size=4)
"""


def test_the_real_package_of_mosaicml_is_refused(tmp_path: Path) -> None:
    """Shards of numbers, written and read by it."""
    said = refusal(streaming_python(), SHARDS.format(shards=str(tmp_path / "shards")))
    assert "StreamingDataset of MosaicML Streaming cuts its samples" in said
    assert "a torch Dataset whose __len__ and __getitem__ ask it" in said


BY_INDEX = """
import os, sys, torch
from pathlib import Path
from torch.utils.data import DataLoader, Dataset
from streaming import StreamingDataset
from elastic_agent.worker import Every, Run
data = StreamingDataset(local={shards!r}, batch_size=4)
class Indexed(Dataset):
    def __len__(self): return len(data)
    def __getitem__(self, index): return data[index]["x"]
where, processes, kill = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
run = Run(where, every=Every(steps=1), net=torch.nn.Linear(1, 1))
loader = run.loader(DataLoader(Indexed(), batch_size=4, shuffle=True, num_workers=processes), global_batch=4)
for epoch in run.epochs(2):
    for batch in loader:
        with open(f"{{where}}.txt", "a") as file: file.write(f"{{run.steps}} {{batch.tolist()}}\\n")
        if run.steps == kill: os.kill(os.getpid(), 9)
        run.step()
"""


def test_a_dataset_of_mosaicml_that_is_asked_by_index_goes_on_exactly(tmp_path: Path) -> None:
    """What the refusal says to write, with the real package: SIGKILL in either epoch, other loader processes."""
    python, shards = streaming_python(), str(tmp_path / "shards")
    subprocess.run([python, "-c", SHARDS.format(shards=shards)], env={**os.environ, **QUIET}, check=True, timeout=120)

    def life(name: str, processes: int, kill: int) -> int:
        command = [python, "-c", BY_INDEX.format(shards=shards), str(tmp_path / name), str(processes), str(kill)]
        return subprocess.run(command, env={**os.environ, **QUIET}, check=False, timeout=300).returncode

    def batches(name: str) -> dict[str, str]:
        lines = (tmp_path / f"{name}.txt").read_text().splitlines()
        return dict(line.split(" ", 1) for line in lines)

    assert life("whole", 0, -1) == 0
    assert [life("killed", 0, 7), life("killed", 2, 21), life("killed", 1, -1)] == [-9, -9, 0]
    assert batches("killed") == batches("whole")
    assert len(batches("whole")) == 32
    assert verify(tmp_path / "killed").proved
