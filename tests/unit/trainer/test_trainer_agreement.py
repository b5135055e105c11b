"""What nodes' programs ask for, compared before it is done: another call, other arguments, another state to load."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_agent.trainer import TrainingOperator, made_with, plain
from elastic_agent.trainer.errors import Diverged
from elastic_agent.trainer.in_worker.call_agreement import CallAgreement, agree_on_trainer
from elastic_agent.trainer.in_worker.calls import Calls
from elastic_agent.trainer.in_worker.record import Record


class TwoNodes:
    """A world of two, of which the other one says the same but for some of it."""

    def __init__(self, changed: dict[int, Any]) -> None:
        self._changed = changed

    def gather(self, said: list[Any]) -> list[list[Any]]:
        return [said, [self._changed.get(at, each) for at, each in enumerate(said)]]

    def broadcast_bytes(self, data: bytes, source: int) -> bytes:
        raise AssertionError("nothing is loaded")


@pytest.fixture(autouse=True)
def _node_0_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("GROUP_WORLD_SIZE", "2"), ("GROUP_RANK", "0"), ("HOSTNAME", "here")):
        monkeypatch.setenv(name, value)


def asked(args: dict[str, Any], changed: dict[int, Any]) -> Any:
    """What a worker is told to do for a call of its program, where the other node's differs in this."""
    call = {"number": 1, "name": "train", "digest": plain.digest("train", args), "args": args, "before": None}
    channel = SimpleNamespace(next=lambda number, waits: {**call, "restarts": 0})
    agreement = CallAgreement(channel, TwoNodes(changed), Record(), {})  # type: ignore[arg-type]
    return agreement.next(lambda: None)


def test_the_same_call_is_done() -> None:
    assert asked({"num_steps": 3}, {3: "there (node 1)"})["name"] == "train"


@pytest.mark.parametrize(
    "changed",
    [{0: "validate", 4: "validate()"}, {1: plain.digest("train", {"num_steps": 4}), 4: "train(num_steps=4)"}],
    ids=["another call", "other arguments"],
)
def test_another_call_or_other_arguments_name_both_nodes(changed: dict[int, Any]) -> None:
    with pytest.raises(Diverged, match=r"call 1 is train\(.*\) on here \(node 0\) and \w+\(.*\) on there \(node 1\)"):
        asked({"num_steps": 3}, {3: "there (node 1)", **changed})


def made(**changed: Any) -> dict[str, Any]:
    """What travels to the workers, as far as it is compared."""
    kept: dict[str, Any] = {"seed": 0, "amp_dtype": None, "parallel": "ddp", "ddp_args": {}, "add_dist_sampler": True}
    kept |= {"scheduler_step_freq": "epoch", "operator_cls": TrainingOperator, "num_workers": 2, "every": None}
    return {**kept, "config": {"lr": 0.1, "layers": [1, 2], 3: "three"}, "model_creator": made, **changed}


@pytest.mark.parametrize(
    ("changed", "here", "there"),
    [
        ({"config": {"lr": 0.2, "layers": [1, 2], 3: "three"}}, r"config\['lr'\]=0.1", r"config\['lr'\]=0.2"),
        ({"config": {"lr": 0.1, "layers": [1, 2]}}, r"config\[3\]='three'", r"no config\[3\]"),
        ({"num_workers": 4}, "num_workers=2", "num_workers=4"),
        ({"seed": 1}, "seed=0", "seed=1"),
        ({"model_creator": functools.partial(asked)}, "model_creator=made", "model_creator=asked"),
        (
            {"operator_cls": type("Other", (TrainingOperator,), {})},
            "training_operator_cls=TrainingOperator",
            "training_operator_cls=Other",
        ),
    ],
    ids=["config", "a key of it", "workers", "seed", "creator", "operator"],
)
def test_trainers_that_were_made_with_other_arguments_name_both_nodes(
    changed: dict[str, Any], here: str, there: str
) -> None:
    class World:
        """The other node's trainer is made with other arguments."""

        def gather(self, said: Any) -> list[Any]:
            other = made_with.all_of(made(**changed))
            return [said, plain.digest(other) if isinstance(said, str) else [other, "there (node 1)"]]

    world: Any = World
    words = rf"the trainer is made with {here} on here \(node 0\) and with {there} on there \(node 1\): make it"
    with pytest.raises(Diverged, match=words):
        agree_on_trainer(made_with.all_of(made()), world)


