"""A training job that saves with one tool after each step, as that tool's documentation says, until it is killed.

`python saves_script.py TOOL TRIALS MEGABYTES DIRECTORY SEED` writes one line of JSON: the seconds for which a save held
the training up, and how each start after a SIGKILL went. Each step adds one to every weight, so that weights that
differ are of two checkpoints. A tool whose save is a call is an iterator over steps; one that saves inside of its own
loop is called with a `Watch`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

LAYERS, SAVES = 8, 6
LATEST_KILL_S = 0.5
Saves = Iterator[None]
"""In turns: a step is made, its save is done."""


class Enough(Exception):
    """Raised by a `Watch` that needs no further step."""


class Watch:
    """What is done between a step and its save, and behind the save."""

    def stepped(self) -> None:
        """A step is made, and its save begins."""

    def saved(self) -> None:
        """The save holds the training up no longer."""


class Net(torch.nn.Module):
    """Layers whose weights are all the number of steps that were made."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        each = int(megabytes * 250_000) // LAYERS
        self.layers = torch.nn.ParameterList(torch.zeros(each) for _ in range(LAYERS))

    def step(self) -> None:
        with torch.no_grad():
            for layer in self.layers:
                layer += 1

    def one_step(self) -> int | None:
        """The step that all weights are of; None where they are of several."""
        held = [layer.detach() for layer in self.layers]
        found = {value for layer in held for value in (float(layer.min()), float(layer.max()))}
        return int(found.pop()) if len(found) == 1 else None


def lightning(net: Net, directory: Path, resume: bool) -> Saves:
    """As ModelCheckpoint saves: a file for each, the one before removed behind it."""
    import lightning.pytorch as pl  # type: ignore[import-not-found, unused-ignore]

    class Model(pl.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

    model = Model()
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", devices=1, enable_checkpointing=False, **quiet)
    trainer.strategy.connect(model)
    if resume:
        newest = max(directory.glob("step=*.ckpt"), key=lambda path: int(path.stem[5:]))
        model.load_state_dict(torch.load(newest, weights_only=False)["state_dict"])
    before: Path | None = None
    for number in range(1, sys.maxsize):
        net.step()
        yield
        trainer.save_checkpoint(path := directory / f"step={number}.ckpt")
        if before is not None:
            trainer.strategy.remove_checkpoint(before)
        before = path
        yield


def accelerate(net: Net, directory: Path, resume: bool) -> Saves:
    """`save_state` with names of its own, two kept."""
    from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]
    from accelerate.utils import ProjectConfiguration  # type: ignore[import-not-found, unused-ignore]

    kept = ProjectConfiguration(project_dir=str(directory), automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, project_config=kept)
    accelerator.prepare(net)
    if resume:
        accelerator.load_state()
    while True:
        net.step()
        yield
        accelerator.save_state()
        yield


def torchdata(net: Net, directory: Path, resume: bool) -> Saves:
    """The loader's state and the model's by torch.save, in one file."""
    file = directory / "state.pt"
    if resume:
        net.load_state_dict(torch.load(file, weights_only=True))
    while True:
        net.step()
        yield
        torch.save(net.state_dict(), file)
        yield


def dcp(net: Net, directory: Path, resume: bool) -> Saves:
    """`dcp.save` into one folder."""
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    state, folder = {"model": net.state_dict()}, str(directory / "checkpoint")
    if resume:
        load(state, checkpoint_id=folder)
    while True:
        net.step()
        yield
        save(state, checkpoint_id=folder)
        yield


def dcp_async(net: Net, directory: Path, resume: bool) -> Saves:
    """`dcp.async_save` into one folder, each waiting for the one before."""
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import async_save

    state, folder = {"model": net.state_dict()}, str(directory / "checkpoint")
    saving: Any = None
    if resume:
        load(state, checkpoint_id=folder)
    while True:
        net.step()
        yield
        if saving is not None:
            saving.result()
        saving = async_save(state, checkpoint_id=folder)
        yield


def ours(net: Net, directory: Path, resume: bool) -> Saves:
    """`Run`, which saves after each step."""
    from elastic_agent.worker import Every, Run

    run = Run(directory, every=Every(steps=1), model=net)
    while True:
        net.step()
        yield
        run.step()
        yield


class OneStep(torch.optim.Optimizer):
    """The optimizer of a loop that is not ours: its step is that of the net."""

    def __init__(self, net: Net) -> None:
        super().__init__(net.parameters(), {"lr": 1.0})
        self._net = net

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # of its two forms, the one with no closure
        self._net.step()


