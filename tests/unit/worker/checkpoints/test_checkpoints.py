"""Checkpoints: whatever is killed, full or flipped, the newest whole one is found, and the one before it stays."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import stat
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_agent.worker.checkpoints import files
from elastic_agent.worker.checkpoints import folder as folder_module
from elastic_agent.worker.checkpoints import staging as staging_module
from elastic_agent.worker.checkpoints import writer as writer_module
from elastic_agent.worker.checkpoints.fence import Claim
from elastic_agent.worker.checkpoints.folder import Folder, Retention
from elastic_agent.worker.checkpoints.manifest import NAME, Manifest
from elastic_agent.worker.checkpoints.pieces import Divided
from elastic_agent.worker.checkpoints.staging import Staging
from elastic_agent.worker.checkpoints.writer import Order, Writer, write
from elastic_agent.worker.errors import CheckpointDamaged, CheckpointNotWritten
from elastic_agent.worker.ledger import Ledger
from elastic_agent.worker.verify import verify


def order(step: int, label: str = "") -> Order:
    def manifest(contents: dict[str, files.Content]) -> Manifest:
        return Manifest(step, "token", 0, {"train": [0, step, 0]}, {"world_size": 1}, f"{step:064x}", contents, label)

    return Order(step, Divided({"w": torch.full((1000,), float(step))}), {"ledger.json": b"{}"}, manifest)


def proved(step: int) -> Order:
    """One with a ledger that its manifest has the head of."""
    made = order(step)
    with_head = made.manifest
    made.manifest = lambda contents: replace(with_head(contents), ledger=Ledger().head())
    return made


def folder_in(path: Path) -> Folder:
    return Folder(path / "checkpoints", lambda text: None)


def save(folder: Folder, step: int, label: str = "") -> Path:
    named = write(folder, Claim("token"), order(step, label))
    assert named is not None
    return named


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


def test_a_failed_save_is_told_and_the_next_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    folder = Folder(tmp_path / "checkpoints", said.append)
    writer = Writer(folder, Claim("token"), Retention(), said.append)
    real = os.fsync

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    writer.start(order(1))
    with pytest.raises(CheckpointNotWritten, match=r"step 1: .*No space left on device: '\S+/state\.pt'"):
        writer.wait()
    assert "the one before it stays" in said[0]
    monkeypatch.setattr(os, "fsync", real)
    writer.start(order(2))
    writer.wait()
    assert [kept.step for kept in folder.kept()] == [2]


def test_whoever_waits_long_for_the_disk_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    told, answers, real = threading.Event(), threading.Event(), os.fsync

    def hangs(fd: int) -> None:
        assert answers.wait(60)
        real(fd)

    def log(text: str) -> None:
        said.append(text)
        told.set()

    folder = Folder(tmp_path / "checkpoints", log)
    writer = Writer(folder, Claim("token"), Retention(), log)
    monkeypatch.setattr(os, "fsync", hangs)
    monkeypatch.setattr(writer_module, "PATIENCE_S", 0.01)
    writer.start(order(1))
    waiting = threading.Thread(target=writer.wait)
    waiting.start()
    assert told.wait(60)
    answers.set()
    waiting.join()
    (text,) = said
    assert text.startswith(f"the checkpoint of step 1 has not been written to {folder.path} within 0.01 s, and the tr")
    assert [kept.step for kept in folder.kept()] == [1]


def test_a_checkpoint_that_has_its_name_is_told_with_the_bytes_of_its_files(tmp_path: Path) -> None:
    """All but the manifest, which names them."""
    told: list[tuple[Path, int]] = []
    writer = Writer(
        folder_in(tmp_path),
        Claim("token"),
        Retention(),
        lambda text: None,
        lambda path, size: told.append((path, size)),
    )
    for step in (1, 2):
        writer.start(order(step))
        writer.wait()
    sizes = [sum(file.stat().st_size for file in path.iterdir() if file.name != NAME) for path, _ in told]
    assert [path.name for path, _ in told] == ["step-000001", "step-000002"]
    assert [size for _, size in told] == sizes


def test_a_save_that_cannot_fit_is_refused_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_in(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 10, 10, 10, 10, 10, 10, 0, 255)))
    with pytest.raises(OSError, match="has 0 MiB free, and a checkpoint needs 16 MiB"):
        save(folder, 1)
    assert [*folder.path.iterdir()] == []


def test_a_save_without_inodes_is_refused_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_in(tmp_path)
    plenty = (4096, 4096, 1 << 30, 1 << 30, 1 << 30, 100, 3, 3, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(plenty))
    with pytest.raises(OSError, match="has 3 inodes free, and a checkpoint needs 8"):
        save(folder, 1)
    assert [*folder.path.iterdir()] == []


def test_a_file_system_that_tells_no_size_and_syncs_no_directories_takes_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tmpfs without a limit has no blocks, nor have file systems of programs, which may know files only."""
    real = os.fsync

    def files_only(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(fd)

    monkeypatch.setattr(os, "fsync", files_only)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255)))
    folder = folder_in(tmp_path)
    folder.claim(Claim("token"))
    save(folder, 1)
    assert [kept.step for kept in folder.kept()] == [1]


