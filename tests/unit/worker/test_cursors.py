"""What is committed when: steps, evaluations, breaks, nested loops, and the loops of a script that starts again."""

from __future__ import annotations

from elastic_agent.worker.data.cursors import Account, Cursor, Pass, Span


def account(*loaders: str) -> Account:
    made = Account()
    made.cursors = {name: Cursor() for name in loaders}
    return made


def give(made: Account, going: Pass, first: int, last: int, ends: bool = False) -> None:
    """The loop asks for a batch and gets it."""
    made.ask(going)
    made.hand_out(Span(going.loader, made.cursors[going.loader].ahead()[0], first, last, ends))


def stepped(made: Account) -> list[Span]:
    """What a step commits."""
    made.step()
    return made.take()


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
    made = account("outer", "inner")
    outer = made.begin("outer")
    give(made, outer, 0, 1)
    inner = made.begin("inner")
    give(made, inner, 0, 2)
    made.step()
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
