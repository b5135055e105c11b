"""Copies on slower storage: complete or not there, never in the way of training, and found where a node has nothing."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_agent.worker import Every, Retention, Run
from elastic_agent.worker.checkpoints import copies, files, folder
from elastic_agent.worker.checkpoints.files import Content
from elastic_agent.worker.errors import Misused
from elastic_agent.worker.verify import verify

NEVER = Every(seconds=None)


def run_in(path: Path, copy_to: Any, **more: Any) -> tuple[Run, torch.nn.Module]:
    net = torch.nn.Linear(3, 3)
    return Run(path, every=NEVER, copy_to=copy_to, net=net, **more), net


def save(run: Run, wait: bool = True) -> None:
    """One step, and a checkpoint of it."""
    run.steps += 1
    run._commits += 1
    run._save("")
    if wait:
        run._persistence.wait()


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


@pytest.fixture
def memory() -> Iterator[str]:
    """A URL of fsspec's file system in memory, which has objects as a bucket has."""
    fsspec = pytest.importorskip("fsspec")
    yield "memory://bucket/run"
    fsspec.filesystem("memory").store.clear()


def test_each_checkpoint_is_copied_to_a_directory_and_verifies_there(tmp_path: Path) -> None:
    run, _ = run_in(tmp_path / "near", tmp_path / "far")
    save(run)
    assert verify(tmp_path / "far").proved
    assert names(tmp_path / "far" / "step-000001") == ["ledger.json", "manifest.json", "state.pt"]


def test_a_start_without_local_checkpoints_takes_the_newest_copy(tmp_path: Path) -> None:
    run, net = run_in(tmp_path / "near", tmp_path / "far")
    save(run)
    shutil.rmtree(tmp_path / "near")
    again, other = run_in(tmp_path / "near", tmp_path / "far")
    assert again.steps == 1
    assert torch.equal(next(iter(net.parameters())), next(iter(other.parameters())))
    assert verify(tmp_path / "near").proved


def test_a_start_whose_own_disk_reads_nothing_takes_the_newest_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = run_in(tmp_path / "near", tmp_path / "far")
    save(run)
    real = files.check_file

    def unreadable(path: Path, content: Content) -> None:
        if path.parent.parent.name == "near" and not path.parent.name.endswith("-2"):
            raise OSError(5, "Input/output error")
        real(path, content)

    monkeypatch.setattr(folder, "check_file", unreadable)
    assert run_in(tmp_path / "near", tmp_path / "far")[0].steps == 1
    assert "step-000001.bad" in names(tmp_path / "near")


def test_copies_go_to_any_url_of_fsspec_and_come_back(tmp_path: Path, memory: str) -> None:
    run, _ = run_in(tmp_path / "near", memory)
    save(run)
    again, _ = run_in(tmp_path / "another node", memory)
    assert again.steps == 1


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("nosuch://bucket/run", r"copy_to='nosuch://bucket/run'\): Protocol not known: nosuch; .*another URL"),
        ("", r"copy_to=''\) names no directory: give one, or a URL, or leave copy_to out"),
        ("a file", r"a file'\) names no directory: .*a file is a file; remove it, or give"),
        ("a file/run", r"a file/run'\) names no directory: .*a file is a file; remove it, or give"),
    ],
)
def test_slower_storage_that_cannot_be_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, said: str
) -> None:
    if "://" in where:
        pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").write_text("")
    with pytest.raises(Misused, match=said):
        run_in(tmp_path / "near", where)


def test_a_start_copies_what_the_one_before_it_has_not_brought_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed within the copy of its last checkpoint, and the start after it has nothing left to do."""
    near, far = tmp_path / "near", tmp_path / "far"
    for _ in range(2):
        save(run_in(near, far)[0])
    (far / "step-000002" / "manifest.json").unlink()
    run_in(near, far)[0].close()
    assert verify(far).lines[0].startswith("step-000002: whole")
    sent: list[str] = []
    monkeypatch.setattr(copies.Directory, "send", lambda self, path, folder: sent.append(folder))
    run_in(near, far)[0].close()
    assert sent == []


def test_a_start_with_an_older_checkpoint_of_its_own_says_that_there_is_a_newer_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that was put back to what it held a day before."""
    near, far = tmp_path / "near", tmp_path / "far"
    save(run_in(near, far)[0])
    shutil.copytree(near, tmp_path / "day before")
    save(run_in(near, far)[0])
    assert "has a copy of" not in caplog.text
    again, _ = run_in(tmp_path / "day before", far)
    again._persistence.wait()
    assert "slower storage has a copy of step 2, and this start goes on from step 1, which it" in caplog.text
    caplog.clear()
    save(again)
    assert "has a copy of" not in caplog.text


def test_the_manifest_of_a_copy_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    real = copies.Directory.send

    def send(self: Any, path: Path, folder: str) -> None:
        sent.append(path.name)
        real(self, path, folder)

    monkeypatch.setattr(copies.Directory, "send", send)
    run, _ = run_in(tmp_path / "near", tmp_path / "far")
    save(run)
    assert sent[-1] == "manifest.json"
    assert sorted(sent) == ["ledger.json", "manifest.json", "state.pt"]


def test_a_copy_without_a_manifest_or_with_a_flipped_bit_is_not_used(tmp_path: Path) -> None:
    run, _ = run_in(tmp_path / "near", tmp_path / "far", keep=Retention(newest=3))
    for _ in range(3):
        save(run)
    (tmp_path / "far" / "step-000003" / "manifest.json").unlink()
    state = tmp_path / "far" / "step-000002" / "state.pt"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 4
    state.write_bytes(data)
    again, _ = run_in(tmp_path / "another node", tmp_path / "far")
    assert again.steps == 1


