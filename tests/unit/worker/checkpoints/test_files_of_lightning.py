"""What a start takes for written by the start before it, of the files of Lightning's `ModelCheckpoint`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from elastic_agent.worker.frameworks.lightning_files import capture, restore


class Writes:
    """A callback that writes checkpoints under other names where it finds some."""

    FILE_EXTENSION = ".ckpt"
    state_key = "Writes"

    def __init__(self, folder: Path) -> None:
        self.dirpath = str(folder)

    def file_exists(self, filepath: Any, trainer: Any) -> bool:
        return Path(filepath).exists()


def trainer_of(folder: Path) -> tuple[Any, Writes]:
    callback = Writes(folder)
    strategy = SimpleNamespace(broadcast=lambda value: value)
    return SimpleNamespace(checkpoint_callbacks=[callback], strategy=strategy), callback


def test_files_of_a_start_that_came_further_are_no_part_of_a_checkpoint_before(tmp_path: Path) -> None:
    """A second start, killed before it has come to the file that the first has written, wrote a checkpoint that said
    that the file was there: a third one gave it another name."""
    (tmp_path / "step=4.ckpt").touch()
    first, _ = trainer_of(tmp_path)
    kept = capture(first)
    (tmp_path / "step=8.ckpt").touch()
    trainer, callback = trainer_of(tmp_path)
    for _ in range(3):  # starts, of which each has a callback without what the one before has set
        vars(callback).pop("file_exists", None)
        restore(trainer, kept)
        kept = capture(trainer)
        assert kept["Writes"]["files"] == ["step=4.ckpt"]
    assert not callback.file_exists(tmp_path / "step=8.ckpt", trainer)
    assert capture(trainer)["Writes"]["files"] == ["step=4.ckpt", "step=8.ckpt"]
    assert callback.file_exists(tmp_path / "step=8.ckpt", trainer)
