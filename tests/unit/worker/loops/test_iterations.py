"""Between which iterations a checkpoint is taken, which loops evaluate, and what comes before the loop over epochs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run
from elastic_agent.worker.data.cursors import Span
from support.resume.accounts import account, give


def test_no_state_is_taken_between_two_steps_of_an_iteration() -> None:
    """Two optimizers, the second one's batches from an iterator that is kept: `for b in loader: ...; next(other)`."""
    made = account("loader", "other")
    other = made.begin("other")
    loop = made.begin("loader")
    for number in range(3):
        may_save = made.ask(loop)
        made.hand_out(Span("loader", 0, number, number + 1, False))
        made.step()
        assert may_save == (number > 0)
        assert not made.ask(other)
        made.hand_out(Span("other", 0, number, number + 1, False))
        made.step()


def test_an_iterator_that_nobody_asks_any_more_holds_up_no_checkpoint() -> None:
    made = account("loader", "other")
    kept, other = made.begin("loader"), made.begin("other")
    give(made, other, 0, 1)
    give(made, kept, 0, 1)
    made.step()
    may_save = []
    for number in range(1, 5):
        may_save.append(made.ask(other))
        made.hand_out(Span("other", 0, number, number + 1, False))
        made.step()
    assert may_save[-2:] == [True, True]


def test_loaders_beside_each_other_are_committed_together_around_an_iterator_made_in_their_body() -> None:
    """`for one, two in zip(first, second): ...`, whose body makes a new iterator of a third where one has ended."""
    made = account("first", "second", "third")
    first, second = made.begin("first"), made.begin("second")
    give(made, first, 0, 4)
    give(made, second, 0, 4)
    third = made.begin("third")
    give(made, third, 0, 4)
    made.step()
    assert made.ask(first)
    assert [made.places()[name][1] for name in ("first", "second", "third")] == [4, 4, 4]


def test_a_batch_around_a_loop_stays_in_use_as_that_loop_asks_around_an_iterator_made_in_its_body() -> None:
    made = account("outer", "inner", "third")
    give(made, made.begin("outer"), 0, 4)
    inner = made.begin("inner")
    give(made, inner, 0, 4)
    give(made, made.begin("third"), 0, 4)
    made.step()
    made.ask(inner)
    assert [made.places()[name][1] for name in ("outer", "inner", "third")] == [0, 4, 4]


def test_a_step_behind_a_loop_that_is_over_is_no_place_for_a_checkpoint() -> None:
    """A start would find the loop over, and step once more. Where nothing was handed out, it is one."""
    made = account("loader")
    assert not made.step()
    going = made.begin("loader")
    give(made, going, 0, 4, ends=True)
    made.ask(going)
    made.end(going, exhausted=True)
    assert made.step()
    assert made.take() == [Span("loader", 0, 0, 4, True)]
    assert not made.step()


