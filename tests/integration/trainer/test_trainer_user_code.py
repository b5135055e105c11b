"""What a program's own code may do in its workers and beside them, and what is said where it may not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from elastic_agent.agent.errors import UsageError
from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingFailed, TrainingOperator, WrongReturn
from support.source_tree import ROOT
from support.trainers import training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread")]

FULL = training.TWO_WORKERS


class Leaving(training.Pair):
    """Rank 1 ends in its fourth batch, by what the config says."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        if self.world_rank == 1 and batch_info["batch_idx"] == 3:
            if self.config["ends by"] == "exit":
                sys.exit(self.config["code"])
            raise {"interrupt": KeyboardInterrupt, "end of file": EOFError}[self.config["ends by"]]("of the user's")
        return super().train_batch(batch, batch_info)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"ends by": "exit", "code": 0},
            r"SystemExit: a worker called sys\.exit\(0\); raise an exception.* \(rank 1 on ",
        ),
        ({"ends by": "exit", "code": "over"}, r"SystemExit: a worker called sys\.exit\('over'\); raise an exception"),
        ({"ends by": "interrupt"}, "KeyboardInterrupt: of the user's"),
        ({"ends by": "end of file"}, "EOFError: of the user's"),
    ],
    ids=["exit 0", "exit with a text", "an interrupt", "an end of file"],
)
def test_an_operator_that_ends_its_process_ends_the_call_with_its_name(how: dict[str, Any], words: str) -> None:
    """Nobody waits for it; an exit is not tried again."""
    settings: dict[str, Any] = {"training_operator_cls": Leaving, "num_workers": 2, "use_gpu": False}
    with TorchTrainer(**settings, config={BATCH_SIZE: 25, **how}) as trainer:
        with pytest.raises(TrainingFailed, match=words) as caught:
            trainer.train(max_retries=0 if "code" not in how else 3)
        assert caught.value.rank == 1
        assert "in train_batch" in caught.value.traceback


def test_a_creator_or_a_hook_that_exits_is_named() -> None:
    def leaves(*given: Any) -> Any:
        sys.exit(0)

    for changed, words in (
        ({"model_creator": leaves}, r"SystemExit: a worker called sys\.exit\(0\)"),
        ({"initialization_hook": leaves}, r"initialization_hook called sys\.exit\(0\)"),
    ):
        with pytest.raises(TrainingFailed, match=words):
            TorchTrainer(**{**FULL, "num_workers": 1, **changed})


MOVING = """
import json, os, signal, sys
sys.path.insert(0, "lib")
import mine
from elastic_agent.trainer import BATCH_SIZE, TorchTrainer
from support.trainers import training

given = {**training.CREATORS, "model_creator": mine.make_model, "num_workers": 1, "config": {BATCH_SIZE: 25}}
if sys.argv[1:]:
    given["preload"] = ()
with TorchTrainer(**given) as trainer:
    os.chdir("/")
    os.kill(trainer.apply_all_workers(os.getpid)[0], signal.SIGKILL)
    print(json.dumps([trainer.train()["num_samples"], trainer.apply_all_workers(os.getcwd)]))
"""


@pytest.mark.parametrize("preload", [[], ["none"]], ids=["forked", "started"])
def test_a_program_that_changes_its_directory_has_workers_restarted_where_they_were(
    tmp_path: Path, preload: list[str]
) -> None:
    """They find the modules of a relative path, and stand where the trainer was made."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").write_text("from support.trainers.training import make_model as make\n\n\n"
                                              "def make_model(config):\n    return make(config)\n")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", MOVING, *preload],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / '.typing'}:{ROOT / 'tests'}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == [250, [str(tmp_path)]]


class Informed(TrainingOperator):
    """Keeps what it was given."""

    def train_epoch(self, iterator: Any, info: dict[Any, Any]) -> dict[str, Any]:
        self.given = info["given"], info[7]
        return super().train_epoch(iterator, info)


def test_info_comes_to_the_operator_as_it_was_given() -> None:
    """With numbers as keys beside texts, and tuples, which JSON has not."""
    given = {1: "one", "two": (2, [3, {4.5: None, "*dict": True}])}
    with TorchTrainer(**{**FULL, "num_workers": 1, "training_operator_cls": Informed}) as trainer:
        info: Any = {"given": given, 7: "seven"}
        trainer.train(num_steps=1, info=info)
        assert trainer.apply_all_operators(lambda operator: operator.given == (given, "seven")) == [True]  # type: ignore[attr-defined]


def test_a_connection_that_a_creator_finds_broken_is_its_own_error(tmp_path: Path) -> None:
    """Not the loss of a peer, for which workers would be started again."""
    path = str(tmp_path / "starts")

    def broken(config: dict[str, Any]) -> Any:
        with open(path, "a", encoding="utf-8") as file:
            file.write("once\n")
        raise ConnectionRefusedError("the store of data is down")

    with pytest.raises(TrainingFailed, match=r"(?s)ConnectionRefusedError: the store of data is down .*in broken"):
        TorchTrainer(**{**FULL, "num_workers": 1, "data_creator": broken}, max_retries=3)
    assert Path(path).read_text() == "once\n"


def test_a_child_process_that_was_forked_ends_without_the_trainer() -> None:
    """By an exit behind the trainer's block, too: its files and workers stay. A call that it makes is refused: it would
    reach the workers, whose answer goes to the trainer's own process, and wait for ever."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / '.typing'}:{ROOT / 'tests'}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told, found = done.stdout.splitlines()
    assert told.startswith("train() in a process that was forked from the trainer's")
    assert json.loads(found) == [0, True, 2]


