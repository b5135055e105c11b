"""A loop that is stopped in mid-epoch, and what a script has forgotten that would cost it training."""

from __future__ import annotations

import gc
import logging
import random
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run, world
from elastic_agent.worker.checkpoints.folder import Folder
from elastic_agent.worker.checkpoints.manifest import Manifest
from elastic_agent.worker.data.loader import Loader
from elastic_agent.worker.errors import Misused
from support.workers.ranks import play

NEVER = Every(seconds=None)

pytestmark = pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from")


def loader_of(run: Run) -> Loader:
    """Ten batches of four."""
    return run.loader(DataLoader(TensorDataset(torch.arange(40)), batch_size=4))


def test_a_stop_within_an_epoch_under_an_agent_runs_nothing_more_of_its_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation of no batches, and what a script makes of it, would be of a training that is not over."""
    monkeypatch.setenv("ELASTIC_AGENT_ROUND", "1")
    run, behind = Run(tmp_path / "c", every=NEVER), []
    train, evaluation = loader_of(run), run.loader(DataLoader(TensorDataset(torch.arange(8)), 4), train=False)

    def script() -> None:
        for epoch in run.epochs(2):
            for _ in train:
                run.step()
                if run.steps == 14:
                    run.stop()
            behind.append((epoch, len(list(evaluation))))

    with pytest.raises(SystemExit) as ended:
        script()
    assert (ended.value.code, run.steps, behind) == (75, 14, [(0, 2)])
    assert [path.name for path in sorted((tmp_path / "c").glob("step-*"))][-1] == "step-000014"


def test_a_schedule_that_is_none_is_refused(tmp_path: Path) -> None:
    every: Any = 100
    with pytest.raises(Misused, match=r"every=100 is no schedule: say every=Every\(steps=100\)"):
        Run(tmp_path / "c", every=every)


def test_an_epoch_without_a_step_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path / "c", every=NEVER)
    loader, evaluation = loader_of(run), run.loader(DataLoader(TensorDataset(torch.arange(8)), 4), train=False)
    for epoch in run.epochs(4):
        for _ in loader if epoch else evaluation:
            pass
    (said,) = [text for text in caplog.messages if "without run.step()" in text]
    assert said.endswith("no checkpoint is taken; call run.step() after each optimizer.step()")


def test_steps_over_a_loader_of_the_scripts_own_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, data = Run(tmp_path / "c", every=NEVER), DataLoader(TensorDataset(torch.arange(8)), 4)
    run.loader(data)
    for _ in run.epochs(2):
        for _ in data:
            run.step()
    assert len([text for text in caplog.messages if "loop over what that returns" in text]) == 1


def test_a_script_with_no_loader_is_not_reminded_of_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path / "c", every=NEVER)
    for _ in run.epochs(2):
        run.step()
    assert not [text for text in caplog.messages if "loop over what" in text]


@pytest.mark.parametrize("loop", ["epochs", "steps"])
def test_a_start_within_an_epoch_of_no_loader_says_what_its_loop_must_count_by(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    caplog.set_level(logging.INFO)
    for stop in (3, None):
        run = Run(tmp_path / "c", every=Every(steps=1, seconds=None))
        for _ in run.epochs(1) if loop == "epochs" else [0]:
            for _ in range(5):
                run.step()
                if run.steps == stop:
                    break
            if run.steps == stop:
                break
        run.close()
    said = [text for text in caplog.messages if "this start goes on 3 steps within an epoch" in text]
    assert len(said) == (loop == "epochs")


@pytest.mark.slow
def test_a_rank_that_evaluates_alone_says_for_whom_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stood still without a word where the others waited for it in a collective of their own."""
    monkeypatch.setattr(world, "PATIENCE_S", 0.2)

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waited for others" in record.getMessage():
                (tmp_path / "said").open("a").write(record.getMessage() + "\n")

    def act(rank: int) -> None:
        logging.getLogger("elastic_agent.worker").addHandler(Said())
        run = Run(tmp_path / "c", every=NEVER)
        evaluation = run.loader(DataLoader(TensorDataset(torch.arange(8)), 2), train=False)
        for _ in run.epochs(1):
            while rank == 1 and not (tmp_path / "said").exists():
                time.sleep(0.01)
            list(evaluation)

    play(act, 2, tmp_path)
    (said,) = (tmp_path / "said").read_text().splitlines()
    assert said.startswith("rank 0 has waited for others for ")
    assert said.endswith("give it no DataLoader that one rank reads alone")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_label_that_is_asked_for_behind_the_last_checkpoint_is_kept(tmp_path: Path, ranks: int) -> None:
    """On any rank, where nothing was trained since: `run.save("final")` behind the loop, then `run.close()`."""

    def act(rank: int) -> None:
        run = Run(tmp_path / "c", every=NEVER)
        for _ in run.epochs(1):
            for _ in loader_of(run):
                run.step()
        if rank == ranks - 1:
            run.save("final")
        run.close()

    play(act, ranks, tmp_path)
    labels = [Manifest.read(kept.path).label for kept in Folder(tmp_path / "c", lambda text: None).kept()]
    assert labels == ["final", ""]


