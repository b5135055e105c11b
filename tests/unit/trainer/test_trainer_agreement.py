"""What nodes' programs ask for, compared before it is done: another call, other arguments, another state to load."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_agent.trainer import plain
from elastic_agent.trainer.errors import Diverged
from elastic_agent.trainer.in_worker.call_agreement import CallAgreement
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