def test_trainers_that_were_made_with_equal_arguments_agree() -> None:
    """Whatever the order of keys; a long value is compared whole, and shown in part."""

    class World:
        def gather(self, said: Any) -> list[Any]:
            return [said, plain.digest(made_with.all_of(made(config={3: "three", "layers": [1, 2], "lr": 0.1})))]

    world: Any = World
    agree_on_trainer(made_with.all_of(made()), world)
    long = [made_with.kept_of(made(config={"names": ["x" * 200, last]})) for last in "abb"]
    assert long[0] != long[1] == long[2]
    assert all(len(text) < 150 for each in long for text in each.values())


def test_a_state_of_a_trainer_that_was_made_with_another_config_is_refused() -> None:
    """Where a call of it was begun, whose results would be those of another config. What a later start may change, such
    as the number of workers and what creators are called, is not looked at."""
    before = Record(made_with.kept_of(made()))
    again = Record(made_with.kept_of(made(num_workers=4, model_creator=asked)), "/states")
    other = Record(made_with.kept_of(made(config={"lr": 0.2, "layers": [1, 2], 3: "three"})), "/states")
    other.load_state_dict(before.state_dict())
    before.finish(1, "train", "digest", {"loss": 1.0})
    again.load_state_dict(before.state_dict())
    assert again.results() == [[1, "train", "digest", {"loss": 1.0}]]
    words = r"config\['lr'\]=0.2, and the training in /states, of which 1 call is done, with config\['lr'\]=0.1: make"
    with pytest.raises(Diverged, match=words):
        other.load_state_dict(before.state_dict())
    former = {name: value for name, value in before.state_dict().items() if name != "made"}
    other.load_state_dict(former)
    assert other.done == 1


def test_functions_are_told_apart_by_their_code() -> None:
    """And are the same whatever they find around them, also where they were made twice."""

    def made(around: int) -> Any:
        return lambda operator: [operator, around, {"one", "two"}, lambda: around]

    def other(around: int) -> Any:
        return lambda operator: [operator, around, {"one", "three"}, lambda: around]

    def plus(operator: Any) -> Any:
        return operator + 1

    def minus(operator: Any) -> Any:
        return operator - 1

    assert plain.code_digest(made(1)) == plain.code_digest(made(2)) == plain.code_digest(functools.partial(made(3), 4))
    found = [plain.code_digest(each) for each in (made(1), other(1), plus, minus)]
    assert len(set(found)) == 4
    assert all(found)
    assert plain.code_digest(os.getpid) == ""


def test_states_of_different_places_are_not_loaded(tmp_path: Path) -> None:
    """Where each node has a file, and they are of different passes, no node's counts."""
    state = {"model0": {}, "operator": {"own": {}, "epoch": 3, "global_step": 30}}
    (tmp_path / "parcel-1").write_bytes(plain.to_bytes(state))
    there = "a state after 2 passes and 20 batches of model0, operator"
    run = SimpleNamespace(world=TwoNodes({0: there, 2: "node 1"}))
    nothing: Any = None
    calls = Calls(str(tmp_path), nothing, nothing, run, nothing, nothing, nothing)  # type: ignore[arg-type]
    call = {"name": "load_state_dict", "number": 1, "args": {}, "parcel": "parcel-1", "refused": ""}
    with pytest.raises(Diverged, match=f"a state after 3 passes and 30 batches .* on node 0 and {there} on node 1"):
        calls.perform(call)


@pytest.mark.parametrize("lasts", [True, False])
def test_states_keep_what_calls_gave_only_for_programs_that_may_ask_for_it(lasts: bool) -> None:
    """The last one is asked for by the only program, too, where its workers end before they have answered."""
    record = Record(lasts=lasts)
    for number in range(1, 4):
        record.finish(number, "apply_all_workers", "d", ["large" * 1000])
    record.finish_by_program(4, "train", "d")
    record.settle({"train_loss": 1.0})
    again = Record(lasts=lasts)
    again.load_state_dict(record.state_dict())
    assert again.done == 4
    assert [call[0] for call in again.results()] == ([1, 2, 3, 4] if lasts else [4])
    assert again.results()[-1] == [4, "train", "d", {"train_loss": 1.0}]
