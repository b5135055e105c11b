"""The private directory of a trainer, where another trainer of this user starts on the same host."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from elastic_agent.trainer.program import folder


def test_a_trainer_keeps_its_directory_whenever_another_one_removes_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even between the making of its lock and the locking."""
    monkeypatch.setattr(folder, "MEMORY", str(tmp_path))
    monkeypatch.setattr(folder, "ROOM_BYTES", 0)
    swept: list[int] = []
    flock = fcntl.flock

    def flock_late(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and len(swept) < 2:
            swept.append(fd)
            folder._sweep(str(tmp_path))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    made = folder.PrivateFolder()
    folder._sweep(str(tmp_path))
    assert len(swept) == 2
    assert [str(path) for path in tmp_path.iterdir()] == [made.path]
    (Path(made.path) / "program").write_text("kept")
    made.remove()
    assert not list(tmp_path.iterdir())


def test_a_directory_whose_program_is_gone_is_removed_by_the_next_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "MEMORY", str(tmp_path))
    monkeypatch.setattr(folder, "ROOM_BYTES", 0)
    left = tmp_path / f"{folder.PREFIX}left"
    left.mkdir()
    (left / folder.LOCK).touch()
    made = folder.PrivateFolder()
    assert [str(path) for path in tmp_path.iterdir()] == [made.path]
    made.remove()
