"""What scripts of frameworks do beside the plainest loop is exact as well: real frameworks, real SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

import support.resume
from support.resume.jobs import Job, differences, play
from support.side_environments import side_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(support.resume.__path__[0]) / "edges_script.py"
FABRIC, ACCELERATE = ["torch", "lightning.fabric"], ["torch", "accelerate"]
HUGGING_FACE = ["torch", "transformers.trainer", "accelerate"]


@pytest.fixture(scope="module")
def python() -> str:
    return side_python(".frameworks")


def job(path: Path, name: str, mode: str, **env: str) -> Job:
    return Job(path, name, MODE=mode, ELASTIC_AGENT_SAVE_EVERY="1", **env)


@pytest.mark.parametrize("mode", ["fabric_apart", "fabric_schedule"])
def test_fabric_keeps_what_is_set_up_in_parts_and_a_schedule(python: str, tmp_path: Path, mode: str) -> None:
    whole = job(tmp_path, "whole", mode).life()
    killed = job(tmp_path, "killed", mode).life(KILL="1:5").life()
    play(python, SCRIPT, [whole, killed], FABRIC)
    assert differences(whole, killed) == []
    assert killed.reported()["end", 3] == whole.reported()["end", 3]
    if mode == "fabric_apart":  # which loops before anything is set up
        assert "knows no model and no optimizer" in killed.reported()["refused", 0][0]


def test_accelerate_keeps_a_schedule_that_is_prepared_last_and_evaluations_in_their_order(
    python: str, tmp_path: Path
) -> None:
    """Killed in training, and behind an evaluation; two loaders side by side."""
    whole = job(tmp_path, "whole", "accelerate_late", FIRST_RANKS="1").life()
    killed = job(tmp_path, "killed", "accelerate_late", FIRST_RANKS="1")
    killed.life(KILL="0:5").life(KILL="1:99").life()
    play(python, SCRIPT, [whole, killed], ACCELERATE)
    assert differences(whole, killed) == []
    found = {key: told for key, told in killed.reported().items() if key[0] != "killed"}
    assert found == whole.reported()


def test_accelerate_keeps_two_models_with_a_loader_each_and_what_is_registered(python: str, tmp_path: Path) -> None:
    """No checkpoint is taken between the steps of the two."""
    whole = job(tmp_path, "whole", "accelerate_two").life()
    killed = job(tmp_path, "killed", "accelerate_two").life(KILL="0:5").life(KILL="1:3").life(KILL="2:11").life()
    play(python, SCRIPT, [whole, killed], ACCELERATE)
    assert differences(whole, killed) == []
    assert killed.reported()["end", 3] == whole.reported()["end", 3]
    assert killed.reported()["rate", 0] == whole.reported()["rate", 0]
    assert "begins after its last batch by itself" in killed.reported()["refused", 0][0]


@pytest.mark.parametrize("mode", ["accelerate_loads", "fabric_loads"])
def test_what_a_script_loads_to_begin_with_is_not_loaded_again(python: str, tmp_path: Path, mode: str) -> None:
    """It replaced the weights of the checkpoint, as did a state of the script's own, which is refused. The best weights
    are loaded behind the training by each start, by one of a training that is over, too."""
    whole = job(tmp_path, "whole", mode).life()
    killed = job(tmp_path, "killed", mode).life(KILL="0:5").life(KILL="1:9").life().life()
    play(python, SCRIPT, [whole, killed], ACCELERATE if mode == "accelerate_loads" else FABRIC)
    assert differences(whole, killed) == []
    assert killed.reported()["end", 3] == whole.reported()["end", 3]
    if mode == "accelerate_loads":
        assert "loop over .exact.epochs(n)" in killed.reported()["refused", 0][0]
        assert killed.reported()["best", 0] == whole.reported()["best", 0]


def test_accelerate_splits_batches_and_keeps_what_is_trained(python: str, tmp_path: Path) -> None:
    """Batches were as many times as large as there are ranks, and a start behind the epoch in which a script lets a
    part of the model train had it frozen. The whole has one rank, as DistributedDataParallel reduces no gradients of
    what is frozen when it is made."""
    whole = job(tmp_path, "whole", "accelerate_split").life()
    killed = job(tmp_path, "killed", "accelerate_split").life(KILL="0:5").life(KILL="2:3").life()
    two = job(tmp_path, "two", "accelerate_split").life(2, KILL="0:5").life(2)
    play(python, SCRIPT, [whole, killed, two], ACCELERATE)
    assert differences(whole, killed) == differences(whole, two) == []
    assert killed.reported()["end", 3] == whole.reported()["end", 3]
    assert two.reported()["sizes", 0] == whole.reported()["sizes", 0] == [16, 4, []]


def test_accelerate_keeps_what_is_prepared_by_the_method_for_its_kind(python: str, tmp_path: Path) -> None:
    """`prepare_model` and its like, of which nothing was kept."""
    whole = job(tmp_path, "whole", "accelerate_apart").life()
    killed = job(tmp_path, "killed", "accelerate_apart").life(KILL="0:5").life(KILL="1:9").life()
    play(python, SCRIPT, [whole, killed], ACCELERATE)
    assert differences(whole, killed) == []
    assert killed.reported()["end", 3] == whole.reported()["end", 3]
    assert killed.reported()["rate", 0] == whole.reported()["rate", 0]
    assert whole.reported()["rate", 0][1] == 48


def test_accelerates_prepared_loader_says_what_scripts_ask_it(python: str, tmp_path: Path) -> None:
    whole = job(tmp_path, "whole", "accelerate_attributes").life()
    killed = job(tmp_path, "killed", "accelerate_attributes").life(KILL="0:5").life(KILL="1:9").life()
    play(python, SCRIPT, [whole, killed], ACCELERATE)
    assert differences(whole, killed) == []
    assert {key: told for key, told in killed.reported().items() if key[0] != "killed"} == whole.reported()
    assert killed.reported()["sizes", 0] == [[4, 4, 64, 0], [False, 64, 16], False]


def test_accelerates_schedule_and_metrics_are_those_of_the_first_number_of_ranks(python: str, tmp_path: Path) -> None:
    """Two ranks, then one: a schedule goes on at its pace. Each of 13 evaluated samples is gathered once."""
    whole = job(tmp_path, "whole", "accelerate_late", FIRST_RANKS="2").life(2)
    resized = job(tmp_path, "resized", "accelerate_late", FIRST_RANKS="2").life(2, KILL="1:5").life(1)
    play(python, SCRIPT, [whole, resized], ACCELERATE)
    assert differences(whole, resized) == []
    assert resized.reported()["rate", 0] == whole.reported()["rate", 0]
    for epoch in range(3):
        assert sorted(whole.reported()["evaluated", epoch][0]) == list(range(13))
        assert sorted(resized.reported()["evaluated", epoch][0]) == list(range(13))


def test_hugging_faces_only_checkpoint_is_removed_once_the_next_is_whole(python: str, tmp_path: Path) -> None:
    """save_total_limit=1, killed between the Trainer's files and the manifest."""
    killed = job(tmp_path, "killed", "hugging_face_limit").life(KILL="manifest:3").life()
    play(python, SCRIPT, [killed], HUGGING_FACE)
    assert killed.reported()["begun", 0][0] == 6
    assert len(killed.reported()["left", 0][0]) == 1


