"""What a training loop may do and ask for: breaks, evaluations, saves, stops, random numbers, ranks without samples."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from elastic_agent.worker import Every, Retention, Run
from elastic_agent.worker.checkpoints.files import sums_of
from elastic_agent.worker.checkpoints.folder import Folder
from elastic_agent.worker.checkpoints.manifest import Manifest
from elastic_agent.worker.data.cursors import Span
from elastic_agent.worker.errors import WrongState
from elastic_agent.worker.ledger import Ledger
from elastic_agent.worker.verify import verify
from support.workers.ranks import Ranks, play

NEVER = Every(seconds=None)

pytestmark = pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from")


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def run_in(path: Path, every: Every = NEVER, **more: Any) -> Run:
    return Run(path / "checkpoints", every=every, **more)


def kept_in(path: Path) -> list[Manifest]:
    """Manifests of the checkpoints, the newest first."""
    return [Manifest.read(kept.path) for kept in Folder(path / "checkpoints", lambda text: None).kept()]


def test_a_break_and_a_new_loop_go_on_also_over_a_restart(tmp_path: Path) -> None:
    """Each pass is left at its second batch, without a step for it: that batch comes again. The script that starts
    again enters passes that it had left, too: they give nothing."""

    def life(passes: int) -> Iterator[list[int]]:
        run = run_in(tmp_path)
        loader = run.loader(DataLoader(numbers(10), batch_size=2, shuffle=True))
        for _ in range(passes):
            for count, (batch,) in enumerate(loader):
                if count == 1:
                    break
                yield batch.tolist()
                run.step()
        run.close()

    batches = [*life(2), *life(5)]
    assert len(batches) == 5
    assert sorted(chain(*batches)) == list(range(10))


def test_an_interrupted_validation_goes_on_in_its_middle(tmp_path: Path) -> None:
    """SIGKILL in the validation of the first epoch, before its fifth batch; saved between any two batches."""

    def life(name: str, kill: int) -> None:
        run = run_in(tmp_path, every=Every(seconds=0.0))
        train = run.loader(DataLoader(numbers(6), batch_size=2), name="train")
        held_out = run.loader(DataLoader(numbers(16), batch_size=2), name="validation", train=False)
        with open(tmp_path / name, "a", encoding="ascii", buffering=1) as seen:
            for epoch in run.epochs(1):
                for (batch,) in train:
                    seen.write(f"{epoch} train {batch.tolist()}\n")
                    run.step()
                with torch.no_grad():
                    for count, (batch,) in enumerate(held_out):
                        run._persistence.wait()
                        if count == kill:
                            os.kill(os.getpid(), signal.SIGKILL)
                        seen.write(f"{epoch} validation {batch.tolist()}\n")

    assert Ranks(lambda _: life("first", 4), 1, tmp_path).statuses() == [-signal.SIGKILL]
    play(lambda _: life("second", -1), 1, tmp_path)
    first, second = ((tmp_path / name).read_text().splitlines() for name in ("first", "second"))
    assert len(first) == 3 + 4
    assert not any("train" in line for line in second)
    validated = [line for line in [*first, *second] if "validation" in line]
    assert [f"0 validation [{n}, {n + 1}]" for n in range(0, 16, 2)] == list(dict.fromkeys(validated))
    assert len(second) <= 5


def test_a_save_that_any_rank_asks_for_is_made_and_kept_by_its_label(tmp_path: Path) -> None:
    def act(rank: int) -> None:
        run = run_in(tmp_path, keep=Retention(newest=1), net=torch.nn.Linear(1, 1))
        loader = run.loader(DataLoader(numbers(400), batch_size=2))
        for _ in run.epochs(2):
            for _ in loader:
                if rank == 1 and run.steps == 3:
                    run.save("before the change")
                run.step()

    play(act, 2, tmp_path)
    newest, labelled = kept_in(tmp_path)
    assert newest.step == 200
    assert (newest.label, labelled.label) == ("", "before the change")
    assert 3 < labelled.step < 100


def test_a_stop_that_one_rank_asks_for_ends_the_loops_of_all_with_a_checkpoint(tmp_path: Path) -> None:
    def act(rank: int) -> int:
        run = run_in(tmp_path, net=torch.nn.Linear(1, 1))
        loader = run.loader(DataLoader(numbers(100_000), batch_size=1))
        for _ in run.epochs(1):
            for _ in loader:
                run.step()
                if rank == 1 and run.steps == 5:
                    run.stop()
        return run.steps

    steps = play(act, 2, tmp_path)
    assert steps[0] == steps[1] < 50_000
    assert kept_in(tmp_path)[0].step == steps[0]


def test_a_save_is_made_when_the_clock_says_so(tmp_path: Path) -> None:
    run = run_in(tmp_path, every=Every(seconds=0.05))
    loader = run.loader(DataLoader(numbers(100_000), batch_size=1))
    for _ in loader:
        run.step()
        if kept_in(tmp_path):
            break
    assert 0 < kept_in(tmp_path)[0].step <= run.steps < 100_000


def test_the_steps_own_generator_follows_from_step_name_and_rank(tmp_path: Path) -> None:
    def draws(run: Run, steps: int) -> list[list[int]]:
        drawn = []
        for _ in range(steps):
            drawn.append([int(torch.randint(1 << 40, (), generator=run.rng(name))) for name in ("data", "noise")])
            run.step()
            run._commits += 1
        run.close()
        return drawn

    def act(_: int) -> Any:
        return [
            draws(run_in(tmp_path / "whole"), 4),
            draws(run_in(tmp_path / "cut"), 2) + draws(run_in(tmp_path / "cut"), 2),
        ]

    first, second = play(act, 2, tmp_path)
    assert first[0] == first[1]
    every = list(chain(*first[0], *second[0]))
    assert len(set(every)) == len(every) == 16


def test_a_rank_without_a_sample_takes_part_with_weight_0(tmp_path: Path) -> None:
    """Two ranks, batches of three and a last one of one sample: the mean of their gradients is that of one rank."""

    def gradients(rank: int) -> Any:
        run = run_in(tmp_path / str(torch.distributed.is_initialized()))
        loader = run.loader(DataLoader(numbers(7), batch_size=3), global_batch=3)
        seen = []
        for (batch,) in loader:
            weight = torch.tensor(1.0, requires_grad=True)
            loss = (weight * batch.float()).square().mean() * loader.weight
            loss.backward()
            assert weight.grad is not None
            if run.world_size > 1:
                torch.distributed.all_reduce(weight.grad)
            seen.append([len(batch), loader.weight, float(weight.grad) / run.world_size])
            run.step()
        return seen

    two, alone = play(gradients, 2, tmp_path), play(gradients, 1, tmp_path)[0]
    assert [gradient for _, _, gradient in alone] == pytest.approx([gradient for _, _, gradient in two[0]])
    assert sorted(part[-1][:2] for part in two) == [[1, 0.0], [1, 2.0]]
    assert [sum(length for length, _, _ in parts) for parts in list(zip(*two, strict=True))[:2]] == [3, 3]


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        pytest.param([(0, 4, 0), (8, 12, 1)], "epoch 0: positions 4 to 7 were never trained on", id="missed"),
        pytest.param([(0, 4, 0), (2, 8, 1)], "epoch 0: positions 2 to 3 were trained on twice", id="repeated"),
        pytest.param([(0, 8, 1), (8, 12, 0)], "epoch 0: it ended at position 8, and 12 were trained on", id="beyond"),
    ],
)
def test_the_ledger_says_which_positions_were_missed_or_repeated(spans: list[tuple[int, int, int]], said: str) -> None:
    ledger = Ledger()
    for first, last, ends in spans:
        ledger.add([Span("train", 0, first, last, bool(ends))])
    assert ledger.faults() == [f"loader 'train', {said}"]


def test_the_ledger_says_which_epochs_a_later_one_began_without() -> None:
    """No batch of them is missing between two others, so that nothing else shows it."""
    ledger = Ledger()
    ledger.add([Span("train", 0, 0, 8, True), Span("train", 1, 0, 4, False)])
    assert ledger.left() == []
    ledger.add([Span("train", 3, 0, 4, False)])
    assert ledger.left() == [
        "loader 'train', epoch 1: left at position 4, before its end",
        "loader 'train', epoch 2: nothing was trained on",
    ]
    assert ledger.faults() == []


def test_verify_says_which_epochs_were_left_before_their_end(tmp_path: Path) -> None:
    """A loop with limits of its own may do so: all else stays proved."""
    run = run_in(tmp_path)
    batches = iter(run.loader(DataLoader(numbers(8), batch_size=2)))
    next(batches)
    run.step()
    del batches
    run.account.cursors["loader0"].epoch, run.account.cursors["loader0"].position = 1, 0
    for _ in run._loaders["loader0"]:
        run.step()
    run.close()
    report = verify(tmp_path / "checkpoints")
    assert report.proved
    (said,) = [line for line in report.lines if "not finished" in line]
    assert said.endswith("not finished: loader 'loader0', epoch 0: left at position 2, before its end")


def test_a_ledger_that_somebody_changed_is_found(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    loader = run.loader(DataLoader(numbers(8), batch_size=2))
    for _ in run.epochs(1):
        for _ in loader:
            run.step()
    assert verify(tmp_path / "checkpoints").proved
    (newest, *_) = Folder(tmp_path / "checkpoints", lambda text: None).kept()
    ledger = newest.path / "ledger.json"
    ledger.write_bytes(ledger.read_bytes().replace(b"8", b"6"))
    assert "CRC-32" in verify(tmp_path / "checkpoints").lines[0]
    # Also where the manifest was made to fit.
    manifest = Manifest.read(newest.path)
    fitting = replace(manifest, files={**manifest.files, ledger.name: sums_of(ledger)})
    (newest.path / "manifest.json").write_bytes(fitting.to_bytes())
    report = verify(tmp_path / "checkpoints")
    assert not report.proved
    assert any("the ledger's chain ends in" in line for line in report.lines)


@pytest.mark.parametrize(
    ("again", "said"),
    [
        ({"seed": 5}, r"has seed 0, and Run\(..., seed=5\) another"),
        ({"other": torch.nn.Linear(1, 1)}, r"holds net, and Run\(...\) was given net, other"),
    ],
    ids=["seed", "states"],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, again: dict[str, Any], said: str) -> None:
    run = run_in(tmp_path, net=torch.nn.Linear(1, 1))
    run._commits += 1
    run.close()
    with pytest.raises(WrongState, match=said):
        run_in(tmp_path, net=torch.nn.Linear(1, 1), **again)


@pytest.mark.parametrize("agent", [False, True])
def test_what_needs_an_agent_is_said_once_where_there_is_none(
    tmp_path: Path, agent: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    if agent:
        monkeypatch.setenv("ELASTIC_AGENT_ROUND", "1")
    run = run_in(tmp_path)
    loader = run.loader(DataLoader(numbers(8), batch_size=2))
    for _ in loader:
        run.step()
    said = [text for text in caplog.messages if text.startswith("no elastic-agent has started this process")]
    assert len(said) == (0 if agent else 1)


def test_batches_that_follow_the_number_of_ranks_are_level_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of a batch sampler of the user's: how many make a step follows the ranks."""
    caplog.set_level(logging.INFO)
    run = run_in(tmp_path)
    pairs = [[first, first + 1] for first in range(0, 8, 2)]
    loader = run.loader(DataLoader(numbers(8), batch_sampler=pairs))
    assert run.level == "samples"
    for _ in run.epochs(1):
        for _ in loader:
            run.step()
    assert kept_in(tmp_path)[0].run["level"] == "samples"
    assert "checkpoint of step 4, level samples" in caplog.text


