"""Restart real training scripts with `--preload auto`, with the framework named by hand, and with no preloading:
`make preloads`.

Five scripts (FSDP2, accelerate, transformers' Trainer, Lightning, DeepSpeed) train on two gloo workers. A worker is
killed at once or up to three seconds after both have made their first step; the time runs from its SIGKILL until both
workers of the next round have made theirs. The three ways take turns, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.source_tree import ROOT

BOUND_S = 120.0
"""Bound on the wait for two steps; only a broken run takes so long."""
WORKERS = 2

BEGIN = """
    import json, os, signal, sys, time

    def stepped():
        step = [int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.getpid(), time.monotonic()]
        with open(os.environ["STEPS"], "w") as steps:
            steps.write(json.dumps(step) + "\\n")
        while True:
            signal.pause()
"""

BODIES = {
    "FSDP2": """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo")
        net = torch.nn.Linear(8, 8)
        fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        stepped()
    """,
    "accelerate": """
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        net = torch.nn.Linear(8, 8)
        net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        accelerator.backward(net(torch.randn(4, 8)).sum())
        optimizer.step()
        stepped()
    """,
    "transformers": """
        import torch
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 8)

            def forward(self, x, labels=None):
                return {"loss": self.layer(x).sum()}

        class Mark(TrainerCallback):
            def on_step_end(self, *args, **rest):
                stepped()

        asked = TrainingArguments(os.environ["FOLDER"], use_cpu=True, report_to=[], max_steps=9, disable_tqdm=True)
        data = [{"x": torch.randn(8), "labels": torch.tensor(0)} for _ in range(64)]
        Trainer(Net(), asked, train_dataset=data, callbacks=[Mark()]).train()
    """,
    "Lightning": """
        import lightning
        import torch

        class Net(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 8)

            def training_step(self, batch, index):
                return self.layer(batch).sum()

            def on_train_batch_end(self, *args):
                stepped()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        data = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )
        trainer.fit(Net(), data)
    """,
    "DeepSpeed": """
        import deepspeed
        import torch

        # The operation that gloo does without: it would be compiled, and a kill then leaves a lock that all wait for.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        net = torch.nn.Linear(8, 8)
        config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
        deepspeed.init_distributed("gloo")
        engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
        engine.backward(engine(torch.randn(4, 8)).sum())
        engine.step()
        stepped()
    """,
}
BY_HAND = {"FSDP2": "torch", "accelerate": "torch,accelerate", "transformers": "torch,transformers"} | {
    "Lightning": "torch,lightning",
    "DeepSpeed": "torch,deepspeed",
}


ENVIRONMENTS = {"DeepSpeed": ".deepspeed"}
"""Where a framework has a virtual environment of its own, because others use it where they find it; made with torch
and the names of its packages, beside `.frameworks`, in which all others are."""


def python_of(framework: str) -> str:
    """The Python whose environment has the framework."""
    environment = ENVIRONMENTS.get(framework)
    return str(ROOT / environment / "bin" / "python") if environment else sys.executable


class Job:
    """An agent with two workers of one framework's script."""

    def __init__(self, folder: Path, framework: str, preload: str | None) -> None:
        body = textwrap.dedent(BEGIN) + textwrap.dedent(BODIES[framework])
        (folder / "train.py").write_text(body)
        os.mkfifo(folder / "steps")
        # Open for writing, too, so that a worker's end is no end of file.
        self._steps = os.open(folder / "steps", os.O_RDWR)
        env = dict(os.environ, STEPS=str(folder / "steps"), FOLDER=str(folder), OMP_NUM_THREADS="1")
        env["DS_ACCELERATOR"] = "cpu"
        env["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
        flags = ["--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", "1000"]
        flags += ["--preload", preload] if preload else []
        command = [python_of(framework), "-m", "elastic_agent", *flags, str(folder / "train.py")]
        self.output = (folder / "output").open("wb")
        self.agent = subprocess.Popen(command, env=env, cwd=folder, stdout=self.output, stderr=self.output)
        self._rest = b""

    def steps(self, after: int) -> dict[int, tuple[int, float]]:
        """Of the first round behind `after` in which all workers have stepped: round -> (a pid, when the last did)."""
        seen: dict[int, dict[int, float]] = {}
        ends = time.monotonic() + BOUND_S
        while True:
            if not select.select([self._steps], [], [], max(0.0, ends - time.monotonic()))[0]:
                raise TimeoutError(f"no step for {BOUND_S:.0f} s; the agent's status is {self.agent.poll()}")
            *lines, self._rest = (self._rest + os.read(self._steps, 1 << 16)).split(b"\n")
            for number, pid, at in map(json.loads, lines):
                seen.setdefault(number, {})[pid] = at
                if number > after and len(seen[number]) == WORKERS:
                    return {number: (pid, max(seen[number].values()))}

    def close(self) -> None:
        self.agent.terminate()
        try:
            self.agent.wait(60)  # its workers get 30 s, and some ignore SIGTERM
        finally:
            self.agent.kill()
            self.output.close()
            os.close(self._steps)


def restarts(framework: str, preload: str | None, count: int, rng: random.Random) -> Iterator[float]:
    """Seconds from each SIGKILL to the next round's first steps."""
    with tempfile.TemporaryDirectory(prefix="preloads-") as made, contextlib.ExitStack() as open_:
        job = Job(Path(made), framework, preload)
        open_.callback(job.close)
        ((number, (pid, _)),) = job.steps(-1).items()
        for index in range(count):
            # The first kill is at once, before `auto` can have learned anything; the others at any time.
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.agent.wait(rng.uniform(0.0, 3.0) if index else 0.0)
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            ((number, (pid, at)),) = job.steps(number).items()
            yield at - killed


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make preloads", description="Restart training scripts, preloaded or not.")
    parser.add_argument("--kills", type=int, default=5, help="of each job (default: 5; 1: the first restarts alone)")
    parser.add_argument("--jobs", type=int, default=2, help="of each framework and way (default: 2)")
    parser.add_argument("--only", help="names of frameworks, with commas")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args(argv)
    rng = random.Random(asked.seed)
    print(f"seed {asked.seed}; seconds, median (extremes) of the later restarts; the first restart of each job")
    slow: list[str] = []
    broken: dict[str, str] = {}
    for framework in asked.only.split(",") if asked.only else BODIES:
        ways = {"none": None, "by hand": BY_HAND[framework], "auto": "auto"}
        first: dict[str, list[float]] = {way: [] for way in ways}
        later: dict[str, list[float]] = {way: [] for way in ways}
        try:
            for _ in range(asked.jobs):
                for way, preload in ways.items():
                    took = list(restarts(framework, preload, asked.kills, rng))
                    first[way] += took[:1]
                    later[way] += took[1:]
        except TimeoutError as error:
            broken[framework] = str(error)
            print(f"{framework}: not measured: {error}", flush=True)
            continue
        later = first if asked.kills == 1 else later
        medians = {way: statistics.median(later[way]) for way in ways}
        if medians["auto"] > min(medians["none"], medians["by hand"] * 1.1):
            slow.append(framework)
        for way in ways:
            firsts = ", ".join(f"{each:.2f}" for each in first[way])
            extremes = f"({min(later[way]):.2f} to {max(later[way]):.2f})"
            print(f"{framework:14} {way:8} {medians[way]:6.2f} {extremes:18} first: {firsts}", flush=True)
    for framework in slow:
        print(f"{framework}: FAILED: auto is slower than none, or than naming the modules by hand")
    for framework, why in broken.items():
        print(f"{framework}: FAILED: {why}")
    return 1 if slow or broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