def test_hugging_faces_torn_last_checkpoint_is_not_gone_on_from_though_asked_for(python: str, tmp_path: Path) -> None:
    whole = job(tmp_path, "whole", "hugging_face_asked").life()
    torn = job(tmp_path, "torn", "hugging_face_asked").life(KILL="manifest:3").life()
    play(python, SCRIPT, [whole, torn], HUGGING_FACE)
    assert torn.reported()["begun", 0][0] == 6
    assert differences(whole, torn) == []
    assert torn.reported()["end", 3] == whole.reported()["end", 3]


@pytest.mark.parametrize("mode", ["hugging_face_uneven", "hugging_face_steps"])
def test_hugging_faces_uneven_last_batch_counts_each_sample_alike(python: str, tmp_path: Path, mode: str) -> None:
    """Also where a class takes its training steps itself, whose losses were not weighed."""
    one, two = job(tmp_path, "one", mode).life(1), job(tmp_path, "two", mode).life(2)
    play(python, SCRIPT, [one, two], HUGGING_FACE)
    assert differences(one, two) == []
    for mine, theirs in zip(one.reported()["weights", 0], two.reported()["weights", 0], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


def test_hugging_faces_split_batches_are_those_of_all_ranks(python: str, tmp_path: Path) -> None:
    """They were as many times as large as there are ranks."""
    one = job(tmp_path, "one", "hugging_face_split").life(1)
    two = job(tmp_path, "two", "hugging_face_split").life(2, KILL="0:4").life(2)
    play(python, SCRIPT, [one, two], HUGGING_FACE)
    assert differences(one, two) == []


def test_a_loss_that_cannot_be_weighed_is_warned_of(python: str, tmp_path: Path) -> None:
    two = job(tmp_path, "two", "hugging_face_alone").life(2)
    play(python, SCRIPT, [two], HUGGING_FACE)
    assert "Ours.training_step does not call self.accelerator.backward(loss)" in two.reported()["said", 0][0]
    assert two.reported()["said", 0][0].count("weighed") == 1


def test_hugging_face_goes_on_in_a_later_pass_over_a_stream(python: str, tmp_path: Path) -> None:
    whole = job(tmp_path, "whole", "hugging_face_stream").life()
    killed = job(tmp_path, "killed", "hugging_face_stream").life(KILL="0:8").life(KILL="0:14").life()
    play(python, SCRIPT, [whole, killed], HUGGING_FACE)
    assert differences(whole, killed) == []
    assert killed.reported()["end", 3] == whole.reported()["end", 3]
