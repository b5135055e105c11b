"""A trainer at the prompt of an interactive Python on a terminal: its creators have no file, Ctrl-C ends no worker."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BOUND_S = 120.0
INTERRUPT = "\x03"
TYPED = """\
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingOperator

def make_model(config):
    return nn.Linear(4, 2)

def make_data(config):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=config[BATCH_SIZE])

def make_optimizer(model, config):
    return torch.optim.SGD(model.parameters(), lr=0.1)

class Held(TrainingOperator):
    def train_batch(self, batch, batch_info):
        if self.world_rank == 0 and (self.epoch, batch_info["batch_idx"]) == (1, 1):
            print("pass 2", "is held", flush=True)
            open(self.config["pipe"]).close()
        return super().train_batch(batch, batch_info)

def make_trainer():
    return TorchTrainer(model_creator=make_model, data_creator=make_data, optimizer_creator=make_optimizer,
                        loss_creator=nn.CrossEntropyLoss, training_operator_cls=Held, num_workers=2, use_gpu=False,
                        config={BATCH_SIZE: 10, "pipe": "pipe"})

trainer = make_trainer()
trainer
"""


class Prompt:
    """An interactive Python on a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self._terminal, other = pty.openpty()
        settings = termios.tcgetattr(other)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(other, termios.TCSANOW, settings)
        env = {**os.environ, "PYTHONPATH": str(ROOT / ".typing"), "OMP_NUM_THREADS": "1", "TERM": "dumb"}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-q", "-i"],
            cwd=folder, env={**env, "PYTHON_BASIC_REPL": "1"}, stdin=other, stdout=other, stderr=other,
        )  # fmt: skip
        os.close(other)

    def type(self, text: str, shows: str) -> str:
        """Type something, and read until this is shown, a regular expression; its last group."""
        os.write(self._terminal, text.encode())
        shown, deadline_s = "", time.monotonic() + BOUND_S
        while not (found := re.search(shows, shown)):
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready or "Error" in shown:
                pytest.fail(f"{shows!r} was not shown after {text!r}, but:\n{shown}")
            shown += os.read(self._terminal, 4096).decode(errors="replace")
        return found[found.lastindex or 0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@pytest.fixture
def prompt(tmp_path: Path) -> Iterator[Prompt]:
    made = Prompt(tmp_path)
    yield made
    made.close()


def test_creators_that_are_typed_at_a_prompt_train_and_survive_a_kill_and_an_interrupt(
    prompt: Prompt, tmp_path: Path
) -> None:
    """Ctrl-C ends the wait for a pass, not the pass: the next call goes on behind it. Creators may be typed anew for
    another trainer, and the end of the session ends its workers."""
    os.mkfifo(tmp_path / "pipe")
    prompt.type(TYPED, "<TorchTrainer, 2 of 2 workers")
    assert prompt.type("'epoch', trainer.train()['epoch']\n", r"\('epoch', (\d)\)") == "1"
    prompt.type("os.kill(trainer.apply_all_workers(os.getpid)[1], 9)\n", "round 2 begins")
    epochs = prompt.type(
        "'epochs', trainer.apply_all_operators(lambda operator: operator.epoch)\n", r"'epochs', (.*)\)"
    )
    assert epochs == "[1, 1]"
    prompt.type("trainer.train()\n", "pass 2 is held")
    prompt.type(INTERRUPT, "KeyboardInterrupt")
    (tmp_path / "pipe").write_text("")
    assert prompt.type("'epoch', trainer.train()['epoch']\n", r"\('epoch', (\d)\)") == "3"
    prompt.type("trainer.shutdown()\ntrainer\n", "<TorchTrainer of 2 workers, shut down>")
    prompt.type(
        "def make_model(config):\n    return nn.Linear(4, 3)\n\ntrainer = make_trainer()\ntrainer\n", "2 of 2 workers"
    )
    assert prompt.type("'epoch', trainer.train()['epoch']\n", r"\('epoch', (\d)\)") == "1"
    assert prompt.type("'has', trainer.get_model().out_features\n", r"\('has', (\d)\)") == "3"
    os.write(prompt._terminal, b"exit()\n")
    assert prompt.process.wait(BOUND_S) == 0
