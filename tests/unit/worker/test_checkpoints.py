"""Checkpoints: whatever is killed, full or flipped, the newest whole one is found, and the one before it stays."""

from __future__ import annotations

import errno
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from elastic_agent.worker.checkpoints import files
from elastic_agent.worker.checkpoints.folder import Folder, Retention
from elastic_agent.worker.checkpoints.manifest import Manifest
from elastic_agent.worker.checkpoints.staging import Staging
from elastic_agent.worker.checkpoints.writer import Order, Writer, write
from elastic_agent.worker.errors import CheckpointDamaged, CheckpointNotWritten, WrongState

IO_CALLS = ("open", "write", "fsync", "mkdir", "rename", "close", "statvfs")
"""What a save asks of the system."""


def order(step: int, label: str = "") -> Order:
    def manifest(contents: dict[str, files.Content]) -> Manifest:
        return Manifest(step, "token", 0, {"train": [0, step, 0]}, {"world_size": 1}, f"{step:064x}", contents, label)

    return Order(step, {"state": {"w": torch.full((1000,), float(step))}}, {"ledger.json": b"{}"}, manifest)


def folder_in(path: Path) -> Folder:
    return Folder(path / "checkpoints", lambda text: None)


def save(folder: Folder, step: int, label: str = "") -> Path:
    return write(folder, "token", 0, order(step, label))


def test_a_checkpoint_is_found_with_what_was_saved(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    save(folder, 3)
    found = folder.newest()
    assert found is not None
    assert found[1].places == {"train": [0, 3, 0]}
    assert torch.load(found[0] / "state.pt", weights_only=True)["w"][0] == 3


def test_every_flipped_byte_is_found_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    save(folder, 1)
    rng = random.Random(7)
    for step in range(2, 42):
        path = save(folder, step)
        target = rng.choice([*path.iterdir()])
        data = bytearray(target.read_bytes())
        place = rng.randrange(len(data))
        data[place] ^= 1 << rng.randrange(8)
        target.write_bytes(data)
        found = folder.newest()
        if target.name == "manifest.json" and found is not None and found[0] == path:
            continue  # a flip in a part that nothing depends on, such as a space or the name of the torch version
        assert found is not None
        assert found[1].step == 1, f"byte {place} of {target.name}"
        assert (folder.path / f"{path.name}.bad" / "WHY.txt").exists()


@pytest.mark.parametrize("spoil", ["cut", "emptied", "removed", "zeroed"])
def test_a_file_that_is_not_whole_is_found(tmp_path: Path, spoil: str) -> None:
    folder = folder_in(tmp_path)
    save(folder, 1)
    state = save(folder, 2) / "state.pt"
    data = state.read_bytes()
    how: dict[str, Callable[[], Any]] = {
        "cut": lambda: state.write_bytes(data[:-1]),
        "emptied": lambda: state.write_bytes(b""),
        "removed": state.unlink,
        "zeroed": lambda: state.write_bytes(data[:-512] + bytes(512)),
    }
    how[spoil]()
    with pytest.raises(CheckpointDamaged, match=r"state\.pt"):
        folder.verify(state.parent)
    found = folder.newest()
    assert found is not None
    assert found[1].step == 1


def test_a_save_that_is_killed_at_any_call_leaves_the_one_before(tmp_path: Path) -> None:
    """The process ends without a word before its n-th call to the system, for every n that a save has."""
    folder = folder_in(tmp_path)
    save(folder, 1)
    for number in range(1, 200):
        pid = os.fork()
        if pid == 0:
            _killed(folder, number)
        _, status = os.waitpid(pid, 0)
        found = folder.newest()
        assert found is not None
        if os.waitstatus_to_exitcode(status) == 0:
            assert found[1].step == 2
            break
        assert found[1].step in (1, 2)
        if found[1].step == 2:
            # Killed between the rename and the end: whole, and the next trial begins without it.
            folder.set_aside(found[0], "trial")
    assert number > 20


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_any_call_leaves_the_one_before(tmp_path: Path, code: int) -> None:
    folder = folder_in(tmp_path)
    save(folder, 1)
    refused = 0
    for number in range(1, 200):
        pid = os.fork()
        if pid == 0:
            _refused(folder, number, code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) in (0, 5)
        found = folder.newest()
        assert found is not None
        if os.waitstatus_to_exitcode(status) == 0:
            break
        refused += 1
        assert found[1].step in (1, 2)
        if found[1].step == 2:
            folder.set_aside(found[0], "trial")
    assert refused > 15


def _killed(folder: Folder, number: int) -> NoReturn:
    """In a forked child."""
    try:
        _fail_at(number, lambda: os._exit(9))
        write(folder, f"token{number}", 0, order(2))
        os._exit(0)
    finally:
        os._exit(7)


def _refused(folder: Folder, number: int, code: int) -> NoReturn:
    """In a forked child."""

    def refuse() -> None:
        raise OSError(code, os.strerror(code))

    try:
        _fail_at(number, refuse)
        write(folder, "token", 0, order(2))
        os._exit(0)
    except OSError:
        os._exit(5)
    except BaseException as error:
        print(f"call {number}: {error!r}", file=sys.stderr)
        raise
    finally:
        os._exit(6)


def _fail_at(number: int, fail: Callable[[], Any]) -> None:
    """In a forked child: the number-th call to the system by a save fails so."""
    count = 0
    for name in IO_CALLS:
        real = getattr(os, name)

        def counted(*arguments: Any, real: Callable[..., Any] = real, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                fail()
            return real(*arguments, **named)

        setattr(os, name, counted)


def test_a_failed_save_is_told_and_the_next_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    folder = Folder(tmp_path / "checkpoints", said.append)
    writer = Writer(folder, "token", 0, Retention(), said.append)
    real = os.fsync

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    writer.start(order(1))
    with pytest.raises(CheckpointNotWritten, match=r"step 1: .*No space left"):
        writer.wait()
    assert "the one before it stands" in said[0]
    monkeypatch.setattr(os, "fsync", real)
    writer.start(order(2))
    writer.wait()
    assert [kept.step for kept in folder.kept()] == [2]


def test_a_save_that_cannot_fit_is_refused_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_in(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 10, 10, 10, 10, 10, 10, 0, 255)))
    with pytest.raises(OSError, match="has 0 MiB free, and a checkpoint needs 16 MiB"):
        save(folder, 1)
    assert [*folder.path.iterdir()] == []


