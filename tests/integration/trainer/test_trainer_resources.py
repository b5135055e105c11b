"""Workers come and go with what a node has resources for; and what is kept where nothing may be on disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from elastic_agent.agent.errors import UsageError
from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingFailed
from elastic_agent.trainer.program import folder, resources
from support.trainers import training
from support.trainers.reports import Reports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("one_thread")]


class Devices:
    """What a node has, which the test changes."""

    def __init__(self, count: int) -> None:
        self.count, self.looks = count, 0
        self.asked = threading.Semaphore(0)

    def __call__(self) -> int:
        self.looks += 1
        self.asked.release()
        return self.count


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[dict[str, Any]]:
    (tmp_path / "seen").mkdir()
    told = Reports(tmp_path / "told")
    yield {
        "told": told,
        "model_creator": training.make_model,
        "data_creator": training.make_numbered_data,
        "optimizer_creator": training.make_optimizer,
        "loss_creator": nn.CrossEntropyLoss,
        "training_operator_cls": training.Watched,
        "config": {
            BATCH_SIZE: 10,
            training.SEEN: str(tmp_path / "seen"),
            training.TELLS: str(told.path),
            training.HELD: str(tmp_path / "held"),
        },
        "use_gpu": False,
        "save_every": {"steps": 1},
    }
    told.close()


def batches_and_passes(operator: Any) -> list[int]:
    """What a worker's operator has counted."""
    return [operator.mine, operator.epoch]


def at(told: Reports, epoch: int, batch: int) -> int:
    """Wait until a worker begins this batch; which one."""
    while (line := told.next())[1:] != [epoch, batch]:
        pass
    return int(line[0])


def hold(settings: dict[str, Any], epoch: int, batch: int) -> None:
    """One worker stands still in this batch until it is killed, so that no other comes further."""
    path = Path(settings["config"][training.HELD])
    path.with_suffix(".new").write_text(json.dumps([epoch, batch]))
    path.with_suffix(".new").rename(path)


def held(told: Reports) -> int:
    """Wait until it does; which one."""
    while (line := told.next())[3:] != ["held"]:
        pass
    return int(line[0])


def test_autoscale_looks_for_resources_before_the_pass(settings: dict[str, Any]) -> None:
    """More, up to num_workers, and fewer; without it the workers stay as they are."""
    devices = Devices(1)
    settings.pop("told")
    with TorchTrainer(**settings, num_workers=2, resources=devices) as trainer:
        assert (trainer.train()["num_samples"], trainer.num_workers) == (250, 1)
        devices.count = 5
        assert (trainer.train(autoscale=True)["num_samples"], trainer.num_workers) == (250, 2)
        devices.count = 1
        assert (trainer.train()["num_samples"], trainer.num_workers) == (250, 2)
        assert (trainer.train(autoscale=True)["num_samples"], trainer.num_workers) == (250, 1)
        assert trainer.apply_all_operators(batches_and_passes) == [[100, 4]]


def test_a_lost_device_costs_a_worker_until_it_is_back(settings: dict[str, Any], tmp_path: Path) -> None:
    """A worker is killed, and there is room for one: the pass goes on with one, and with two again at a batch boundary
    when there is; each batch of the pass is trained on, and each sample once."""
    devices, told, passes = Devices(2), settings.pop("told"), []
    with TorchTrainer(**settings, num_workers=2, resources=devices) as trainer:
        trainer.train()
        hold(settings, 1, 3)
        call = threading.Thread(target=lambda: passes.append(trainer.train(max_retries=1)))
        call.start()
        pid = held(told)
        devices.count = 1
        os.kill(pid, signal.SIGKILL)
        at(told, 1, 6)
        devices.count = 2
        call.join()
        # Where the pass was over before the next look, the scaling is seen in the passes that follow.
        while trainer.num_workers < 2:
            passes.append(trainer.train(max_retries=0))
        assert {(each["num_samples"], each["batch_count"]) for each in passes} == {(250, 25)}
        assert trainer.apply_all_operators(batches_and_passes)[0][0] == trainer.train()["epoch"] * 25 - 25
    sizes = {path.name: path.read_text().splitlines() for path in (tmp_path / "seen").iterdir()}
    assert len(sizes) == 5


