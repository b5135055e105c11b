"""What the control service asks of all ranks reaches the worker library, as the switches do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.outside.asking import Asking
from support.outside.stepping import Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def training(asking: Asking, tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path, env=asking.env)
    made.start()
    made.wait_steps(5)
    yield made
    made.cluster.close()


def socket_of(asking: Asking, training: Training, name: str) -> str:
    return asking.path(training.cluster.nodes[name].process.pid)


def test_save_makes_one_labelled_checkpoint_of_all_ranks_and_training_goes_on(
    asking: Asking, training: Training
) -> None:
    """Asked at the node that does not coordinate; then a restart, which saves and charges nobody; then the end of the
    job for good."""
    path = socket_of(asking, training, "b")
    asking.ask(path, "Save", label="before the merge", reason="a test")
    assert list(training.wait_label().values()) == ["before the merge"]
    training.wait_steps(len(training.lines(0)) + 10)

    asking.ask(path, "RestartRound", reason="new driver")
    asking.wait(path, "Job", "round", 2)
    job = asking.ask(path, "Job")
    assert (job["ended"]["kind"], job["ended"].get("charged", "")) == ("planned", "")
    assert "new driver" in job["ended"]["because"]
    training.wait_steps(len(training.lines(0)) + 10)

    asking.ask(path, "Stop", job=True, reason="the budget is spent")
    assert [training.cluster.nodes[name].wait(90) for name in ("a", "b")] == [83, 83]
    assert len(training.last_steps()) == 1
    for name in ("a", "b"):
        assert "the budget is spent; all workers exited 0" in training.cluster.nodes[name].last_line()


def test_stop_with_requeue_ends_all_nodes_with_75_behind_a_checkpoint(asking: Asking, training: Training) -> None:
    """As a worker's `run.stop()` does: the queue starts the job again."""
    asking.ask(socket_of(asking, training, "a"), "Stop", requeue=True)
    assert [training.cluster.nodes[name].wait(90) for name in ("a", "b")] == [75, 75]
    last = int(training.last_steps().pop().removeprefix("end "))
    assert (training.checkpoints / f"step-{last:06d}" / "manifest.json").exists()


def test_watches_are_set_and_a_mistake_changes_nothing(asking: Asking, training: Training) -> None:
    """An agent without `--watch` gets some; what is wrong is said in one line."""
    path = socket_of(asking, training, "a")
    assert asking.ask(path, "SetWatch", names="hang,memory")["text"].startswith("watched from now on: hang")
    status, found = asking.answer(path, "SetWatch", b'{"names": "hang,moon"}')
    assert (status, found["code"]) == (400, "invalid_argument")
    assert "'moon' is no usual watch; there are hang, disk" in found["message"]
    status, found = asking.answer(path, "SetWatch", b'{"table": "[[watch]]\\nwhat = \\"moon\\""}')
    assert status == 400
    assert asking.ask(path, "SetWatch")["text"] == "nothing is watched from now on"
