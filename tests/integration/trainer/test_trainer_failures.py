"""What becomes of a training whose workers or whose program are killed: SIGKILL at real processes.

Expected is what an undisturbed training of the same workers gives: weights to the bit, each sample of a pass counted
once in what `train` returns.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from elastic_agent.trainer import BATCH_SIZE, Diverged, TorchTrainer, TrainingFailed
from support.outside.mounts import fill, tmpfs
from support.source_tree import ROOT
from support.trainers import training
from support.trainers.reports import Reports, tell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("one_thread")]


def settings(seen: Path, **more: Any) -> dict[str, Any]:
    seen.mkdir()
    config = {BATCH_SIZE: 20, training.SEEN: str(seen), **more.pop("config", {})}
    return {
        "model_creator": training.make_model,
        "data_creator": training.make_numbered_data,
        "optimizer_creator": training.make_optimizer,
        "loss_creator": nn.CrossEntropyLoss,
        "training_operator_cls": training.Watched,
        "config": config,
        "num_workers": 2,
        "use_gpu": False,
        **more,
    }


def seen_of(directory: Path) -> dict[tuple[int, int], set[tuple[int, ...]]]:
    """By pass and batch, what the workers trained on, over all their lives."""
    found: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    lines = [line for path in directory.iterdir() for line in path.read_text().splitlines()]
    for epoch, number, samples in map(json.loads, lines):
        found.setdefault((epoch, number), set()).add(tuple(samples))
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("save_every", [{"steps": 3}, None], ids=["states", "no state yet"])
def test_a_killed_worker_costs_nothing_that_one_can_see(tmp_path: Path, save_every: Any) -> None:
    """Kills at random batches of three passes: the same weights, statistics, samples and own state of the operator."""
    with TorchTrainer(**settings(tmp_path / "whole")) as trainer:
        whole = [trainer.train() for _ in range(3)]
        weights, last = trainer.get_model().state_dict(), trainer.state_dict()["operator"]
    dice = random.Random(5)
    killed: list[int] = []
    told = Reports(tmp_path / "told")
    tells = {training.TELLS: str(told.path)}
    with TorchTrainer(**settings(tmp_path / "killed", save_every=save_every, config=tells)) as trainer:
        found = []
        for epoch in range(3):
            pids = trainer.apply_all_workers(os.getpid)
            watch = threading.Thread(target=kill_at, args=(told, epoch, dice.randrange(12), dice.choice(pids), killed))
            watch.start()
            found.append(trainer.train())
            watch.join()
        assert len(killed) == 3
        assert same(weights, trainer.get_model().state_dict())
        assert trainer.state_dict()["operator"] == last
    told.close()  # not before: a kill that comes late has the last pass done again, which tells again
    for one, other in zip(whole, found, strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    assert seen_of(tmp_path / "whole") == seen_of(tmp_path / "killed")
    assert sorted(n for batch in range(13) for part in seen_of(tmp_path / "killed")[1, batch] for n in part) == list(
        range(250)
    )


def kill_at(told: Reports, epoch: int, batch: int, pid: int, killed: list[int]) -> None:
    """Kill a worker as soon as it trains on this batch."""
    while told.next(pid) != [pid, epoch, batch]:
        pass
    os.kill(pid, signal.SIGKILL)
    killed.append(pid)


class Halting(training.Watched):
    """Tells which batch of the validation data begins."""

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        tell(self.config[training.TELLS], [os.getpid(), self.epoch, batch_info["batch_idx"]])
        x, y, _ = batch
        return super().validate_batch((x, y), batch_info)


def make_both(config: dict[str, Any]) -> Any:
    """For validation in the same order each time."""
    given = training.make_numbered_data(config)
    return given, DataLoader(given.dataset, batch_size=config[BATCH_SIZE])


def test_a_worker_that_is_killed_in_a_validation_costs_nothing(tmp_path: Path) -> None:
    """The means are over each sample once, and those of a validation that nothing happened to."""
    told, killed = Reports(tmp_path / "told"), []  # type: tuple[Reports, list[int]]
    given = settings(tmp_path / "seen", config={training.TELLS: str(told.path)}, save_every={"steps": 3})
    with TorchTrainer(**{**given, "training_operator_cls": Halting, "data_creator": make_both}) as trainer:
        whole = trainer.validate()
        assert (whole["num_samples"], whole["batch_count"]) == (250, 13)
        for _ in range(2 * 13):
            told.next()
        pid = trainer.apply_all_workers(os.getpid)[1]
        watch = threading.Thread(target=kill_at, args=(told, 0, 7, pid, killed))
        watch.start()
        assert trainer.validate() == pytest.approx(whole, rel=1e-12)
        watch.join()
    told.close()
    assert killed == [pid]


class Late(training.Watched):
    """Rank 1 fails after rank 0, which has lost its connection to it, has ended."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        pids: list[int] = [0, 0]
        torch.distributed.all_gather_object(pids, os.getpid())
        self.peer = os.pidfd_open(pids[0])

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        if batch_info["batch_idx"] == 3 and self.world_rank == 1:
            for name in os.listdir("/proc/self/fd"):
                shut_internet(int(name))
            assert select.select([self.peer], [], [], 60)[0]
        return super().train_batch(batch, batch_info)