@pytest.mark.parametrize("steps", [9, 11, 25])
def test_a_loop_that_makes_iterators_itself_is_told_how_many_are_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, steps: int
) -> None:
    """It is taken for a loop over epochs; where one of two is empty it ends in a bare StopIteration."""
    caplog.set_level("INFO")
    for _ in range(2):
        run = Run(tmp_path / "c", every=NEVER)
        loader = loader_of(run)
        batches = iter(loader)
        while run.steps < steps:
            try:
                next(batches)
            except StopIteration:
                batches = iter(loader)
                next(batches)
            run.step()
        run.close()
    said = [
        text for text in caplog.messages if "makes a new iterator where one ends, finds 2 empty ones: write" in text
    ]
    assert len(said) == (steps == 25)


def test_a_run_that_the_script_has_let_go_is_not_kept_beside_the_next_one(tmp_path: Path) -> None:
    """Each fold of a validation has a model of its own, and there may be memory for two of them only."""

    def fold(number: int) -> tuple[Run, weakref.ref[Any]]:
        net = torch.nn.Linear(1, 1)
        run = Run(tmp_path / str(number), every=NEVER, net=net)
        for _ in run.epochs(1):
            run.step()
        return run, weakref.ref(net)

    gc.disable()
    try:
        run, first = fold(1)
        run, second = fold(2)
        assert first() is not None  # the variable held it until the second was there
        run, third = fold(3)
        assert first() is None
        assert second() is not None
        assert third() is not None
        del run
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda net: torch.optim.AdamW(net.parameters()), "the AdamW of its parameters"),
        (lambda net: torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), "the SGD of its parameters"),
        (lambda net: torch.optim.SGD(net.parameters(), 0.1), ""),
        (lambda net: torch.optim.AdamW(torch.nn.Linear(2, 2).parameters()), ""),
        (lambda net: None, ""),
    ],
    ids=["keeps moments", "keeps momentum", "keeps nothing", "of another module", "none"],
)
def test_an_optimizer_that_the_run_is_not_given_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[torch.nn.Module], object], said: str
) -> None:
    net = torch.nn.Linear(2, 2)
    made = make(net)
    Run(tmp_path / "c", model=net)
    texts = [text for text in caplog.messages if "and not the" in text]
    assert [said in text for text in texts] == [True] * bool(said), made


@pytest.mark.parametrize("together", [False, True], ids=["by name", "within a state of the script's own"])
def test_an_optimizer_that_the_run_has_is_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, together: bool
) -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    if together:
        Run(tmp_path / "c", model=net, all=Both(optimizer))
    else:
        Run(tmp_path / "c", model=net, optimizer=optimizer, scheduler=scheduler)
    assert not [text for text in caplog.messages if "and not the" in text]


