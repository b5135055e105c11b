"""What scripts of accelerate, Fabric and Hugging Face's Trainer do beside the plainest loop; MODE says which.

KILL="1:5" is a SIGKILL after the batch 5 of epoch 1, KILL="manifest:3" one before the third manifest is written. Writes
to SEEN.<rank> as `tools_script` does.
"""

from __future__ import annotations

import io
import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from elastic_agent.worker.errors import Misused
from elastic_agent.worker.loop.log import NAME as LOG
from support.resume import trainer_bases
from support.resume.tools_script import (
    CHECKPOINTS,
    EPOCHS,
    KILL,
    RANKS,
    Numbers,
    end,
    fabric_loop,
    fabric_of,
    loss_of,
    may_die,
    parts,
    tell,
    used,
)


class First(Dataset):  # type: ignore[type-arg]
    """The first so many of `Numbers`."""

    def __init__(self, count: int) -> None:
        self._all, self._count = Numbers(), count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._all[index]


def loader_of(count: int, batch: int = 4, shuffle: bool = True) -> Any:
    return DataLoader(First(count), batch_size=batch // RANKS, shuffle=shuffle)


def fabric_apart() -> None:
    """A loader whose length is asked for, and then the model and the optimizer, one after the other."""
    fabric, (net, optimizer) = fabric_of(), parts()
    loader = fabric.setup_dataloaders(loader_of(64))
    assert len(loader) == 16
    try:
        next(iter(loader))
    except Misused as refused:
        tell("refused", 0, str(refused), [], [])
    net = fabric.setup_module(net)
    optimizer = fabric.setup_optimizers(optimizer)
    fabric_loop(fabric, loader, net, optimizer)


def fabric_schedule() -> None:
    """A schedule that is set up with the model."""
    fabric, (net, optimizer) = fabric_of(), parts()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    net, optimizer, schedule = fabric.setup(net, optimizer, scheduler=schedule)
    fabric_loop(fabric, fabric.setup_dataloaders(loader_of(64)), net, optimizer, schedule)


def accelerate_late() -> None:
    """A schedule that is prepared behind loaders and optimizer, as its length follows from the loader's; two loaders
    side by side; an evaluation that turns gradients off in its body; results gathered for a metric."""
    from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]

    from elastic_agent.worker.frameworks.accelerate import exact

    accelerator = exact(Accelerator(cpu=True), CHECKPOINTS)
    net, optimizer = parts()
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader_of(64))
    other, evaluated = accelerator.prepare(loader_of(64), loader_of(13, shuffle=False))
    steps = len(loader) * EPOCHS * int(os.environ["FIRST_RANKS"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps + 1))
    schedule = accelerator.prepare(schedule)
    for epoch in accelerator.exact.epochs(EPOCHS):
        net.train()
        first = loader.exact.position // loader.exact.global_batch
        for number, (batch, beside) in enumerate(zip(loader, other, strict=True), first):
            used(epoch, number, torch.cat([batch, beside + 100]))
            optimizer.zero_grad()
            accelerator.backward(loss_of(net, batch) + loss_of(net, beside))
            optimizer.step()
            schedule.step()
            may_die(epoch, number)
        net.eval()
        gathered = []
        for batch in evaluated:
            with torch.no_grad():
                gathered += accelerator.gather_for_metrics(batch)[:, 0].tolist()
        tell("evaluated", epoch, gathered, [], [])
        may_die(epoch, 99)
    tell("rate", 0, schedule.get_last_lr(), evaluated.exact.epoch, [])
    accelerator.end_training()
    end(accelerator.unwrap_model(net))