def shut_internet(fd: int) -> None:
    """End this connection if it is one of TCP."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.getpeername()  # one that listens has none
            connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("operator", [training.Watched, Late], ids=["first", "after its peer"])
def test_a_worker_that_fails_again_ends_the_call(tmp_path: Path, operator: type[training.Watched]) -> None:
    """After `max_retries` restarts: the cause, with rank, node and the worker's traceback; the same for later calls."""
    broken = settings(tmp_path / "seen", config={"fails": "this sample is broken"}, training_operator_cls=operator)
    with TorchTrainer(**broken) as trainer:
        with pytest.raises(TrainingFailed, match="ValueError: this sample is broken") as caught:
            trainer.train(max_retries=1)
        assert (caught.value.rank, caught.value.node.rpartition(":")[0]) == (1, os.uname().nodename)
        assert "in train_batch" in caught.value.traceback
        with pytest.raises(TrainingFailed, match="max_retries=1"):
            trainer.train()
    lives = [path for path in (tmp_path / "seen").iterdir() if "[0, 3, " in path.read_text()]
    assert len(lives) == 4


PROGRAM = """
import json, os, sys, torch
from pathlib import Path
from elastic_agent.trainer import TorchTrainer, BATCH_SIZE
from support.trainers import training

work = Path(sys.argv[1])
with TorchTrainer(model_creator=training.make_model, data_creator=training.make_numbered_data, num_workers=2,
                  optimizer_creator=training.make_optimizer, loss_creator=torch.nn.CrossEntropyLoss, use_gpu=False,
                  training_operator_cls=training.Watched, checkpoint_dir=work / "states", save_every={"steps": 2},
                  config={BATCH_SIZE: 20, training.SEEN: str(work / "seen")}) as trainer:
    for epoch in range(4):
        stats = trainer.train()
        print(json.dumps([trainer.replaying, stats]), flush=True)
        if sys.argv[2:] == [str(epoch)]:
            os.kill(os.getpid(), 9)
    trainer.save(work / "end.pt")
"""


def test_a_killed_program_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its calls that are done return what they gave, and say so; nothing is trained twice into the weights."""
    ends = {}
    for name, lives in (("whole", [[]]), ("killed", [["0"], ["2"], []])):
        work = tmp_path / name
        (work / "seen").mkdir(parents=True)
        said: list[list[Any]] = []
        for life in lives:
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, str(work), *life],
                cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
                env={**os.environ, "PYTHONPATH": f"{ROOT / '.typing'}:{ROOT / 'tests'}"},
            )  # fmt: skip
            assert done.returncode == (-9 if life else 0), done.stderr
            said.append([json.loads(line) for line in done.stdout.splitlines()])
        ends[name] = (torch.load(work / "end.pt", weights_only=True)["state"], said)
    (whole, [one]), (killed, [first, second, third]) = ends["whole"], ends["killed"]
    assert same(whole["model0"], killed["model0"])
    assert [stats for _, stats in one] == [pytest.approx(stats) for _, stats in third]
    # What was done and is in a state on disk is not done again; the pass after it may be begun in its middle.
    assert [again for again, _ in first] == [False]
    assert [again for again, _ in third] == sorted((again for again, _ in third), reverse=True)
    assert (len(second), third[0][0], third[3][0]) == (3, True, False)


ENDED = """
import signal, sys, time
from pathlib import Path
import torch
from elastic_agent.trainer import TorchTrainer, BATCH_SIZE
from support.trainers import training

class Slow(training.Watched):
    def train_batch(self, batch, batch_info):
        time.sleep(0.05)
        return super().train_batch(batch, batch_info)

work = Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
trainer = TorchTrainer(model_creator=training.make_model, data_creator=training.make_numbered_data, num_workers=2,
                       optimizer_creator=training.make_optimizer, loss_creator=torch.nn.CrossEntropyLoss,
                       training_operator_cls=Slow, checkpoint_dir=work / "states", save_every={"seconds": 600},
                       use_gpu=False, launch={"shutdown_timeout": 60},
                       config={BATCH_SIZE: 20, training.SEEN: str(work / "seen"), training.TELLS: str(work / "told")})
if "with" in sys.argv:
    with trainer:
        trainer.train(), trainer.train()