def test_what_a_dead_writer_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    left = folder.path / ".step-000004.host-1-99-abc"
    left.mkdir()
    (left / "state.pt").write_bytes(b"half")
    folder.remove_leftovers("me")
    assert [*folder.path.iterdir()] == []


def test_starts_in_one_directory_remove_nothing_that_another_one_is_about_to_name(tmp_path: Path) -> None:
    """A start takes what it finds half written for left behind. Two jobs by mistake, or a round that is over."""
    folder, wrong = folder_in(tmp_path), []  # type: tuple[Folder, list[Exception]]

    def start(name: str) -> None:
        try:
            for number in range(300):
                folder.claim(Claim(f"{name}-{number}"))
                folder.remove_leftovers(f"{name}-{number}")
        except Exception as error:  # noqa: BLE001 - looked at below
            wrong.append(error)

    threads = [threading.Thread(target=start, args=(name,)) for name in "abc"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_retention_keeps_the_newest_every_nth_and_the_labelled(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    for step in range(1, 9):
        save(folder, step, "before the change" if step == 2 else "")
        folder.retain(Retention(newest=2, every=5), "token")
    assert [kept.step for kept in folder.kept()] == [8, 7, 5, 2]


def test_a_label_is_kept_where_the_same_state_was_saved_before(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    save(folder, 1)
    save(folder, 1, "before the change")
    for step in (2, 3, 4):
        save(folder, step)
        folder.retain(Retention(), "token")
    assert [kept.path.name for kept in folder.kept()] == ["step-000004", "step-000003", "step-000001-2"]


def test_a_damaged_checkpoint_is_not_removed_by_retention(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    damaged = save(folder, 1)
    (damaged / "manifest.json").write_text("{")
    for step in (2, 3, 4):
        save(folder, step)
        folder.retain(Retention(), "token")
    assert [kept.step for kept in folder.kept()] == [4, 3, 1]


@pytest.mark.parametrize("removed", [(1,), (1, 2)])
def test_verify_takes_what_retention_removes_meanwhile_for_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: tuple[int, ...]
) -> None:
    """The training goes on beside it; with all that it had listed gone it looks again."""
    folder, check = folder_in(tmp_path), files.check_file
    for step in (1, 2):
        write(folder, Claim("token"), proved(step))

    def checked(path: Path, content: files.Content) -> None:
        if int(path.parent.name.removeprefix("step-")) in removed:
            if not (folder.path / "step-000003").exists():
                write(folder, Claim("token"), proved(3))
            folder.retain(Retention(newest=3 - len(removed)), "token")
        check(path, content)

    monkeypatch.setattr(folder_module, "check_file", checked)
    report = verify(folder.path)
    assert report.proved, report.lines
    assert not [line for line in report.lines if "DAMAGED" in line]


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


@pytest.mark.parametrize("inference", [False, True])
def test_a_large_state_is_copied_whole_by_several_threads(inference: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "_PART", 1000)
    monkeypatch.setattr(staging_module, "_ALONE", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    whole = torch.arange(100_001.0)
    state = {
        "long": whole,
        "turned": torch.randn(300, 70).t(),
        "conjugate": torch.randn(900, dtype=torch.complex64).conj(),
        "small": torch.tensor(3),
        "none": torch.empty(0),
        "again": whole,
    }
    with torch.inference_mode(inference):
        staging = Staging()
        for _ in range(2):
            whole.mul_(2)
            copied = staging.copy(state)
            assert all(torch.equal(copied[name], tensor) for name, tensor in state.items())
            assert copied["again"] is copied["long"]
            assert copied["long"].data_ptr() != whole.data_ptr()


@pytest.mark.parametrize("first", [False, True])
def test_a_state_is_copied_in_inference_mode_and_outside_of_it_in_turns(first: bool) -> None:
    """An evaluation under `torch.inference_mode()` saves, and then the training does."""
    staging, state = Staging(), {"w": torch.ones(10), "b": torch.ones(10).to_sparse()}
    for inference in (first, not first, first):
        with torch.inference_mode(inference):
            state["w"].mul_(2)
            copied = staging.copy(state)
        assert torch.equal(copied["w"], state["w"])


def test_an_error_in_any_of_the_threads_that_copy_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "_ALONE", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    unequal = [(torch.empty(3), torch.ones(2))]
    with pytest.raises(RuntimeError, match="size"):
        staging_module.fill(unequal)


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


def test_a_file_is_verified_by_way_of_memory_that_begins_with_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes behind the beginning of one, some processors copy out of the file's pages at a third of the speed."""
    places = []

    def seen(data: memoryview, value: int) -> int:
        places.append(ctypes.addressof(ctypes.c_char.from_buffer(data)) % mmap.PAGESIZE)
        return zlib.crc32(data, value)

    monkeypatch.setattr(files, "crc32", seen)
    path, data = tmp_path / "file", os.urandom(700_000)
    path.write_bytes(data)
    assert files.sums_of(path).sums == (zlib.crc32(data),)
    assert set(places) == {0}
