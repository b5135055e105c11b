"""What states may hold beside tensors: it is loaded again as it was, or refused before anything depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from elastic_agent.worker import Every, Run
from elastic_agent.worker.checkpoints.staging import Staging
from elastic_agent.worker.errors import Misused, NotResumable

NEVER = Every(seconds=None)


class Best(NamedTuple):
    loss: float


class Holding:
    """An object with a state."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


def save(run: Run) -> None:
    run.steps += 1
    run._save("")
    run._persistence.wait()


@pytest.mark.parametrize("held", [np.float64(1 / 3), np.int64(-7), np.bool_(True), np.str_("best"), np.complex128(1j)])
def test_a_number_of_numpys_comes_back_as_the_one_of_pythons_that_equals_it(tmp_path: Path, held: Any) -> None:
    save(Run(tmp_path, every=NEVER, thing=Holding({held: [held]})))
    kept = Holding(None)
    assert Run(tmp_path, every=NEVER, thing=kept).steps == 1
    [(key, [value])] = kept.held.items()
    assert key == value == held
    assert type(value) is type(held.item())


def test_a_schedule_that_computes_with_numpy_is_resumed(tmp_path: Path) -> None:
    def start() -> tuple[Run, Any]:
        net = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + np.cos(np.pi * step / 20)))
        return Run(tmp_path, every=NEVER, model=net, optimizer=optimizer, schedule=schedule), schedule

    run, schedule = start()
    for _ in range(3):
        schedule.optimizer.step()
        schedule.step()
    save(run)
    again, resumed = start()
    assert again.steps == 1
    assert resumed.get_last_lr() == schedule.get_last_lr()


@pytest.mark.parametrize(
    ("held", "named"),
    [
        (np.float32(0.1), "numpy"),
        (np.zeros(3), "numpy"),
        (Best(0.5), "Best"),
        (lambda x: x, "lambda"),
        (Path("here"), "PosixPath"),
    ],
)
def test_what_no_start_could_load_is_refused_at_the_first_save(tmp_path: Path, held: Any, named: str) -> None:
    """Computed with a float of Python's, numpy's shorter floats would give other values after a resume."""
    run = Run(tmp_path, every=NEVER, thing=Holding(held))
    with pytest.raises(NotResumable, match=rf"load the state of 'thing' from a checkpoint: .*{named}.*float\(x\)"):
        save(run)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("step-")] == []


def test_a_set_is_saved_as_it_was_at_its_step(tmp_path: Path) -> None:
    """Training goes on and changes it while the checkpoint is written."""
    held = {1, 2}
    copied = Staging().copy({"held": held})
    held.add(3)
    assert copied["held"] == {1, 2}
    save(Run(tmp_path, every=NEVER, thing=Holding(held)))
    kept = Holding(None)
    Run(tmp_path, every=NEVER, thing=kept)
    assert kept.held == {1, 2, 3}


def test_a_sparse_buffer_is_saved_and_loaded(tmp_path: Path) -> None:
    """A graph's adjacency matrix, say, which would have terabytes if it were dense."""

    def net() -> torch.nn.Module:
        made = torch.nn.Linear(3, 3)
        places = torch.tensor([[0, 2_000_000], [1, 5]])
        made.register_buffer(
            "edges", torch.sparse_coo_tensor(places, torch.tensor([0.5, 2.0]), (10**7, 10**7), check_invariants=True)
        )
        return made

    first = net()
    first.get_buffer("edges").mul_(3.0)
    save(Run(tmp_path, every=NEVER, model=first))
    other = net()
    assert Run(tmp_path, every=NEVER, model=other).steps == 1
    assert torch.equal(other.get_buffer("edges").coalesce().values(), torch.tensor([1.5, 6.0]))
    assert torch.equal(other.get_parameter("weight"), first.get_parameter("weight"))


@pytest.mark.parametrize("name", ["state_dict", "load_state_dict", "get"])
def test_a_value_under_the_name_of_a_method_is_refused_where_it_is_set(tmp_path: Path, name: str) -> None:
    run = Run(tmp_path, every=NEVER)
    with pytest.raises(Misused, match=f"run.vars.{name} is a method of run.vars: give the value another name"):
        setattr(run.vars, name, 1)
    save(run)
