"""One training job, 64 samples in batches of 4 over 3 epochs, written for each of several tools; MODE says which.

`own` modes save and load as the tool's documentation says; `ours` modes have the one line of this library. KILL="1:5"
is a SIGKILL after the batch 5 of epoch 1. Writes each batch, with what was drawn for its samples, to SEEN.<rank>.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

RANK = os.environ.get("RANK", "0")
RANKS = int(os.environ.get("WORLD_SIZE", "1"))
SEEN = open(f"{os.environ['SEEN']}.{RANK}", "a")  # noqa: SIM115 - until the kill
CHECKPOINTS = Path(os.environ["CHECKPOINTS"])
KILL = os.environ.get("KILL", "")
EPOCHS = 3


def tell(kind: str, *what: Any) -> None:
    SEEN.write(json.dumps([kind, *what]) + "\n")
    SEEN.flush()


def used(epoch: int, number: int, batch: Any) -> None:
    tell("train", epoch, number, 0, torch.as_tensor(batch).tolist())


def may_die(epoch: int, number: int) -> None:
    """After the batch, and after whatever the script saves then."""
    if f"{epoch}:{number}" == KILL:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # rank 0 alone writes what the script saves
        named = [each.name.split("-") for each in CHECKPOINTS.glob("[!.]*-[0-9]*")]
        steps = [int(step) for _, step, *_ in named if step.isdigit()]
        if (CHECKPOINTS / "state.pt").exists():
            steps.append(epoch * 16 + number + 1)
        tell("killed", epoch, number, max(steps, default=0), [])
        os.kill(os.getpid(), signal.SIGKILL)


class Numbers(Dataset):  # type: ignore[type-arg]
    """Its index, and a random draw."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), float(torch.rand(()))])