class Both:
    """A state that has others within."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


@pytest.mark.parametrize("given", [True, False])
def test_a_schedule_that_the_run_is_not_given_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: bool
) -> None:
    """One that is a part of another one belongs to that."""
    optimizer = torch.optim.AdamW((net := torch.nn.Linear(2, 2)).parameters())
    rises, falls = (torch.optim.lr_scheduler.ExponentialLR(optimizer, factor) for factor in (1.1, 0.9))
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rises, falls], [4])
    parts: dict[str, Any] = {"net": net, "optimizer": optimizer} | ({"schedule": schedule} if given else {})
    Run(tmp_path, **parts)
    texts = [text for text in caplog.messages if "of its rate" in text]
    assert ["not the SequentialLR of its rate, which begins anew in each start" in text for text in texts] == (
        [] if given else [True]
    )


class Noise:
    """A collation that draws from a generator, which is keyed."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def __call__(self, samples: list[Any]) -> float:
        return self.generator.random()


def test_a_generator_of_the_scripts_own_from_which_its_loop_draws_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mixup", "unused", "in_collation"):
        monkeypatch.setattr(sys.modules["__main__"], name, random.Random(1), raising=False)
    script: Any = sys.modules["__main__"]
    run = Run(tmp_path / "c", every=NEVER)
    loader = run.loader(DataLoader(range(8), batch_size=4, collate_fn=Noise(script.in_collation)))  # type: ignore[arg-type]
    for _ in run.epochs(2):
        for _ in loader:
            script.mixup.random()
            run.step()
    said = [message for message in caplog.messages if "generator of its own" in message]
    assert len(said) == 1
    assert "a generator of its own, mixup, and no checkpoint has that" in said[0]


def test_a_start_of_other_ranks_whose_batches_no_loader_gives_says_that_they_are_others(tmp_path: Path) -> None:
    def act(rank: int) -> str:
        (tmp_path / "said").mkdir(exist_ok=True)
        said = logging.FileHandler(tmp_path / "said" / f"{rank}")
        logging.getLogger("elastic_agent.worker").addHandler(said)
        logging.getLogger("elastic_agent.worker").setLevel("INFO")
        run = Run(tmp_path / "c", every=NEVER)
        for _ in run.epochs(run.epoch + 1):
            run.step()
        return (tmp_path / "said" / f"{rank}").read_text()

    text = (
        "no loader of run.loader() gives the batches, so that what is drawn for them follows the rank: with 1 ranks, 2"
    )
    assert text not in play(act, 2, tmp_path)[0]
    assert text in play(act, 1, tmp_path)[0]


def test_a_schedule_that_marks_no_optimizer_is_named_behind_the_first_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = torch.optim.AdamW((net := torch.nn.Linear(2, 2)).parameters())
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    run = Run(tmp_path, net=net, optimizer=optimizer)
    for _ in run.epochs(2):
        run.step()
        schedule.step(0.0)
    assert sum("not the ReduceLROnPlateau of its rate" in text for text in caplog.messages) == 1


class PowerSGDState:
    """Errors of the steps before, which a hook adds to the next gradients."""


def test_a_hook_that_keeps_something_of_the_gradients_is_named(tmp_path: Path) -> None:
    def act(rank: int) -> str:
        wrapped = DistributedDataParallel(torch.nn.Linear(2, 2))
        wrapped.register_comm_hook(PowerSGDState(), lambda state, bucket: None)
        logging.getLogger("elastic_agent.worker").addHandler(logging.FileHandler(tmp_path / f"said-{rank}"))
        Run(tmp_path / "c", every=NEVER, net=wrapped.module)
        return (tmp_path / f"said-{rank}").read_text()

    assert play(act, 2, tmp_path)[0].count("whose PowerSGDState keeps something") == 1