def hugging_face(net: Net, directory: Path, resume: bool, watch: Watch) -> None:
    """Its Trainer with `save_steps=1`, two kept, and `resume_from_checkpoint=True`."""
    from transformers import Trainer, TrainerCallback, TrainingArguments  # type: ignore[import-not-found, unused-ignore]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": x.sum() * self.net.layers[0][0]}

    class Watched(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.stepped()

        def on_save(self, *_: Any, **__: Any) -> None:
            watch.saved()

    data = [{"x": torch.zeros(1)} for _ in range(1000)]
    args = TrainingArguments(
        str(directory), per_device_train_batch_size=1, save_steps=1, save_total_limit=2, report_to=[], max_grad_norm=0,
        disable_tqdm=True, logging_steps=10**6, use_cpu=True,
    )  # fmt: skip
    optimizer = OneStep(net)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = Trainer(Model(), args, train_dataset=data, optimizers=(optimizer, schedule), callbacks=[Watched()])
    trainer.train(resume_from_checkpoint=resume)


def go(tool: str, net: Net, directory: Path, resume: bool, watch: Watch) -> None:
    """Train with this tool until the watch has seen enough."""
    try:
        if tool in LOOPS:
            LOOPS[tool](net, directory, resume, watch)
        else:
            turns = itertools.cycle((watch.stepped, watch.saved))
            for _, turn in zip(TOOLS[tool](net, directory, resume), turns):  # noqa: B905 - both are endless
                turn()
    except Enough:
        pass


LOOPS: dict[str, Callable[[Net, Path, bool, Watch], None]] = {"hugging_face": hugging_face}
TOOLS: dict[str, Callable[[Net, Path, bool], Saves]] = {
    "lightning": lightning,
    "accelerate": accelerate,
    "torchdata": torchdata,
    "dcp": dcp,
    "dcp_async": dcp_async,
    "ours": ours,
}
IMPORTED = {
    "lightning": "lightning.pytorch",
    "accelerate": "accelerate",
    "hugging_face": "transformers.trainer",
    "ours": "elastic_agent.worker.run",
}


def in_a_process(act: Callable[[int], None]) -> tuple[int, int]:
    """A forked process that runs `act`, and the pipe that it is given the other end of."""
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(reads)
        status = 1
        try:
            act(writes)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writes)
    return pid, reads


def everything(reads: int) -> bytes:
    with open(reads, "rb") as file:
        return file.read()


class Stopwatch(Watch):
    """Seconds, and processor seconds of the training's own thread, of each save but the first."""

    def __init__(self) -> None:
        self.took: list[tuple[float, float]] = []
        self._first = True
        self._began = 0.0, 0.0

    def stepped(self) -> None:
        time.sleep(1.0)  # what is written behind the training's back is on the disk by then
        self._began = time.perf_counter(), time.thread_time()

    def saved(self) -> None:
        if not self._first:
            self.took.append((time.perf_counter() - self._began[0], time.thread_time() - self._began[1]))
        self._first = False
        if len(self.took) == SAVES:
            raise Enough


def blocked(tool: str, megabytes: float, directory: Path) -> list[float]:
    """The medians: for how long a save holds the training up, and how much of that is its own thread's."""

    def save(writes: int) -> None:
        watch = Stopwatch()
        go(tool, Net(megabytes), directory, False, watch)
        os.write(writes, json.dumps([sorted(each)[SAVES // 2] for each in zip(*watch.took, strict=True)]).encode())

    pid, reads = in_a_process(save)
    found: list[float] = json.loads(everything(reads))
    os.waitpid(pid, 0)
    return found


class Announced(Watch):
    """Says when two steps are saved, and goes on until it is killed."""

    def __init__(self, writes: int) -> None:
        self._writes, self._saves = writes, 0

    def saved(self) -> None:
        self._saves += 1
        if self._saves == 2:
            os.write(self._writes, b"saved")


class FirstStep(Watch):
    """What the weights are behind the first step of a start, which adds one to all of them alike."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self.found = "unreadable"

    def stepped(self) -> None:
        reached = self._net.one_step()
        self.found = "mixed" if reached is None else "whole" if reached >= 2 else "lost"
        raise Enough


def start_after_a_kill(tool: str, megabytes: float, directory: Path, after_s: float) -> str:
    """What the start found: "whole", "mixed" (weights of two checkpoints), "lost" or "unreadable"."""

    def save(writes: int) -> None:
        go(tool, Net(megabytes), directory, False, Announced(writes))

    def resume(writes: int) -> None:
        watch = FirstStep(net := Net(megabytes))
        go(tool, net, directory, True, watch)
        os.write(writes, watch.found.encode())

    pid, reads = in_a_process(save)
    select.select([reads], [], [], 120)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reads)
    pid, reads = in_a_process(resume)
    found = everything(reads).decode()
    os.waitpid(pid, 0)
    return found or "unreadable"


def main(tool: str, trials: int, megabytes: float, directory: Path, seed: int) -> None:
    torch.set_num_threads(1)
    importlib.import_module(IMPORTED.get(tool, "torch.distributed.checkpoint"))  # once, and not by each fork
    draws = random.Random(seed)
    place = directory / "blocked"
    place.mkdir(parents=True)
    held = blocked(tool, megabytes, place)
    ends = []
    for number in range(trials):
        place = directory / str(number)
        place.mkdir()
        ends.append(start_after_a_kill(tool, megabytes / 5, place, draws.uniform(0, LATEST_KILL_S)))
    sys.stdout.write(json.dumps({"blocked_s": held, "ends": ends}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