def net_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = torch.nn.Linear(1, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def test_batches_that_an_epoch_has_accumulated_wait_for_their_step(tmp_path: Path) -> None:
    """A step each 8 of 5 batches an epoch: no checkpoint says that an epoch without a step was trained on."""
    net, optimizer = net_and_optimizer()
    run = Run(tmp_path / "c", every=Every(seconds=0.0), model=net, optimizer=optimizer)
    loader = run.loader(DataLoader(TensorDataset(torch.arange(20.0)), batch_size=4))
    count = 0
    for epoch in run.epochs(3):
        for (batch,) in loader:
            net(batch.unsqueeze(1)).mean().backward()
            count += 1
            if count % 8 == 0:
                optimizer.step()
                optimizer.zero_grad()
                run.step()
        cursor = run.account.cursors["loader0"]
        assert (cursor.epoch, cursor.position) == ((1, 12) if epoch else (0, 0))


def test_what_is_evaluated_before_the_loop_is_evaluated_again_and_moves_nothing(tmp_path: Path) -> None:
    """A sanity check before training, gradients off around the loop or in its body."""

    def life(path: Path, around: bool, stop_at: int) -> tuple[list[list[int]], str]:
        net, optimizer = net_and_optimizer()
        run = Run(path, every=Every(seconds=None), model=net, optimizer=optimizer)
        train = run.loader(DataLoader(TensorDataset(torch.arange(8)), batch_size=2, shuffle=True))
        check = run.loader(DataLoader(TensorDataset(torch.arange(6)), batch_size=2, shuffle=True))
        seen: list[list[int]] = []

        def evaluate() -> None:
            with torch.set_grad_enabled(not around):
                seen.append([])
                for (batch,) in check:
                    with torch.no_grad():
                        seen[-1] += batch.tolist()

        evaluate()
        for _ in run.epochs(3):
            for _batch in train:
                run.step()
                if run.steps == stop_at:
                    run.stop()
            if not run.stopping:
                evaluate()
        return seen, run.digest()

    for around in (False, True):
        whole, digest = life(tmp_path / f"whole{around}", around, 0)
        parts = [life(tmp_path / f"parts{around}", around, stop_at) for stop_at in (2, 6, 0)]
        assert {str(seen[0]) for seen, _ in parts} == {str(whole[0])}
        assert [each for seen, _ in parts for each in seen[1:]] == whole[1:]
        assert parts[-1][1] == digest


def test_a_batch_that_is_looked_at_before_the_loop_is_looked_at_in_each_start(tmp_path: Path) -> None:
    """With gradients on, as lazy layers need it: the loop goes on where it was, and the look sees what it saw."""

    def life(most: int) -> tuple[list[int], list[int]]:
        net, optimizer = net_and_optimizer()
        run = Run(tmp_path / "c", net=net, optimizer=optimizer, every=Every(steps=1))
        loader = run.loader(DataLoader(TensorDataset(torch.arange(20)), batch_size=4, shuffle=True))
        look, seen = next(iter(loader))[0].tolist(), list[int]()
        for _ in run.epochs(2):
            for (batch,) in loader:
                if len(seen) == most:
                    run.close()
                    return look, seen
                seen += batch.tolist()
                run.step()
        return look, seen

    (first, began), (again, rest) = life(12), life(100)
    assert again == first == began[:4]
    assert sorted(began + rest) == sorted(2 * list(range(20)))


def test_what_a_script_draws_before_its_loop_it_draws_again_in_each_start(tmp_path: Path) -> None:
    """A split of the data made behind `Run`: other samples to evaluate on would mix the two."""

    def life(most: int) -> tuple[list[int], list[float]]:
        run = Run(tmp_path / "c", every=Every(steps=1))
        split = torch.randperm(20).tolist()
        loader = run.loader(DataLoader(TensorDataset(torch.arange(20)), batch_size=4))
        drawn: list[float] = []
        for _ in run.epochs(2):
            for _ in loader:
                if len(drawn) == most:
                    run.close()
                    return split, drawn
                drawn.append(torch.rand(()).item())
                run.step()
        return split, drawn

    (split, began), (again, rest) = life(3), life(100)
    assert split == again
    assert len(set(began + rest)) == 10


def test_a_loop_of_steps_alone_draws_on_after_a_restart(tmp_path: Path) -> None:
    def life(most: int, where: Path) -> list[float]:
        run, drawn = Run(where, every=Every(steps=1)), list[float]()
        while run.steps < most:
            drawn.append(torch.rand(()).item())
            run.step()
        run.close()
        return drawn

    assert life(3, tmp_path / "a") + life(6, tmp_path / "a") == life(6, tmp_path / "b")


def test_what_a_script_changes_at_the_top_of_an_epoch_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once as it does so first, and in each start that does so within the epoch. A value that is set to what it was is
    no change."""

    def life(most: int, *, twice: bool) -> list[str]:
        caplog.clear()
        caplog.set_level(logging.INFO)
        net, optimizer = net_and_optimizer()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        run = Run(tmp_path / str(twice), net=net, optimizer=optimizer, schedule=schedule, every=Every(steps=1))
        loader, steps = run.loader(DataLoader(TensorDataset(torch.arange(20)), batch_size=4)), 0
        for epoch in run.epochs(4):
            if twice and epoch:
                schedule.step()
            optimizer.param_groups[0]["lr"] = 0.1 / (epoch + 1)
            for _ in loader:
                if steps == most:
                    run.close()
                    return [text for text in caplog.messages if text.startswith("the script")]
                optimizer.step()
                run.step()
                steps += 1
        return [text for text in caplog.messages if text.startswith("the script")]

    (said,) = life(12, twice=True)
    assert said.startswith("the script changes optimizer, schedule at the top of an epoch, before its loop, and does")
    (said,) = [text for text in life(1, twice=True) if "once more" in text]
    assert said.startswith("the script has changed schedule once more before the loop that this start goes on within")
    assert len(life(12, twice=False)) == 1
    assert life(1, twice=False) == []


def test_to_ask_for_a_mean_is_no_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Asked for within the epoch, before the loop that a start goes on within: the start said that this training was
    not the one without a restart."""
    caplog.set_level("INFO")

    def life(stop: int) -> None:
        run = Run(tmp_path / "c", every=Every(seconds=None))
        loader = run.loader(DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2), name="train")
        held_out = run.loader(DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2), name="held out")
        for _ in run.epochs(2):
            for _ in loader:
                run.step()
            loss = run.mean("loss")
            with torch.no_grad():
                for number, (batch,) in enumerate(held_out):
                    loss.update(batch.mean(), len(batch))
                    if run.steps == stop and number == 1:
                        run.stop()

    life(8)
    life(-1)
    assert "resumed at step 8, epoch 1, held out at 4, with 1 ranks (1 before), level batches" in caplog.messages
    assert not [text for text in caplog.messages if text.startswith("the script")]