class Library:
    """Draws from a state of its own, which no global seed reaches."""

    key = 0


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, Library.key


def test_a_library_with_a_state_of_its_own_is_keyed_before_each_sample(tmp_path: Path) -> None:
    """`on_sample` gets the same numbers after a restart, and in loader processes."""

    def life(name: str, processes: int, stop_at: int) -> list[Any]:
        run = run_in(tmp_path / name)
        data = DataLoader(Augmented(), batch_size=2, shuffle=True, num_workers=processes, collate_fn=list)
        loader = run.loader(data, on_sample=lambda key: setattr(Library, "key", key))
        drawn = []
        for _ in run.epochs(1):
            for batch in loader:
                drawn += batch
                run.step()
                if run.steps == stop_at:
                    run.stop()
        return drawn

    whole = life("whole", 0, -1)
    assert life("cut", 2, 3) + life("cut", 1, -1) == whole
    assert len({key for _, key in whole}) == len({index for index, _ in whole}) == 12


def test_an_evaluation_that_turns_gradients_off_in_its_body_is_one(tmp_path: Path) -> None:
    """No step follows its batches, so the end of its loop commits them, and the epoch ends with a checkpoint."""
    seen: list[list[int]] = []

    def life(epochs: int) -> Run:
        run = run_in(tmp_path, model=torch.nn.Linear(1, 1))
        train = run.loader(DataLoader(numbers(6), batch_size=2), name="train")
        held_out = run.loader(DataLoader(numbers(8), batch_size=2, shuffle=True), name="validation")
        for _ in run.epochs(epochs):
            for _batch in train:
                run.step()
            seen.append([])
            for (batch,) in held_out:
                with torch.no_grad():
                    seen[-1] += batch.tolist()
        assert held_out.epoch == run.epoch
        return run

    assert life(1).ledger.faults() == life(2).ledger.faults() == []
    assert len(seen) == 2
    assert seen[0] != seen[1]
