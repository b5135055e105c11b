"""What is committed when: steps, evaluations, breaks, nested loops, and the loops of a script that starts again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run
from elastic_agent.worker.data.cursors import Account, Cursor, Pass, Span
from elastic_agent.worker.frameworks.framework_loops import DrivenAccount
from elastic_agent.worker.frameworks.stateful import StatefulLoader, exact
from support.resume.accounts import account, give

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")  # in a life that trains no more


def stepped(made: Account) -> list[Span]:
    """What a step commits."""
    made.step()
    return made.take()


def nested() -> tuple[Account, Pass, Pass]:
    """A loop and one inside of it, whose first batch has had its step; and their passes."""
    made = account("outer", "inner")
    outer = made.begin("outer")
    give(made, outer, 0, 1)
    inner = made.begin("inner")
    give(made, inner, 0, 2)
    made.step()
    return made, outer, inner


def place(made: Account, loader: str) -> tuple[int, int]:
    return made.cursors[loader].epoch, made.cursors[loader].position


def test_a_batch_is_committed_by_the_step_and_not_by_being_handed_out() -> None:
    made = account("a")
    going = made.begin("a")
    give(made, going, 0, 4)
    assert place(made, "a") == (0, 0)
    assert [span.last for span in stepped(made)] == [4]
    assert place(made, "a") == (0, 4)


def test_batches_of_one_accumulated_step_are_committed_together() -> None:
    made = account("a")
    going = made.begin("a")
    give(made, going, 0, 4)
    give(made, going, 4, 8)
    assert place(made, "a") == (0, 0)
    assert [(span.first, span.last) for span in stepped(made)] == [(0, 4), (4, 8)]


def test_a_batch_that_a_break_left_unused_comes_again() -> None:
    made = account("a")
    going = made.begin("a")
    give(made, going, 0, 4)
    made.step()
    give(made, going, 4, 8)
    made.end(going)
    made.begin("a")
    assert made.cursors["a"].ahead() == (0, 4)


def test_an_evaluation_commits_by_asking_for_the_next_batch() -> None:
    made = account("validation")
    made.cursors["validation"].evaluates = True
    going = made.begin("validation")
    give(made, going, 0, 4)
    assert made.ask(going)
    assert place(made, "validation") == (0, 4)


def test_no_state_is_taken_in_an_evaluation_inside_of_a_training_loop() -> None:
    """The script comes back to the training loop, not into the evaluation."""
    made = account("train", "validation")
    made.cursors["validation"].evaluates = True
    outer = made.begin("train")
    give(made, outer, 0, 4)
    made.step()
    inner = made.begin("validation")
    give(made, inner, 0, 4)
    assert not made.ask(inner)
    made.end(inner)
    assert made.ask(outer)


def test_an_outer_batch_stays_in_use_over_the_steps_of_the_inner_loop() -> None:
    made, _, inner = nested()
    assert place(made, "outer") == (0, 0)
    assert place(made, "inner") == (0, 2)
    give(made, inner, 2, 4, ends=True)
    assert {span.loader for span in stepped(made)} == {"outer", "inner"}
    assert place(made, "outer") == (0, 1)
    assert place(made, "inner") == (1, 0)


def test_two_loaders_side_by_side_are_committed_by_the_same_step() -> None:
    made = account("a", "b")
    first, second = made.begin("a"), made.begin("b")
    give(made, first, 0, 4)
    give(made, second, 0, 2)
    assert {span.loader for span in stepped(made)} == {"a", "b"}


def test_a_pass_that_was_over_gives_nothing_when_the_script_starts_again() -> None:
    """A kill in a validation after the training: the training of this epoch is not done again."""
    made = account("train", "validation")
    made.cursors["validation"].evaluates = True
    training = made.begin("train")
    give(made, training, 0, 4, ends=True)
    made.step()
    made.ask(training)
    made.end(training)
    validating = made.begin("validation")
    give(made, validating, 0, 2)
    made.ask(validating)
    places = made.places()

    again = account("train", "validation")
    for name, kept in places.items():
        again.restore(name, kept)
    assert again.begin("train").skipped
    going = again.begin("validation")
    assert not going.skipped
    assert again.cursors["validation"].ahead() == (0, 2)


def test_a_checkpoint_after_the_last_batch_of_a_pass_counts_it_as_over() -> None:
    made = account("train")
    going = made.begin("train")
    give(made, going, 0, 4, ends=True)
    made.step()
    assert made.places() == {"train": [1, 0, 1]}


def test_the_next_epoch_of_the_run_begins_all_passes_anew() -> None:
    made = account("train")
    made.restore("train", [1, 0, 1])
    made.next_epoch()
    assert not made.begin("train").skipped


def test_a_pass_that_a_framework_leaves_at_its_limit_is_over_for_a_start_too() -> None:
    """A checkpoint taken behind it is no place in its middle: the next pass is one of a new epoch."""
    made = DrivenAccount()
    made.cursors = {"train": Cursor()}
    going = made.begin("train")
    for first in (0, 8):
        made.hand_out(Span("train", 0, first, first + 8, False))
    made.done("train")
    made.leave("train")
    made.end(going)
    assert made.places()["train"][:2] == [1, 0]
    made.begin("train")
    assert made.places()["train"][:2] == [1, 0]


def test_a_batch_that_a_loop_leaves_without_a_step_belongs_to_the_next_loops_first() -> None:
    """As gradients are accumulated: a start within the second loop gave the first loader's next epoch that batch only,
    and none of the others."""
    made = account("first", "second")
    first = made.begin("first")
    give(made, first, 0, 4, ends=True)
    made.ask(first)
    made.end(first, exhausted=True)
    second = made.begin("second")
    give(made, second, 0, 2)
    assert [span.loader for span in stepped(made)] == ["first", "second"]
    assert made.ask(second)
    assert made.places() == {"first": [1, 0, 1], "second": [0, 2, 0]}


def test_a_frameworks_loader_that_is_not_made_in_a_start_keeps_its_place() -> None:
    """A validation's, in a start that is killed before the next validation: the start behind it began it anew."""
    made = DrivenAccount()
    made.kept = {"train": [3, 8, 0], "val": [2, 0, 0]}
    made.cursors = {"train": Cursor(4, 0)}
    assert made.places() == {"train": [4, 0, 0], "val": [2, 0, 0]}