def test_an_older_round_commits_nothing(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.begin_round(3, "new")
    with pytest.raises(WrongState, match=r"round 3 writes to .* now; this is round 2, which is over"):
        write(folder, "old", 2, order(1))
    with pytest.raises(WrongState, match="this is round 2, an older one"):
        folder.begin_round(2, "old")
    assert folder.kept() == []


def test_what_a_dead_writer_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    left = folder.path / ".step-000004.host-1-99-abc"
    left.mkdir()
    (left / "state.pt").write_bytes(b"half")
    folder.sweep("me")
    assert [*folder.path.iterdir()] == []


def test_retention_keeps_the_newest_every_nth_and_the_labelled(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    for step in range(1, 9):
        save(folder, step, "before the change" if step == 2 else "")
        folder.retain(Retention(newest=2, every=5), "token")
    assert [kept.step for kept in folder.kept()] == [8, 7, 5, 2]


def test_a_damaged_checkpoint_is_not_removed_by_retention(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    damaged = save(folder, 1)
    (damaged / "manifest.json").write_text("{")
    for step in (2, 3, 4):
        save(folder, step)
        folder.retain(Retention(), "token")
    assert [kept.step for kept in folder.kept()] == [4, 3, 1]


def test_a_staged_copy_does_not_change_when_training_goes_on() -> None:
    staging = Staging()
    weight = torch.ones(10)
    copied = staging.copy({"w": weight, "list": [weight, 3]})
    weight.add_(1)
    assert copied["w"].sum() == 10
    assert copied["list"][0] is copied["w"]


def test_the_second_copy_of_a_state_uses_the_buffers_of_the_first() -> None:
    staging = Staging()
    state = {"w": torch.ones(10)}
    first = staging.copy(state)["w"].data_ptr()
    assert staging.copy(state)["w"].data_ptr() == first


def test_the_sums_of_a_file_do_not_depend_on_how_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PIECE", 100)
    data = os.urandom(1050)
    whole = files.Sums()
    whole.add(memoryview(data))
    parts = files.Sums()
    for start in range(0, len(data), 7):
        parts.add(memoryview(data[start : start + 7]))
    assert whole.content() == parts.content()
    assert len(whole.content().sums) == 11