def accelerate_two() -> None:
    """Two models with an optimizer and a loader each, a schedule that looks at a value, an average of a model."""
    from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]

    from elastic_agent.worker.frameworks.accelerate import exact

    accelerator = exact(Accelerator(cpu=True), CHECKPOINTS)
    (net, optimizer), (second, its) = parts(), parts()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    average = torch.optim.swa_utils.AveragedModel(net)
    net, optimizer, loader, plateau = accelerator.prepare(net, optimizer, loader_of(64), plateau)
    second, its, other = accelerator.prepare(second, its, loader_of(64))
    accelerator.register_for_checkpointing(average)
    try:
        accelerator.skip_first_batches(loader, 2)
    except Misused as refused:
        tell("refused", 0, str(refused), [], [])
    for epoch in accelerator.exact.epochs(EPOCHS):
        seconds = iter(other)
        for number, batch in enumerate(loader, loader.exact.position // loader.exact.global_batch):
            optimizer.zero_grad()
            accelerator.backward(loss_of(net, batch))
            optimizer.step()
            beside = next(seconds)
            used(epoch, number, torch.cat([batch, beside + 100]))
            its.zero_grad()
            accelerator.backward(loss_of(second, beside))
            its.step()
            average.update_parameters(net)
            may_die(epoch, number)
        plateau.step(1.0)
    tell("rate", 0, optimizer.param_groups[0]["lr"], [], [])
    end(torch.nn.ModuleList([accelerator.unwrap_model(net), accelerator.unwrap_model(second), average]))


def trained(framework: Any, net: Any, optimizer: Any, loader: Any, begins: Any = lambda epoch: None) -> Iterator[int]:
    """The epochs, each once it is trained. framework: accelerate's or Fabric's. begins: called as each one begins."""
    for epoch in framework.exact.epochs(EPOCHS):
        begins(epoch)
        for number, batch in enumerate(loader, loader.exact.batches_done):
            optimizer.zero_grad()
            framework.backward(loss_of(net, batch))
            optimizer.step()
            used(epoch, number, batch)
            may_die(epoch, number)
        yield epoch


def accelerate_loads() -> None:
    """Begins with weights of before, and saves and would load its own state of each epoch."""
    from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]

    from elastic_agent.worker.frameworks.accelerate import exact

    accelerator = exact(Accelerator(cpu=True), CHECKPOINTS)
    net, optimizer, loader = accelerator.prepare(*parts(), loader_of(64))
    begin, epochs = (CHECKPOINTS.parent / name for name in ("begin", "epochs"))
    if not begin.exists():
        accelerator.save_state(begin)
        torch.nn.init.zeros_(accelerator.unwrap_model(net).weight)
    accelerator.load_state(begin)
    try:
        for path in epochs.glob("*"):
            accelerator.load_state(path)
    except Misused as refused:
        tell("refused", 0, str(refused), [], [])
    for epoch in trained(accelerator, net, optimizer, loader):
        accelerator.save_state(epochs / f"{epoch}")
    end(accelerator.unwrap_model(net))
    accelerator.load_state(epochs / "1")
    tell("best", 0, accelerator.unwrap_model(net).weight.double().sum().item(), [], [])


def accelerate_split() -> None:
    """The script's batches are those over all ranks; a part of the model is trained from epoch 1 on."""
    from accelerate import Accelerator, DataLoaderConfiguration  # type: ignore[import-not-found, unused-ignore]

    from elastic_agent.worker.frameworks.accelerate import exact

    accelerator = exact(Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(True)), CHECKPOINTS)
    net, optimizer = parts()
    bias = net.bias.requires_grad_(False)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader_of(64, 4 * RANKS))

    def begins(epoch: int) -> None:
        if epoch == 1:
            bias.requires_grad_(True)

    for _ in trained(accelerator, net, optimizer, loader, begins):
        pass
    tell("sizes", 0, len(loader), loader.total_batch_size, [])
    end(accelerator.unwrap_model(net))


def fabric_loads() -> None:
    """Begins with weights and a count of before, and then with other weights."""
    fabric = fabric_of()
    net, optimizer = fabric.setup(*parts())
    loader, begin = fabric.setup_dataloaders(loader_of(64)), CHECKPOINTS.parent / "begin.ckpt"
    if not begin.exists():
        fabric.save(begin, {"net": net, "count": 7, "more": 1})
        torch.nn.init.zeros_(net.weight)
    state = {"net": net, "count": 0}
    assert fabric.load(begin, state) == {"more": 1}
    assert state["count"] == 7
    if not (raw := CHECKPOINTS.parent / "raw.pt").exists():
        torch.save({name: value + 1.0 for name, value in net.module.state_dict().items()}, raw)
    fabric.load_raw(raw, net)
    for _ in trained(fabric, net, optimizer, loader):
        pass
    end(net)


def accelerate_apart() -> None:
    """Each thing is prepared by the method for its kind, and the optimizer a second time."""
    from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]

    from elastic_agent.worker.frameworks.accelerate import exact

    accelerator = exact(Accelerator(cpu=True), CHECKPOINTS)
    net, optimizer = parts()
    loader = accelerator.prepare_data_loader(data_loader=loader_of(64))
    net = accelerator.prepare_model(net)
    optimizer = accelerator.prepare(accelerator.prepare_optimizer(optimizer))
    schedule = accelerator.prepare_scheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer.optimizer, 0.97))
    for epoch in accelerator.exact.epochs(EPOCHS):
        for number, batch in enumerate(loader, loader.exact.position // loader.exact.global_batch):
            used(epoch, number, batch)
            optimizer.zero_grad()
            accelerator.backward(loss_of(net, batch))
            optimizer.step()
            schedule.step()
            may_die(epoch, number)
    tell("rate", 0, schedule.get_last_lr(), accelerator.exact.run.steps, [])
    accelerator.end_training()
    end(accelerator.unwrap_model(net))


def accelerate_attributes() -> None:
    """What scripts ask prepared loaders, also in their loops, and the epochs that they say."""
    from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]

    from elastic_agent.worker.frameworks.accelerate import exact

    accelerator = exact(Accelerator(cpu=True), CHECKPOINTS)
    net, optimizer, loader = accelerator.prepare(*parts(), loader_of(64))
    for epoch in accelerator.exact.epochs(EPOCHS):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader, loader.exact.position // loader.total_batch_size):
            used(epoch, number, batch)
            optimizer.zero_grad()
            accelerator.backward(loss_of(net, batch))
            optimizer.step()
            tell("place", epoch, loader.state_dict()["position"], number, [])
            may_die(epoch, number)
    sizes = [loader.batch_size, loader.total_batch_size, loader.total_dataset_length, loader.num_workers]
    tell(
        "sizes", 0, sizes, [loader.drop_last, len(loader.sampler), len(loader.batch_sampler)], hasattr(loader, "other")
    )
    accelerator.end_training()
    end(accelerator.unwrap_model(net))