def test_an_iterator_that_is_kept_over_epochs_is_no_loop_around_the_next_ones() -> None:
    """As `itertools.cycle` has it: the passes of later epochs are told apart as those of the first."""
    made = account("labeled", "unlabeled")
    cycled = None
    for _ in range(2):
        going = made.begin("labeled")
        assert going.outermost
        give(made, going, 0, 4, ends=True)
        cycled = cycled or made.begin("unlabeled")
        give(made, cycled, *made.cursors["unlabeled"].ahead()[1:], 100)
        made.step()
        assert made.ask(going)
        made.end(going, exhausted=True)
        assert made.places()["labeled"][2] == 1
        made.next_epoch()


def test_what_an_outer_loop_does_behind_an_inner_one_belongs_to_its_step() -> None:
    """No state is taken as the inner loop ends, but when the outer one asks for its next batch."""
    made, outer, inner = nested()
    give(made, inner, 2, 4, ends=True)
    made.step()
    assert place(made, "outer") == (0, 1)
    assert not made.ask(inner)
    made.end(inner, exhausted=True)
    assert made.ask(outer)


class Killed(BaseException):
    """Ends a life of a script at once."""


def evaluated(path: Path, between: bool, ends_after: int = -1) -> list[float]:
    """Learning rates at each batch, training and evaluation alternating, of a life that is killed after so many."""
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    run = Run(path, every=Every(seconds=None), optimizer=optimizer, scheduler=scheduler)
    train, validation = (run.loader(DataLoader(TensorDataset(torch.arange(4)), batch_size=2)) for _ in range(2))
    seen: list[float] = []

    def saw() -> None:
        if len(seen) == ends_after:
            run._persistence.wait()
            raise Killed
        seen.append(optimizer.param_groups[0]["lr"])
        run.save()

    try:
        for _ in run.epochs(3):
            for _ in train:
                saw()
                optimizer.step()
                run.step()
            if between:
                scheduler.step()
            with torch.no_grad():
                for _ in validation:
                    saw()
            if not between:
                scheduler.step()
    except Killed:
        pass
    return seen


