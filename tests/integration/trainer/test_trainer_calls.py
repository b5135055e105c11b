"""What a program asks of a trainer, with real workers and gloo; one trainer of two workers for most of it."""

from __future__ import annotations

import functools
import logging
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastic_agent.agent.errors import UsageError
from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, WrongReturn
from elastic_agent.worker import verify
from elastic_agent.worker.errors import CheckpointDamaged, WrongState
from support.trainers import training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FULL: dict[str, Any] = {
    **training.CREATORS,
    "config": {BATCH_SIZE: 33},
    "num_workers": 2,
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def trainer(_one_thread: None) -> Iterator[TorchTrainer]:
    with TorchTrainer(**FULL, scheduler_creator=training.make_scheduler) as made:
        yield made


def test_a_pass_gives_means_over_the_samples_of_all_workers(trainer: TorchTrainer) -> None:
    """250 samples in batches of 33 do not divide over two workers, and each counts once."""
    first, second = trainer.train(), trainer.train()
    assert (first["num_samples"], first["batch_count"], second["epoch"] - first["epoch"]) == (250, 8, 1)
    assert second["train_loss"] < first["train_loss"]
    assert 0 < second["last_train_loss"] < 2


def test_validation_is_that_of_the_model_as_it_is_here(trainer: TorchTrainer) -> None:
    """Loss and accuracy of two workers are those of the model that get_model() gives, in this process."""
    found, model = trainer.validate(), trainer.get_model().eval()
    x, y, _ = training.make_set(101).tensors
    with torch.no_grad():
        scores = model(x)
    assert found["num_samples"] == 101
    assert found["val_loss"] == pytest.approx(nn.functional.cross_entropy(scores, y).item(), rel=1e-5)
    assert found["val_accuracy"] == pytest.approx((scores.argmax(1) == y).float().mean().item())


def test_the_gradient_is_the_mean_over_samples_with_any_number_of_workers() -> None:
    """33 samples are 17 and 16 on two workers, and the last 19 are 7, 6 and 6 on three: each counts the same, with
    FSDP2 too."""
    learned = []
    for workers, parallel in ((1, "ddp"), (2, "ddp"), (3, "ddp"), (2, "fsdp")):
        plain = {"model_creator": training.make_plain_model, "optimizer_creator": training.make_descent}
        with TorchTrainer(**{**FULL, **plain, "num_workers": workers, "parallel": parallel}) as made:
            made.train()
            learned.append(torch.cat([weight.flatten() for weight in made.get_model().parameters()]))
    start = torch.cat([weight.flatten() for weight in training.make_plain_model({}).parameters()])
    assert (learned[0] - start).abs().max() > 0.1
    for weights in learned[1:]:
        assert torch.allclose(weights, learned[0], rtol=0, atol=1e-5)


def test_each_worker_for_itself(trainer: TorchTrainer) -> None:
    parts = trainer.validate(reduce_results=False)
    assert sum(part["num_samples"] for part in parts) == 101
    assert len(parts) == 2


def test_a_part_of_a_pass_with_its_times(trainer: TorchTrainer) -> None:
    found = trainer.train(num_steps=2, profile=True)
    assert (found["batch_count"], found["num_samples"]) == (2, 66)
    assert found["profile"]["total_pass_s"] > found["profile"]["total_backward_s"] > 0


def test_the_state_from_before_a_pass_is_kept_where_asked_for(trainer: TorchTrainer) -> None:
    before = trainer.get_model().state_dict()
    trainer.train(num_steps=2, checkpoint="auto")
    assert trainer.before_pass
    trainer.load(trainer.before_pass)
    assert all(torch.equal(before[name], weight) for name, weight in trainer.get_model().state_dict().items())


def test_schedulers_step_when_they_are_told_to(trainer: TorchTrainer) -> None:
    rates = training.rates_of
    before = trainer.apply_all_operators(rates)
    trainer.train(num_steps=1, info={"scheduler_step_freq": "manual"})
    assert trainer.apply_all_operators(rates) == before
    trainer.update_scheduler(1.0)
    trainer.train(num_steps=2, info={"scheduler_step_freq": "batch"})
    trainer.train(num_steps=1)
    assert trainer.apply_all_operators(rates) == [[rate / 16] for (rate,) in before]


def test_functions_run_in_every_worker(trainer: TorchTrainer) -> None:
    """Also one that was typed here; what is no plain data comes back where it is made of tensors."""
    pids = trainer.apply_all_workers(os.getpid)
    assert len({*pids, os.getpid()}) == 3
    tensors = trainer.apply_all_operators(lambda operator: {"rank": torch.full((2,), operator.world_rank)})
    assert [each["rank"].tolist() for each in tensors] == [[0, 0], [1, 1]]


def test_what_functions_give_comes_back_as_it_is(trainer: TorchTrainer) -> None:
    """Tensors of one number, tuples and numbers as keys too; numpy's numbers are those of Python."""

    def same(value: Any) -> Any:
        return value

    number, many = torch.tensor([1.5]), {1: (2, [3.0]), "one": torch.ones(1, 1)}
    for given in (number, (1, "two"), many, {"nothing": None}, [[True, 0.1]], float("inf")):
        for found in trainer.apply_all_workers(functools.partial(same, given)):
            assert type(found) is type(given)
            assert alike(found, given)
    array = many["one"].numpy()  # type: ignore[attr-defined]
    assert [type(each) for each in trainer.apply_all_workers(array.mean)] == [float, float]


def test_what_workers_read_is_in_files_of_this_user_alone(trainer: TorchTrainer) -> None:
    trainer.apply_all_workers(os.getpid)
    trainer.load_state_dict(trainer.state_dict())
    trainer.get_model()
    folder = Path(trainer.before_pass).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = [path for path in folder.iterdir() if path.name.startswith(("program", "paths", "parcel-", "model-"))]
    assert len(files) >= 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def alike(one: Any, other: Any) -> bool:
    """States of the same numbers."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def verified(path: Path) -> int:
    """The status of `python -m elastic_agent.worker verify`."""
    return verify.main(["verify", str(path)])


def test_a_saved_state_is_gone_on_from(trainer: TorchTrainer, tmp_path: Path) -> None:
    """One file, which plain torch.load reads; a damaged or cut one changes nothing."""
    trainer.save(tmp_path / "state.pt")
    before = trainer.validate()
    trainer.train()
    assert trainer.validate()["val_loss"] != before["val_loss"]
    trainer.load(tmp_path / "state.pt")
    assert trainer.validate()["val_loss"] == before["val_loss"]
    plain = torch.load(tmp_path / "state.pt", weights_only=True)
    assert plain["state"]["model0"].keys() == trainer.get_model().state_dict().keys()
    data = bytearray((tmp_path / "state.pt").read_bytes())
    (tmp_path / "cut.pt").write_bytes(data[: len(data) // 2])
    weights = plain["state"]["model0"]["0.weight"].numpy().tobytes()
    data[data.index(weights)] ^= 1
    (tmp_path / "flipped.pt").write_bytes(data)
    assert [verified(tmp_path / name) for name in ("state.pt", "cut.pt", "flipped.pt")] == [0, 1, 1]
    for damaged in ("cut.pt", "flipped.pt"):
        with pytest.raises(CheckpointDamaged):
            trainer.load(tmp_path / damaged)
    torch.save({"something": 1}, tmp_path / "other.pt")
    with pytest.raises(WrongState, match="no file of TorchTrainer"):
        trainer.load(tmp_path / "other.pt")
    assert trainer.validate()["val_loss"] == before["val_loss"]


def test_a_full_disk_leaves_the_file_from_before(trainer: TorchTrainer, tmp_path: Path) -> None:
    trainer.save(tmp_path / "kept.pt")
    kept = (tmp_path / "kept.pt").read_bytes()
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
        with pytest.raises(OSError, match="what was there stays"):
            trainer.save(tmp_path / "kept.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handled)
    assert (tmp_path / "kept.pt").read_bytes() == kept
    assert [path.name for path in tmp_path.iterdir()] == ["kept.pt"]


def test_wrong_arguments_reach_no_worker(trainer: TorchTrainer) -> None:
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: trainer.train(num_steps=0), "num_steps is 0"),
        (lambda: trainer.train(checkpoint="often"), "checkpoint='often'"),
        (lambda: trainer.train(info={"when": object()}), r"info\['when'\] is a object"),
        (lambda: trainer.train(info={"scheduler_step_freq": "daily"}), "scheduler_step_freq='daily'"),
        (lambda: trainer.train(max_retries=-1), "max_retries is -1"),
    ]
    for call, words in calls:
        with pytest.raises(UsageError, match=words):
            call()
    assert "2 of 2 workers" in repr(trainer)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"config": {BATCH_SIZE: 1}}, "is 1 for 2 workers"),
        ({"config": {"net": object()}}, r"config\['net'\] is a object, and must be plain data"),
        ({"model_creator": None}, "there is no model_creator"),
        ({"model_creator": 3}, "model_creator is a int"),
        ({"use_gpu": "many"}, "use_gpu='many'"),
        ({"num_workers": 0}, "num_workers is 0"),
        ({"apex_args": {}}, "amp_dtype=torch.bfloat16"),
        ({"amp_dtype": torch.float64}, "it is torch.float16 or torch.bfloat16"),
        ({"nnodes": "2"}, "needs rdzv_endpoint"),
        (
            {"nnodes": "2", "num_workers": 3, "rdzv_endpoint": "localhost:1"},
            r"num_workers is 3 for nnodes='2': .* of the most nodes, 2, has an equal part; give 2 or 4, or another",
        ),
        (
            {"nnodes": "1:4", "rdzv_endpoint": "localhost:1"},
            r"num_workers is 2 for nnodes='1:4': .* has an equal part; give 4, or another number of nodes",
        ),
        ({"parallel": "pipeline"}, "parallel='pipeline'"),
        ({"scheduler_step_freq": "daily"}, "scheduler_step_freq='daily'"),
    ],
)
def test_wrong_settings_start_nothing(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TorchTrainer(**{**FULL, **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_creator": lambda config: 3}, "model_creator returned models: a int"),
        ({"data_creator": lambda config: [1, 2, 3]}, "data_creator returned 3 things"),
        ({"data_creator": lambda config: training.Pairs(0)}, "the train data is empty"),
        ({"optimizer_creator": lambda model, config: model}, "optimizer_creator returned optimizers: a "),
        ({"scheduler_creator": lambda optimizer, config: 3}, "schedulers: a int"),
    ],
)
def test_wrong_creators_are_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongReturn, match=words):
        TorchTrainer(**{**FULL, "num_workers": 1, **changed})


def test_a_creator_that_raises_is_shown_with_its_traceback() -> None:
    def broken(config: dict[str, Any]) -> Any:
        raise FileNotFoundError("no digits here")

    with pytest.raises(Exception, match=r"(?s)FileNotFoundError: no digits here \(rank 0 on .*in broken"):
        TorchTrainer(**{**FULL, "num_workers": 1, "data_creator": broken})


def test_two_models_need_an_operator() -> None:
    both = {**FULL, "num_workers": 1, "model_creator": lambda config: [nn.Linear(4, 2), nn.Linear(4, 2)]}
    both["optimizer_creator"] = lambda models, config: torch.optim.SGD(models[0].parameters(), lr=0.1)
    with TorchTrainer(**both) as trainer, pytest.raises(WrongReturn, match="2 models, and train_batch"):
        trainer.train()


def test_an_operator_registers_what_it_trains(caplog: pytest.LogCaptureFixture) -> None:
    """Two models, optimizers and schedulers in `setup`, half precision without a cast, a hook before torch, the level
    of the program's log, and an end that leaves nothing."""
    caplog.set_level(15, logger="elastic_agent")

    def hook() -> None:
        os.environ["HOOKED"] = "after torch" if "torch" in sys.modules else "before torch"

    with TorchTrainer(
        training_operator_cls=training.Pair,
        initialization_hook=hook,
        config={BATCH_SIZE: 50},
        num_workers=2,
        use_gpu=False,
        amp_dtype=torch.bfloat16,
        scheduler_step_freq="manual",
    ) as trainer:
        found = trainer.train(profile=True)
        assert (found["num_samples"], found["batch_count"]) == (250, 5)
        assert found["profile"]["total_guess_s"] > 0
        assert trainer.apply_all_operators(training.rates_of) == [[0.1, 0.1]] * 2
        trainer.update_scheduler(1.0)
        assert trainer.apply_all_operators(training.rates_of) == [[0.05, 0.05]] * 2
        levels = trainer.apply_all_workers(lambda: logging.getLogger("elastic_agent.worker").getEffectiveLevel())
        assert levels == [15, 15]
        assert 0 < found["second_loss"] < 2
        assert trainer.apply_all_operators(training.types_of) == [["torch.bfloat16"] * 2] * 2
        for model in trainer.get_model():
            assert "forward" not in vars(model)
            assert sorted(model.state_dict()) == ["bias", "weight"]
            assert model(torch.ones(1, 4)).dtype == torch.float32
        assert len(trainer.get_model()) == 2
        assert trainer.apply_all_workers(lambda: os.environ["HOOKED"]) == ["before torch"] * 2
        pids, folder = trainer.apply_all_workers(os.getpid), Path(trainer.before_pass).parent
        assert folder.is_dir()
        trainer.shutdown()
        assert not folder.exists()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert repr(trainer) == "<TorchTrainer of 2 workers, shut down>"
    with pytest.raises(UsageError, match=r"train\(\) after shutdown\(\)"):
        trainer.train()
    with pytest.raises(UsageError, match=r"save\(\) after shutdown\(\)"):
        trainer.save(folder / "state.pt")


def test_a_model_without_a_gradient_is_named() -> None:
    def frozen(config: dict[str, Any]) -> nn.Module:
        return training.make_model(config).requires_grad_(False)

    def nothing(model: nn.Module, config: dict[str, Any]) -> Any:
        return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)

    settings = {**FULL, "num_workers": 1, "model_creator": frozen, "optimizer_creator": nothing}
    with TorchTrainer(**settings) as trainer, pytest.raises(WrongReturn, match="the loss has no gradient"):
        trainer.train()