def test_retention_holds_for_copies_and_two_stay_local(tmp_path: Path) -> None:
    run, _ = run_in(tmp_path / "near", tmp_path / "far")
    for _ in range(4):
        save(run)
    for where in ("near", "far"):
        kept = [name for name in names(tmp_path / where) if name.startswith("step-")]
        assert kept == ["step-000003", "step-000004"], where


@pytest.mark.parametrize("newest", [1, 2])
def test_half_copies_of_lost_nodes_cost_no_whole_one(tmp_path: Path, newest: int) -> None:
    """They are of later steps, as the node that came after each has gone on from the newest whole copy. They are
    removed once the whole ones that retention keeps are newer."""
    near, far = tmp_path / "near", tmp_path / "far"
    run, _ = run_in(near, far, keep=Retention(newest=newest))
    for _ in range(4):
        save(run)
    whole = [f"step-{step:06d}" for step in range(5 - newest, 5)]
    assert names(far) == whole
    for half in ("step-000008", "step-000009"):
        shutil.copytree(far / "step-000004", far / half)
        (far / half / "manifest.json").unlink()
    save(run)
    assert names(far) == [*[*whole, "step-000005"][-newest:], "step-000008", "step-000009"]
    assert run_in(tmp_path / "another node", far, keep=Retention(newest=newest))[0].steps == 5
    while run.steps < 12:
        save(run)
    assert names(far) == [f"step-{step:06d}" for step in range(13 - newest, 13)]


def test_a_training_removes_no_copies_of_another_one(tmp_path: Path) -> None:
    """Two runs, each with checkpoints of its own, are given one place for the copies."""
    for run, steps in [(run_in(tmp_path / name, tmp_path / "far")[0], steps) for name, steps in (("a", 2), ("b", 5))]:
        for _ in range(steps):
            save(run)
    assert names(tmp_path / "far") == ["step-000001", "step-000002", "step-000004", "step-000005"]


def test_a_labelled_copy_stays(tmp_path: Path) -> None:
    run, _ = run_in(tmp_path / "near", tmp_path / "far")
    run.steps += 1
    run._save("before the change")
    run._persistence.wait()
    for _ in range(3):
        save(run)
    assert names(tmp_path / "far") == ["step-000001", "step-000003", "step-000004"]


def test_a_copy_that_hangs_does_not_hold_training_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, began, told = threading.Event(), threading.Event(), threading.Event()
    said: list[str] = []

    def log(text: str) -> None:
        said.append(text)
        told.set()

    real = copies.Directory.send

    def send(self: Any, path: Path, folder: str) -> None:
        began.set()
        assert go.wait(60)
        real(self, path, folder)

    monkeypatch.setattr(copies.Directory, "send", send)
    run, _ = run_in(tmp_path / "near", tmp_path / "far")
    try:
        save(run, wait=False)
        assert began.wait(60)  # a copy that has not begun gives way to a newer one
        for _ in range(4):
            save(run, wait=False)
        run._persistence._writer.wait()
        # What is being copied, and what waits, is not removed meanwhile.
        assert names(tmp_path / "near") == ["round.json", "step-000001", "step-000004", "step-000005"]
        monkeypatch.setattr(copies, "PATIENCE_S", 0.01)
        assert run._persistence._copier is not None
        monkeypatch.setattr(run._persistence._copier, "_log", log)
        ending = threading.Thread(target=run._persistence.wait)
        ending.start()
        assert told.wait(60)
        assert said[0].startswith("step-000001, step-000005 cannot be copied to slower storage within 0.01 s")
    finally:
        go.set()
    ending.join()
    assert names(tmp_path / "far") == ["step-000001", "step-000005"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (NotImplementedError(), "NotImplementedError"),  # of a file system of fsspec's that is read only
    ],
)
def test_storage_that_fails_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    def fails(self: Any, path: Path, folder: str) -> Content:
        raise error

    monkeypatch.setattr(copies.Directory, "send", fails)
    run, _ = run_in(tmp_path / "near", tmp_path / "far")
    with caplog.at_level(logging.WARNING):
        save(run)
    assert f"cannot copy step-000001 to slower storage: {said}; training goes on" in caplog.text
    assert verify(tmp_path / "near").proved


def test_storage_that_removes_nothing_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def denied(self: Any, name: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(copies.Directory, "remove", denied)
    run, _ = run_in(tmp_path / "near", tmp_path / "far")
    for _ in range(3):
        save(run)
    assert "cannot remove an old copy from slower storage: [Errno 13] Permission denied" in caplog.text
    assert "cannot copy" not in caplog.text
    assert len(names(tmp_path / "far")) == 3


def test_a_url_without_fsspec_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(Misused, match="needs fsspec: pip install fsspec, or give a directory"):
        run_in(tmp_path / "near", "s3://bucket/run")


@pytest.mark.parametrize("stale_step", [2, 3])
def test_a_worker_of_an_older_start_changes_no_newer_copy_and_its_own_is_not_used(
    tmp_path: Path, stale_step: int
) -> None:
    """A node whose directory nobody else sees is cut off, and goes on beside the start that took its place."""
    far = tmp_path / "far"
    first, stale = run_in(tmp_path / "a", far)
    save(first)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    newer, net = run_in(tmp_path / "b", far)
    save(newer)
    torch.nn.init.zeros_(stale.get_parameter("weight"))
    while first.steps < stale_step:
        save(first)
    assert verify(far).lines[0].startswith(f"step-00000{stale_step}")
    again, other = run_in(tmp_path / "c", far)
    assert again.steps == 2
    assert torch.equal(next(iter(net.parameters())), next(iter(other.parameters())))
