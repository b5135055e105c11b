"""Hugging Face's Trainer with steps of two batches of 4 over all ranks, which are as many as RANKS at a time.

KILL="0:7" is a SIGKILL before step 7. Writes to SEEN.<rank> as `tools_script` does, a line for each batch of a step.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers  # type: ignore[import-not-found, unused-ignore]
from transformers import Trainer, TrainerCallback, TrainingArguments  # type: ignore[import-not-found, unused-ignore]

from elastic_agent.worker.frameworks.hugging_face import Exact
from support.resume.edges_script import First
from support.resume.tools_script import CHECKPOINTS, EPOCHS, RANKS, end, loss_of, may_die, tell, used


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.batch = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        used(trainer.state.global_step, self.batch, x)
        self.batch += 1
        return {"loss": loss_of(self.net, x)}


class Dies(TrainerCallback):  # type: ignore[misc, unused-ignore]
    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        getattr(model, "module", model).batch = 0
        may_die(0, state.global_step)


class Ours(Exact, Trainer):  # type: ignore[misc, unused-ignore]
    pass


if transformers.__version__.startswith("4."):
    # Several ranks of transformers 4 load an optimizer to the device cpu:0, which this torch does not know any more.
    torch.serialization.register_package(
        5, lambda kept: None, lambda kept, place: kept if str(place) == "cpu:0" else None
    )
torch.manual_seed(1)
args = TrainingArguments(
    str(CHECKPOINTS), per_device_train_batch_size=4 // RANKS, gradient_accumulation_steps=2, learning_rate=0.1,
    num_train_epochs=EPOCHS, save_steps=3, logging_steps=1000, remove_unused_columns=False, report_to=[],
    disable_tqdm=True, use_cpu=True, ddp_backend="gloo" if RANKS > 1 else None,
)  # fmt: skip
trainer = Ours(
    model=Model(), args=args, train_dataset=First(62), callbacks=[Dies()],
    data_collator=lambda samples: {"x": torch.stack(samples)},
)  # fmt: skip
trainer.train()
tell("weights", 0, *[value.flatten().tolist() for value in trainer.model.net.state_dict().values()], [])
end(trainer.model.net)