def test_a_sharded_model_is_trained_saved_and_killed_like_any_other(tmp_path: Path) -> None:
    """FSDP2 by one argument; the state goes on with one worker, which shards nothing. A trainer that was just made goes
    on from a file as the one that was saved did, to the bit: weights, optimizer and scheduler."""
    given = {**FULL, "scheduler_creator": training.make_scheduler}

    def kinds(operator: Any) -> list[str]:
        return sorted({type(parameter).__name__ for parameter in operator.model.parameters()})

    with TorchTrainer(**given, parallel="fsdp") as trainer:
        assert trainer.apply_all_operators(kinds) == [["DTensor"]] * 2
        first = trainer.train()
        os.kill(trainer.apply_all_workers(os.getpid)[1], signal.SIGKILL)
        second = trainer.train()
        assert second["train_loss"] < first["train_loss"]
        found, model = trainer.validate(), trainer.get_model().eval()
        trainer.save(tmp_path / "state.pt")
        trainer.train()
        trainer.load(tmp_path / "state.pt")
        assert trainer.validate()["val_loss"] == found["val_loss"]
    x, y, _ = training.make_set(101).tensors
    with torch.no_grad():
        assert nn.functional.cross_entropy(model(x), y).item() == pytest.approx(found["val_loss"], rel=1e-5)
    with TorchTrainer(**{**given, "num_workers": 1}) as trainer:
        trainer.load(tmp_path / "state.pt")
        assert trainer.validate()["val_loss"] == pytest.approx(found["val_loss"], rel=1e-5)
        assert trainer.train()["epoch"] == 3
        trainer.save(tmp_path / "third.pt")
        trainer.train()
        after = trainer.state_dict()
        (pid,), folder = trainer.apply_all_workers(os.getpid), Path(trainer.before_pass).parent
        trainer.shutdown(force=True)
        assert not folder.exists()
        assert not Path(f"/proc/{pid}").exists()
    with TorchTrainer(**{**given, "num_workers": 1}) as trainer:
        trainer.load(tmp_path / "third.pt")
        trainer.train()
        assert alike(trainer.state_dict(), after)


def test_a_gradient_scaler_and_undivided_data() -> None:
    """Half precision keeps its scaler in the state; without the sampler each worker reads everything."""
    given = {**FULL, "model_creator": training.make_noting_model}
    with TorchTrainer(**given, use_fp16=True, add_dist_sampler=False) as trainer:
        found = trainer.train()
        assert trainer.apply_all_operators(training.types_of) == [["torch.float16"]] * 2
        assert (found["num_samples"], found["batch_count"]) == (500, 15)
        assert trainer.apply_all_operators(lambda operator: operator.use_fp16) == [True, True]
        state = trainer.state_dict()
        assert state["scaler"]["scale"] > 1
        trainer.load_state_dict({**state, "scaler": {**state["scaler"], "scale": 512.0}})
        assert trainer.state_dict()["scaler"]["scale"] == 512.0
        os.kill(trainer.apply_all_workers(os.getpid)[0], signal.SIGKILL)
        assert trainer.train()["num_samples"] == 500
        assert trainer.state_dict()["scaler"]["scale"] == 512.0
        trainer.load_state_dict(state)
        with pytest.raises(WrongReturn, match="the state has no model0"):
            trainer.load_state_dict({})
    trainer.shutdown(force=True)