def new_loader(kind: Any = DataLoader) -> Any:
    return kind(Numbers(), batch_size=4 // RANKS, shuffle=True, num_workers=int(os.environ.get("PROCESSES", "0")))


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = torch.nn.Linear(1, 1)
    return net, torch.optim.Adam(net.parameters(), lr=0.1)


def loss_of(net: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = ((net(batch[:, 1:]).squeeze(1) - batch[:, 0] / 64) ** 2).mean()
    return loss


def end(net: torch.nn.Module) -> None:
    state = net.state_dict()
    digest = hashlib.sha256(b"".join(state[name].cpu().numpy().tobytes() for name in sorted(state))).hexdigest()
    tell("end", EPOCHS, digest, [], [])


def lightning(ours: bool) -> None:
    import lightning.pytorch as pl  # type: ignore[import-not-found, unused-ignore]

    class Model(pl.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            used(self.current_epoch, number, batch)
            return loss_of(self.net, batch)

        def on_train_batch_start(self, batch: Any, number: int) -> None:
            if number:
                may_die(self.current_epoch, number - 1)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.1)

    saves = pl.callbacks.ModelCheckpoint(CHECKPOINTS, save_top_k=-1, every_n_train_steps=1, filename="{step:04d}")
    own: dict[str, Any] = {"enable_checkpointing": False} if ours else {"callbacks": [saves]}
    if ours:
        from elastic_agent.worker.frameworks.lightning import exact

        own["callbacks"] = [exact(CHECKPOINTS)]
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=EPOCHS, **own, **quiet)
    torch.manual_seed(1)
    found = sorted(CHECKPOINTS.glob("*.ckpt")) if not ours else []
    trainer.fit(model := Model(), new_loader(), ckpt_path=found[-1] if found else None)
    end(model.net)


def accelerate(ours: bool) -> None:
    from accelerate import Accelerator, skip_first_batches  # type: ignore[import-not-found, unused-ignore]

    accelerator = Accelerator(cpu=True)
    if ours:
        from elastic_agent.worker.frameworks.accelerate import exact

        accelerator = exact(accelerator, CHECKPOINTS)
    net, optimizer = parts()
    net, optimizer, loader = accelerator.prepare(net, optimizer, new_loader())
    first, skipped = 0, 0
    if not ours and (found := sorted(CHECKPOINTS.glob("step_*"))):
        accelerator.load_state(str(found[-1]))
        first, skipped = divmod(int(found[-1].name[5:]), len(loader))
    for epoch in accelerator.exact.epochs(EPOCHS) if ours else range(first, EPOCHS):
        begins = skipped if epoch == first else 0
        batches = skip_first_batches(loader, begins) if begins else loader
        begins = loader.exact.position // loader.exact.global_batch if ours else begins
        for number, batch in enumerate(batches, begins):
            used(epoch, number, batch)
            optimizer.zero_grad()
            accelerator.backward(loss_of(net, batch))
            optimizer.step()
            if not ours and (epoch, number) == (1, 5):
                accelerator.save_state(str(CHECKPOINTS / f"step_{epoch * len(loader) + number + 1}"))
            may_die(epoch, number)
    accelerator.end_training()
    end(accelerator.unwrap_model(net))


def fabric_of() -> Any:
    from lightning.fabric import Fabric  # type: ignore[import-not-found, unused-ignore]

    from elastic_agent.worker.frameworks.fabric import exact

    bare = Fabric(accelerator="cpu", devices=RANKS, strategy="ddp" if RANKS > 1 else "auto")
    bare.launch()
    return exact(bare, CHECKPOINTS)


def fabric_loop(fabric: Any, loader: Any, net: Any, optimizer: Any, schedule: Any = None) -> None:
    for epoch in fabric.exact.epochs(EPOCHS):
        for number, batch in enumerate(loader, loader.exact.position // loader.exact.global_batch):
            used(epoch, number, batch)
            optimizer.zero_grad()
            fabric.backward(loss_of(net, batch))
            optimizer.step()
            if schedule is not None:
                schedule.step()
            may_die(epoch, number)
    end(net.module)


def fabric(ours: bool) -> None:
    made = fabric_of()
    net, optimizer = made.setup(*parts())
    fabric_loop(made, made.setup_dataloaders(new_loader()), net, optimizer)


def torchdata(ours: bool) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-not-found, unused-ignore]

    loader = new_loader(StatefulDataLoader)
    if ours:
        from elastic_agent.worker.frameworks.stateful import exact

        loader = exact(loader)
    net, optimizer = parts()
    file, first, skipped = CHECKPOINTS / "state.pt", 0, 0
    if file.exists():
        state = torch.load(file, weights_only=False)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        first, skipped = state["place"]
    for epoch in range(first, EPOCHS):
        for number, batch in enumerate(loader, skipped if epoch == first else 0):
            used(epoch, number, batch)
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()
            if (epoch, number) == (1, 5):
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
                CHECKPOINTS.mkdir(exist_ok=True)
                torch.save({**state, "place": (epoch, number + 1)}, file)
            may_die(epoch, number)
    end(net)


def hugging_face(ours: bool) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments  # type: ignore[import-not-found, unused-ignore]

    from elastic_agent.worker.frameworks.hugging_face import Exact

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> Any:
            if self.training:
                place.append(place[-1] + 1 if place else trainer.state.global_step)
                used(*divmod(place[-1], 16), x)
            return {"loss": loss_of(self.net, x)}

    class Dies(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            pass

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            may_die(*divmod(state.global_step - 1, 16))

    class Ours(Exact, Trainer):  # type: ignore[misc, unused-ignore]
        pass

    place: list[int] = []
    torch.manual_seed(1)
    quiet = {"report_to": [], "disable_tqdm": True, "logging_steps": 1000, "use_cpu": True, "save_safetensors": False}
    if RANKS > 1:
        quiet["ddp_backend"] = "gloo"
    quiet = {name: value for name, value in quiet.items() if name in TrainingArguments.__dataclass_fields__}
    args = TrainingArguments(
        str(CHECKPOINTS), per_device_train_batch_size=4 // RANKS, num_train_epochs=EPOCHS, save_steps=11,
        learning_rate=0.1, dataloader_num_workers=int(os.environ.get("PROCESSES", "0")),
        remove_unused_columns=False, **quiet,
    )  # fmt: skip
    collate = lambda samples: {"x": torch.stack(samples)}  # noqa: E731
    kind = Ours if ours else Trainer
    trainer = kind(model=Model(), args=args, train_dataset=Numbers(), data_collator=collate, callbacks=[Dies()])
    found = not ours and any(CHECKPOINTS.glob("checkpoint-*"))
    trainer.train(**({"resume_from_checkpoint": True} if found else {}))
    end(trainer.model.net)


def streams(ours: bool) -> None:
    """Hugging Face's datasets, read as a stream, in a plain loop."""
    import datasets  # type: ignore[import-not-found, unused-ignore]

    from elastic_agent.worker import Every, Run

    def draw(row: Any) -> Any:
        return {"x": row["x"], "drawn": float(torch.rand(()))}

    rows = datasets.Dataset.from_dict({"x": [float(number) for number in range(64)]})
    data = rows.to_iterable_dataset(num_shards=4).map(draw)
    net, optimizer = parts()
    run = Run(CHECKPOINTS, every=Every(steps=1), net=net, optimizer=optimizer)
    processes = int(os.environ.get("PROCESSES", "0"))
    collate = lambda rows: torch.tensor([[row["x"], row["drawn"]] for row in rows])  # noqa: E731
    loader = run.loader(DataLoader(data, batch_size=4, num_workers=processes, collate_fn=collate))
    for epoch in run.epochs(EPOCHS):
        for number, batch in enumerate(loader, loader.position // 4):
            used(epoch, number, batch)
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()
            run.step()
            may_die(epoch, number)
    end(net)


if __name__ == "__main__":
    tool, _, whose = os.environ["MODE"].partition(" ")
    torch.manual_seed(7)
    globals()[tool](whose == "ours")