def test_what_follows_a_training_loop_that_was_over_is_no_second_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint is of the end of the training loop; the mean of it is read and reset by the start, for the first
    time, and the start said that this was done once more."""
    caplog.set_level("INFO")
    whole: list[float] = []

    def life(kill: bool) -> None:
        run = Run(tmp_path / "c", every=Every(steps=1, seconds=None))
        loader = run.loader(DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2), name="train")
        held_out = run.loader(DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2), name="held out")
        for epoch in run.epochs(2):
            loss = run.mean("loss")
            for (batch,) in loader:
                loss.update(batch.mean(), len(batch))
                run.step()
            if kill and epoch == 1:
                run._persistence.wait()
                return
            whole.append(loss.compute())
            loss.reset()
            with torch.no_grad():
                list(held_out)

    life(kill=True)
    life(kill=False)
    assert "resumed at step 8, epoch 1, with 1 ranks (1 before), level batches" in caplog.messages
    assert whole == [3.5, 3.5]
    assert not [text for text in caplog.messages if "once more" in text]


def test_a_model_of_lazy_layers_gets_its_shapes_in_the_loop(tmp_path: Path) -> None:
    net = torch.nn.LazyLinear(1)
    run = Run(tmp_path / "c", net=net, every=Every(seconds=None))
    loader = run.loader(DataLoader(TensorDataset(torch.arange(8.0)[:, None]), batch_size=4))
    for _ in run.epochs(1):
        for (batch,) in loader:
            net(batch)
            run.step()
    assert net.weight.shape == (1, 1)


def looked_and_trained(path: Path, until: int) -> list[str]:
    """As of the DDP tutorial's trainer, which looks at a batch for its size before it loops over all."""
    net, optimizer = net_and_optimizer()
    run = Run(path, every=Every(steps=1, seconds=None), model=net, optimizer=optimizer)
    loader = run.loader(DataLoader(TensorDataset(torch.arange(12.0)), batch_size=2))
    held_out = run.loader(DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2), train=False)
    seen = []
    for epoch in run.epochs(2):
        (first,) = next(iter(loader))
        assert len(first) == 2
        for (batch,) in loader:
            seen.append(f"{epoch} {batch.tolist()}")
            run.step()
            run._persistence.wait()
            if len(seen) == until:
                return seen
        for (batch,) in held_out:
            seen.append(f"{epoch} held out {batch.tolist()}")
            if len(seen) == until:
                run._persistence.wait()
                return seen
    return seen


def test_a_look_at_a_batch_before_the_loop_is_given_again_where_a_start_goes_on(tmp_path: Path) -> None:
    whole = looked_and_trained(tmp_path / "whole", 0)
    assert len(whole) == 2 * (6 + 3)
    for kill in (1, 3, 7, 8, 12, 17):
        directory = tmp_path / str(kill)
        seen = looked_and_trained(directory, kill) + looked_and_trained(directory, 0)
        assert list(dict.fromkeys(seen)) == whole
        assert sum("held out" not in line for line in seen) <= 2 * 6 + 1