FORKING = """
import json, os, sys
from elastic_agent import UsageError
from elastic_agent.trainer import BATCH_SIZE, TorchTrainer
from support.trainers import training

with TorchTrainer(**training.CREATORS, num_workers=1, config={BATCH_SIZE: 25}) as trainer:
    trainer.train()
    folder = os.path.dirname(trainer.before_pass)
    if not (child := os.fork()):
        try:
            trainer.train()
        except UsageError as error:
            print(error, flush=True)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    print(json.dumps([status, os.path.exists(folder), trainer.train()["epoch"]]))
"""


def test_what_calls_were_given_is_removed_when_they_are_done(tmp_path: Path) -> None:
    """But for the last two, for workers whose newest state is damaged: a state to load is as large as the model."""
    with TorchTrainer(**FULL) as trainer:
        for _ in range(3):
            trainer.load_state_dict(trainer.state_dict())
            trainer.apply_all_workers(os.getpid)
            trainer.save(tmp_path / "saved")
        folder = Path(trainer.before_pass).parent
        assert len([path for path in folder.iterdir() if "parcel" in path.name]) == 2
        os.kill(trainer.apply_all_workers(os.getpid)[0], signal.SIGKILL)
        assert trainer.validate()["num_samples"] == 101


class Endless(IterableDataset[Any]):
    """A stream that cannot say where it is."""

    def __iter__(self) -> Iterator[Any]:
        return iter(training.Pairs(16)[at] for at in range(16))


def by_plateau(optimizer: Any, config: dict[str, Any]) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def a_stream(config: dict[str, Any]) -> DataLoader[Any]:
    return DataLoader(Endless(), batch_size=8)


class Scoring(training.Pair):
    """Keeps its best score as numpy computes it, and names what it returns by numbers."""

    best = np.float64(0.0)

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[Any, Any]:
        self.best = np.maximum(self.best, np.float64(batch_info["batch_idx"]))
        return dict(enumerate(super().train_batch(batch, batch_info).values()))

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "seen": {np.int64(7)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = np.float64(state["best"])


def test_numbers_of_numpy_in_a_state_are_saved_and_loaded(tmp_path: Path) -> None:
    """Checkpoints took them, and `save` at the end of the training did not. So are names that are numbers."""
    settings: dict[str, Any] = {"training_operator_cls": Scoring, "num_workers": 1, "use_gpu": False}
    with TorchTrainer(**settings, config={BATCH_SIZE: 25}) as trainer:
        assert {"0", "1", "last_0"} <= trainer.train().keys()
        state = trainer.state_dict()["operator"]["own"]
        assert (state, type(state["best"])) == ({"best": 9.0, "seen": {7}}, float)
        trainer.load(trainer.save(tmp_path / "state.pt"))
        assert trainer.train()["epoch"] == 2


def test_what_the_trainer_cannot_do_is_refused_at_once_with_what_to_do() -> None:
    """A scheduler that nobody gives a metric was tried again by all restarts; a stream was refused in the words of the
    worker library."""
    with (
        TorchTrainer(**FULL, scheduler_creator=by_plateau) as trainer,
        pytest.raises(WrongReturn, match=r"scheduler_step_freq='epoch' has none: give scheduler_step_freq='manual'"),
    ):
        trainer.train()
    with pytest.raises(
        WrongReturn, match=r"Endless cannot say where it is.* or allow add_dist_sampler=False of the trainer"
    ):
        TorchTrainer(**{**FULL, "data_creator": a_stream})
    with pytest.raises(UsageError, match="config is a int, and must be a dict of plain data"):
        TorchTrainer(**{**FULL, "config": 5})


def test_what_a_function_may_not_give_is_named_and_the_training_goes_on() -> None:
    """In memory alone is what was trained: a look at it that goes wrong must not be its end."""

    def no_validation_data(config: dict[str, Any]) -> Any:
        return FULL["data_creator"](config)[0]

    def locked(config: dict[str, Any]) -> Any:
        made = FULL["model_creator"](config)
        made.lock = threading.Lock()
        return made

    with TorchTrainer(**{**FULL, "data_creator": no_validation_data, "model_creator": locked}) as trainer:
        with pytest.raises(WrongReturn, match="there is no validation data"):
            trainer.validate()
        with pytest.raises(WrongReturn, match=r"the model cannot be copied: TypeError: cannot pickle '_thread\.lock'"):
            trainer.get_model()
        with pytest.raises(WrongReturn, match=r"data or tensors: it has pathlib\.\w+ in it \(rank 0\)"):
            trainer.apply_all_workers(lambda: {"where": Path("here")})
        with pytest.raises(UsageError, match=r"the function is called with the operator: too many positional"):
            trainer.apply_all_operators(lambda: 1)  # type: ignore[arg-type,misc]  # the mistake
        other = trainer.state_dict()
        other["model0"] = {name: tensor.repeat(2) for name, tensor in other["model0"].items() if tensor.ndim == 1}
        with pytest.raises(WrongReturn, match=r"the state has \S+ of model0 with the shape \(\d+,\), and the trainer"):
            trainer.load_state_dict(other)
        with pytest.raises(WrongReturn, match="the state cannot be loaded: it holds pathlib"):
            trainer.load_state_dict({**trainer.state_dict(), "operator": {"own": {"where": Path("here")}}})
        assert trainer.train()["epoch"] == 1