@pytest.mark.parametrize("between", [True, False])
def test_what_is_changed_between_training_and_evaluation_is_changed_once(tmp_path: Path, between: bool) -> None:
    """Wherever the script is killed: a scheduler's step is neither done twice nor left out."""
    whole = evaluated(tmp_path / "whole", between)
    for ends in range(1, len(whole)):
        path = tmp_path / f"killed-{ends}"
        first = evaluated(path, between, ends)
        again = evaluated(path, between)
        assert first == whole[:ends]
        assert again == whole[len(whole) - len(again) :]
        assert len(again) <= len(whole) - ends + 3


def test_an_evaluation_is_gone_on_with_in_its_middle_where_nothing_was_changed_before_it(tmp_path: Path) -> None:
    whole = evaluated(tmp_path / "whole", between=False)
    assert evaluated(tmp_path / "killed", False, 3) == whole[:3]
    assert len(evaluated(tmp_path / "killed", False)) == len(whole) - 3


def test_the_end_that_is_asked_for_waits_for_a_step_where_batches_are_in_use(tmp_path: Path) -> None:
    """At the end of an epoch with a rest of an accumulation: it is trained on, and each epoch has its turn."""

    def life(stops: bool) -> tuple[list[int], int]:
        run, seen = Run(tmp_path, every=Every(seconds=None)), list[int]()
        loader = run.loader(DataLoader(TensorDataset(torch.arange(5))))
        for _ in run.epochs(3):
            for count, (batch,) in enumerate(loader, 1):
                seen += batch.tolist()
                if count % 2 == 0:
                    run.step()
            if stops:
                run.stop()
        return seen, run.steps

    first, _ = life(stops=True)
    rest, steps = life(stops=False)
    assert (first + rest, steps) == ([0, 1, 2, 3, 4] * 3, 6)


def test_a_loader_that_is_made_late_keeps_its_place() -> None:
    """A checkpoint of a start that has not made it yet holds where the one before has it; passes that are over are of
    their own epoch."""
    made = account()
    made.kept = {"late": [3, 8, 1]}
    assert made.places()["late"] == [3, 8, 1]
    made.next_epoch()
    assert made.places()["late"] == [3, 8, 0]
    made.cursors["late"] = Cursor()
    assert made.places()["late"] == [0, 0, 0]
    made.restore("late", made.kept["late"])
    assert made.places()["late"][:2] == [3, 8]


@pytest.mark.parametrize("asked", [False, True], ids=["in hand", "over"])
def test_a_state_behind_an_epochs_last_batch_goes_on_with_the_end_of_that_pass(asked: bool) -> None:
    """As torchdata 0.11.0: the pass that the loop was in gives nothing more, unless the loop knew its end already."""

    def loader() -> StatefulLoader:
        return exact(DataLoader(TensorDataset(torch.arange(8)), batch_size=4, shuffle=True), seed=3)

    whole, cut = loader(), loader()
    epochs = [[batch.tolist() for (batch,) in whole] for _ in range(3)]
    for _ in range(2):
        for _batch in cut:
            state = cut.state_dict()
    assert len({str(epoch) for epoch in epochs}) == 3
    state = cut.state_dict() if asked else state
    again = loader()
    again.load_state_dict(state)
    assert again.state_dict() == state
    if not asked:
        assert list(again) == []
    assert [batch.tolist() for (batch,) in again] == epochs[2]