trainer.train(), trainer.train()
"""


@pytest.mark.parametrize("how", ["with", "alone"])
def test_a_program_that_exits_at_sigterm_loses_no_batch(tmp_path: Path, how: str) -> None:
    """Its workers save at the batch that they have come to, between two states; no batch is trained on again."""
    (tmp_path / "seen").mkdir()
    told = Reports(tmp_path / "told")
    for ends in (True, False):
        program = subprocess.Popen(
            [sys.executable, "-c", ENDED, str(tmp_path), how if ends else "alone"], cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / '.typing'}:{ROOT / 'tests'}"},
        )  # fmt: skip
        if ends:
            while told.next()[1:] != [0, 4]:
                pass
            program.terminate()
        assert program.wait(120) == (143 if ends else 0)
    told.close()
    lines = [line for path in (tmp_path / "seen").iterdir() for line in path.read_text().splitlines()]
    assert len(lines) == 2 * 2 * 13
    assert seen_of(tmp_path / "seen").keys() == {(epoch, batch) for epoch in range(2) for batch in range(13)}


def test_a_program_whose_config_was_changed_is_not_given_results_of_before(tmp_path: Path) -> None:
    """It is refused, with both values named, and what is kept stays: the program of before goes on with it."""
    given = settings(tmp_path / "seen", checkpoint_dir=tmp_path / "states", num_workers=1, config={"lr": 0.01})
    with TorchTrainer(**given) as trainer:
        first = trainer.train()
        trainer.apply_all_workers(os.getpid)  # a call that is kept before it is answered
    words = (
        r"made with config\['lr'\]=0.5, and the training in \S*states, of which 2 calls are done, with config\['lr'\]="
    )
    with pytest.raises(Diverged, match=words):
        TorchTrainer(**{**given, "config": {**given["config"], "lr": 0.5}})
    with TorchTrainer(**given) as trainer:
        assert (trainer.train(), trainer.replaying) == (first, True)
        trainer.apply_all_workers(os.getpid)


def test_a_program_that_makes_fewer_calls_than_before_ends_well(tmp_path: Path) -> None:
    """Its workers, who have done more, end with it; what is kept stays."""
    given = settings(tmp_path / "seen", checkpoint_dir=tmp_path / "states", num_workers=1)
    with TorchTrainer(**given) as trainer:
        first = trainer.train()
        (pid,) = trainer.apply_all_workers(os.getpid)
    with TorchTrainer(**given) as trainer:
        assert trainer.train() == first
    with TorchTrainer(**given) as trainer:
        assert trainer.train() == first
        assert (trainer.apply_all_workers(os.getpid), trainer.replaying) == ([pid], True)


TYPED = """
import sys
import torch
from torch import nn
from elastic_agent.trainer import TorchTrainer

class Net(nn.Linear):
    pass

def make_model(config):
    return Net(4, 2)

def make_data(config):
    return torch.utils.data.TensorDataset(torch.randn(40, 4), torch.zeros(40, dtype=torch.int64))

def make_optimizer(model, config):
    return torch.optim.SGD(model.parameters(), lr=0.1)

trainer = TorchTrainer(model_creator=make_model, data_creator=make_data, loss_creator=nn.CrossEntropyLoss,
                       optimizer_creator=make_optimizer, num_workers=2, use_gpu=False, use_tqdm=True)
trainer.train()
print("the same class:", isinstance(trainer.get_model(), Net), flush=True)
"""


def test_a_program_from_standard_input_on_a_terminal() -> None:
    """Its creators are code that no worker can import; it has one bar of two workers, and ends well without a
    shutdown."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".typing")}, text=True,
    )  # fmt: skip
    os.close(theirs)
    drawn: list[bytes] = []
    reader = threading.Thread(target=_read_terminal, args=(ours, drawn))
    reader.start()
    said, _ = process.communicate(TYPED, timeout=120)
    reader.join()
    os.close(ours)
    shown = b"".join(drawn).decode()
    assert process.returncode == 0, shown
    assert said == "the same class: True\n"
    bars = [line for line in shown.split("\r") if "/" in line]
    assert bars
    assert all(re.match(r"train: +\d+%\|.*\| \d+/20 \[", line) for line in bars), shown
    assert "\x1b[A" not in shown  # how tqdm gets back from a second bar


def _read_terminal(descriptor: int, drawn: list[bytes]) -> None:
    try:
        while data := os.read(descriptor, 4096):
            drawn.append(data)
    except OSError:
        return  # the other side is closed


def test_a_full_disk_of_the_state_ends_the_call_at_once(tmp_path: Path) -> None:
    """The state from before the pass cannot be written, nor can a restarted worker begin: it is not tried again."""
    with (
        tmpfs(tmp_path / "disk", "size=256k") as disk,
        TorchTrainer(**training.CREATORS, config={BATCH_SIZE: 50}, num_workers=1, checkpoint_dir=disk) as trainer,
    ):
        fill(disk / "filler")
        with pytest.raises(
            TrainingFailed, match=r"DiskFull: .*no state can be kept in \S*disk: No space left on device"
        ):
            trainer.train(max_retries=3, checkpoint="auto")
