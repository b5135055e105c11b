"""Level `bits` in one process: what it needs, and what must be as it was at the checkpoint."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from elastic_agent.worker import Run
from elastic_agent.worker.checkpoints import manifest as manifest_module
from elastic_agent.worker.errors import Misused, WrongState
from elastic_agent.worker.shards import conditions
from elastic_agent.worker.shards.digest import digest
from support.rigs.shard_loops import linear, loss_sum, points, run_in, trained
from support.workers.ranks import play


def test_shards_need_a_number(tmp_path: Path) -> None:
    with pytest.raises(Misused, match=r"run\.shards\(\) without Run\(\.\.\., shards=N\)"):
        run_in(tmp_path, shards=None).shards([1])


def test_a_batch_that_is_used_whole_is_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path, model=linear())
    with pytest.raises(Misused, match=r"write `for x, y in run\.shards\(batch\)`"):
        for _x, _y in run.loader(DataLoader(points(16), batch_size=4)):
            pass


def test_something_else_than_a_batch_is_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path, model=linear())
    with pytest.raises(Misused, match=r"was given a list: give it what a loop over run\.loader"):
        list(run.shards([1, 2]))


def test_a_step_after_a_loop_that_was_left_is_refused(tmp_path: Path) -> None:
    net = linear()

    def body(run: Run, batch: Any) -> None:
        for part in run.shards(batch):
            loss_sum(net, part).backward()
            break

    with pytest.raises(Misused, match=r"before the loop over run\.shards\(batch\) was over"):
        trained(tmp_path, net, body)


@pytest.mark.parametrize("shards", [0, -1, 2**40, 8.0, "8", True])
def test_shards_are_a_whole_number_within_reason(tmp_path: Path, shards: Any) -> None:
    with pytest.raises(Misused, match=re.escape(f"shards={shards!r}): shards is a whole number from 1 to 65536")):
        run_in(tmp_path, shards=shards)


# -- levels and conditions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shards", "level"), [(4, "bits"), (None, "batches")])
def test_the_level_is_in_the_log_and_in_the_checkpoint(
    tmp_path: Path, shards: int | None, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = saved(tmp_path, shards)
    assert run.level == level
    (kept,) = (tmp_path / "checkpoints").glob("step-*/manifest.json")
    assert json.loads(kept.read_text())["run"]["level"] == level
    assert f"checkpoint of step 1, level {level}" in caplog.text
    caplog.clear()
    run_in(tmp_path, shards, model=linear())
    assert f"level {level}" in caplog.text


def saved(path: Path, shards: int | None) -> Run:
    """A run with a checkpoint of its first step."""
    run = run_in(path, shards, model=linear())
    for _ in run.loader(DataLoader(points(16), batch_size=4), global_batch=16):
        run.step()
    run.close()
    return run


NOW = manifest_module.surroundings()
CHANGES = {
    "threads": (NOW["threads"], 97, rf"torch\.set_num_threads\({NOW['threads']}\) before Run.*OMP_NUM_THREADS"),
    "torch": (NOW["torch"], "3.0", "install torch "),
    "cpu": (NOW["cpu"], "ELSE", f"train on CPUs with {NOW['cpu']}"),
    "device": (NOW["device"], "H300", f"train on {NOW['device']}"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_at_bits_a_changed_condition_is_refused(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 4)
    before, now, advice = CHANGES[what]
    monkeypatch.setattr(conditions, "surroundings", lambda: {**NOW, what: now})
    with pytest.raises(
        WrongState, match=f"was made with {what} {before}, and here {what} is {now}: .*{advice}".replace("+", r"\+")
    ):
        run_in(tmp_path, 4, model=linear())


@pytest.mark.parametrize("what", CHANGES)
def test_at_other_levels_a_changed_condition_is_said(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, None)
    before, now, _ = CHANGES[what]
    monkeypatch.setattr(conditions, "surroundings", lambda: {**NOW, what: now})
    run_in(tmp_path, None, model=linear())
    assert f"was made with {what} {before}, and here {what} is {now}: bits may differ" in caplog.text


def test_threads_that_really_change_are_refused(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    saved(tmp_path, 4)
    torch.set_num_threads(before + 1)
    try:
        with pytest.raises(WrongState, match=f"made with threads {before}, and here threads is {before + 1}"):
            run_in(tmp_path, 4, model=linear())
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("before", "now", "made"), [(4, 8, "with shards=4"), (None, 8, "without shards")])
def test_other_shards_than_before_are_refused(tmp_path: Path, before: int | None, now: int, made: str) -> None:
    saved(tmp_path, before)
    with pytest.raises(WrongState, match=rf"was made {made}, and Run\(\.\.\., shards={now}\) computes other bits"):
        run_in(tmp_path, now, model=linear())


def test_leaving_the_level_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, 4)
    run_in(tmp_path, None, model=linear())
    assert "was made with shards=4: without them the level is no longer bits" in caplog.text


def test_ranks_that_would_compute_other_bits_are_refused() -> None:
    class TwoRanks:
        def gather(self, message: Any) -> list[Any]:
            return [message, {**message, "threads": message["threads"] + 1}]

    threads = NOW["threads"]
    with pytest.raises(
        WrongState, match=f"threads is {threads} on rank 0 and {threads + 1} on rank 1: on all ranks, say"
    ):
        conditions.same_everywhere(TwoRanks())  # type: ignore[arg-type]


def test_a_mean_that_a_start_has_not_used_yet_stays_in_its_checkpoints(tmp_path: Path) -> None:
    for turn in range(3):
        run = run_in(tmp_path, 4, model=linear())
        if turn == 0:
            run.mean("loss").update(2.0, 3)
        for _ in run.loader(DataLoader(points(16), batch_size=4), global_batch=16):
            run.step()
        run.close()
    assert run_in(tmp_path, 4, model=linear()).mean("loss").compute() == 2.0


# -- digests -----------------------------------------------------------------------------------------------------------


def test_the_digest_sees_parameters_optimizer_generators_and_place(tmp_path: Path) -> None:
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    run = run_in(tmp_path, model=net, optimizer=optimizer)
    found = [run.digest()]
    assert run.digest() == found[0]
    with torch.no_grad():
        net.weight[0, 0] += 1e-6
    found.append(run.digest())
    optimizer.param_groups[0]["lr"] = 0.2
    found.append(run.digest())
    torch.rand(())
    found.append(run.digest())
    random.random()
    found.append(run.digest())
    run.steps += 1
    found.append(run.digest())
    assert len(set(found)) == 6
    assert all(len(each) == 64 for each in found)


@pytest.mark.slow
def test_the_digest_of_a_set_is_that_of_what_it_holds() -> None:
    """Texts hash otherwise in each process, and a set gives them in that order."""
    program = (
        "import random, numpy, torch\n"
        "from elastic_agent.worker.shards.digest import digest\n"
        "for seed in (random.seed, numpy.random.seed, torch.manual_seed): seed(1)\n"
        "print(digest({'seen': {'one', 'two', 'three', 'four'}, 'kept': frozenset(['a', 'b'])}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "123"
    }
    assert len(found) == 1


def test_the_digest_of_a_sparse_tensor_is_that_of_its_numbers() -> None:
    one, other = (torch.tensor([[0.0, number]]).to_sparse() for number in (1.0, 2.0))
    assert digest({"kept": one}) == digest({"kept": one.clone()})
    assert digest({"kept": one}) != digest({"kept": other})
    assert digest({"kept": one}) != digest({"kept": one.to_dense()})


def test_a_run_that_begins_has_the_tensors_of_rank_0_whatever_their_type(tmp_path: Path) -> None:
    """gloo itself broadcasts neither 16-bit integers nor numbers of 8 bits with a fraction."""
    kinds = [torch.int16, torch.uint16, torch.float8_e5m2, torch.bfloat16, torch.bool, torch.complex64, torch.int64]

    def act(rank: int) -> list[str]:
        net = torch.nn.Module()
        for number, kind in enumerate(kinds):
            net.register_buffer(f"held{number}", torch.full((2, 3), float(1 - rank)).to(kind))
        net.register_buffer("none", torch.empty(0))
        net.register_buffer("alone", torch.tensor(rank, dtype=torch.int16))
        run_in(tmp_path, model=net)
        return [str(buffer.to(torch.complex64).tolist()) for buffer in net.buffers()]

    first, second = play(act, 2, tmp_path)
    assert first == second