def test_a_node_without_resources_waits_longer_each_time(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And goes on at the next batch, with what there is then; beyond the last look it says so."""
    monkeypatch.setattr(resources, "FIRST_S", 0.25)
    devices, told, passes = Devices(2), settings.pop("told"), []
    with TorchTrainer(**settings, num_workers=2, resources=devices) as trainer:
        hold(settings, 0, 5)
        call = threading.Thread(target=lambda: passes.append(trainer.train(max_retries=1)))
        call.start()
        pid = held(told)
        devices.count = 0
        looks = devices.looks
        os.kill(pid, signal.SIGKILL)
        while devices.looks < looks + 5:
            assert devices.asked.acquire(timeout=60)
        devices.count = 1
        call.join()
        assert (passes[0]["num_samples"], passes[0]["batch_count"], trainer.num_workers) == (250, 25, 1)
        pauses = [record.message.split()[-2] for record in caplog.records if "looking again in" in record.message]
        assert pauses[:3] == ["0.25", "0.5", "1"]
        monkeypatch.setattr(resources, "LOOKS", 2)
        devices.count = 0
        with pytest.raises(Exception, match=r"had resources for no worker in 0.25 s; free a device"):
            trainer.train(autoscale=True)


def test_wrong_resources_are_named(settings: dict[str, Any]) -> None:
    settings.pop("told")

    def broken() -> int:
        raise OSError("no driver")

    wrong: list[tuple[Any, str]] = [
        (3, "resources is a int, and must be a function"),
        (lambda: "two", r"resources\(\) returned 'two', and must return a number of workers"),
        (broken, r"resources\(\) raised OSError: no driver"),
    ]
    for given, words in wrong:
        with pytest.raises(UsageError, match=words):
            TorchTrainer(**settings, num_workers=2, resources=given)


def files_under(folder: Path) -> set[str]:
    """The names of all files, while a worker removes states that it needs no more."""
    return {name for _, _, names in os.walk(folder) for name in names}


def test_a_pass_that_keeps_nothing_on_disk_survives_all_its_workers(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's memory has the state, and no disk has one: all workers are killed at once, and the pass goes on."""
    told, passes = settings.pop("told"), []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with TorchTrainer(**settings, num_workers=2) as trainer:
        pids = trainer.apply_all_workers(os.getpid)
        hold(settings, 0, 9)
        call = threading.Thread(target=lambda: passes.append(trainer.train(max_retries=2, checkpoint=None)))
        call.start()
        held(told)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        call.join()
        assert (passes[0]["num_samples"], passes[0]["batch_count"]) == (250, 25)
        private = Path(trainer.before_pass).parent
        assert private.parent == Path(folder.MEMORY)
        assert "ledger.json" in files_under(private)
        assert "ledger.json" not in files_under(tmp_path)


def test_a_pass_that_keeps_nothing_on_disk_says_when_no_worker_survives(settings: dict[str, Any]) -> None:
    """With the memory of the node, too."""
    told = settings.pop("told")
    raised: list[str] = []

    def train() -> None:
        with pytest.raises(TrainingFailed) as caught:
            trainer.train(checkpoint=None)
        raised.append(str(caught.value))

    with TorchTrainer(**settings, num_workers=2) as trainer:
        trainer.train(num_steps=2)
        pids = trainer.apply_all_workers(os.getpid)
        hold(settings, 1, 4)
        call = threading.Thread(target=train)
        call.start()
        held(told)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for entry in Path(trainer.before_pass).parent.joinpath("state").iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        call.join()
    assert "the state of call 3, train(checkpoint=None), is lost" in raised[0]


def test_nothing_on_disk_is_refused_where_memory_has_no_room(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings.pop("told")
    monkeypatch.setattr(folder, "ROOM_BYTES", 1 << 60)
    with TorchTrainer(**settings, num_workers=1) as trainer:
        with pytest.raises(UsageError, match="keeps the state in memory alone"):
            trainer.train(checkpoint=None)
        assert trainer.train()["num_samples"] == 250
    with (
        TorchTrainer(**settings, num_workers=1, checkpoint_dir=tmp_path / "states") as trainer,
        pytest.raises(UsageError, match="leave one of them out"),
    ):
        trainer.train(checkpoint=None)