def hugging_face(data: Any, *before: type, **options: Any) -> Any:
    """A Trainer that says which samples each of its steps was given. before: bases that stand before ours."""
    from transformers import Trainer, TrainerCallback, TrainingArguments  # type: ignore[import-not-found, unused-ignore]

    from elastic_agent.worker.frameworks import hugging_face as module

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> Any:
            epoch, number = divmod(trainer.state.global_step, 16)
            used(epoch, number, x)
            return {"loss": loss_of(self.net, x)}

    class Dies(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            tell("begun", 0, state.global_step, [], [])

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            epoch, number = divmod(state.global_step - 1, 16)
            may_die(epoch, number)

    write, written = module.write_manifest, []

    def dying(folder: Any) -> None:
        written.append(folder)
        if f"manifest:{len(written)}" == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        write(folder)

    module.write_manifest = dying
    torch.manual_seed(1)
    quiet = {"report_to": [], "disable_tqdm": True, "logging_steps": 1000, "use_cpu": True, "optim": "sgd"}
    if RANKS > 1:
        quiet["ddp_backend"] = "gloo"
    quiet |= {"per_device_train_batch_size": 4 // RANKS, "learning_rate": 0.1, "remove_unused_columns": False}
    args = TrainingArguments(str(CHECKPOINTS), **(quiet | options))
    collate = lambda samples: {"x": torch.stack(samples)}  # noqa: E731
    kind = type("Ours", (*before, module.Exact, Trainer), {})
    trainer = kind(model=Model(), args=args, train_dataset=data, data_collator=collate, callbacks=[Dies()])
    return trainer


def hugging_face_limit() -> None:
    """Keeps one checkpoint only."""
    trainer = hugging_face(Numbers(), num_train_epochs=2, save_steps=3, save_total_limit=1)
    trainer.train()
    tell("left", 0, sorted(path.name for path in CHECKPOINTS.glob("checkpoint-*")), [], [])
    end(trainer.model.net)


def hugging_face_asked() -> None:
    """Asks for the last checkpoint, as the Trainer's examples do."""
    from transformers.trainer_utils import get_last_checkpoint  # type: ignore[import-not-found, unused-ignore]

    trainer = hugging_face(Numbers(), num_train_epochs=2, save_steps=3)
    found = get_last_checkpoint(str(CHECKPOINTS)) if CHECKPOINTS.exists() else None
    trainer.train(resume_from_checkpoint=found)
    end(trainer.model.net)


def hugging_face_split() -> None:
    """Batches of 4 over all ranks."""
    split = {"accelerator_config": {"split_batches": True}, "per_device_train_batch_size": 4}
    hugging_face(Numbers(), num_train_epochs=1, save_steps=2, **split).train()


def hugging_face_steps() -> None:
    hugging_face_uneven(trainer_bases.Steps)


def hugging_face_alone() -> None:
    said = io.StringIO()
    logging.getLogger(LOG).addHandler(logging.StreamHandler(said))
    hugging_face_uneven(trainer_bases.Alone)
    tell("said", 0, said.getvalue(), [], [])


def hugging_face_uneven(*before: type) -> None:
    """The last batch has 3 samples, over two ranks 1 and 2."""
    trainer = hugging_face(First(15), *before, num_train_epochs=EPOCHS, save_steps=100)
    trainer.train()
    tell("weights", 0, *[value.flatten().tolist() for value in trainer.model.net.state_dict().values()], [])


class Counted(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A stream of 24 samples that can be put at a place."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        begun, self.at = self.at, 0
        for number in range(begun, 24):
            self.at = number + 1
            yield torch.tensor([float(number), float(torch.rand(()))])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def hugging_face_stream() -> None:
    """Three passes over a stream, whose length the Trainer does not know."""
    trainer = hugging_face(Counted(), max_steps=18, save_steps=4)
    trainer.train()
    end(trainer.model.net)


if __name__ == "__main__":
    torch.manual_seed(7)
    globals()[os.environ["MODE"]]()
