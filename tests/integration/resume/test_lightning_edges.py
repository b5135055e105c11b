"""What scripts of Lightning do beside the plainest `fit` is exact as well: real Lightning, real SIGKILL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import support.resume
from support.resume.jobs import Job, differences, play
from support.side_environments import side_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(support.resume.__path__[0]) / "lightning_edges_script.py"
IMPORTS = ["torch", "lightning.pytorch"]
CASES: dict[str, list[tuple[list[str], str, int]]] = {
    "twice": [(["1:4", "2:4"], "3", 1), (["fitted", "2:0", "3:4"], "3", 1)],
    "behind": [(["fitted"], "3", 1)],
    "averaged": [(["validated 0:3", "1:3", "validated 2:1"], "1", 1), (["fitted"], "3", 1)],
    "stream": [(["validated 0:3", "1:0", "1:1", "validated 1:2", "2:0"], "1", 1)],
    "accumulated": [(["1:5", "validated 1:2", "2:4"], "1", 1)],
    "collected": [(["validated 1:2", "2:1"], "1", 1)],
    "combined": [(["1:2", "validated 1:2"], "1", 1)],
    "late": [(["0:0", "0:1", "1:4"], "1", 1)],
    "unfrozen": [(["0:4", "1:4", "validated 1:2", "2:3", "fitted"], "1", 1)],
    "searched": [(["1:2", "validated 1:2"], "1", 1)],
    "tuned": [(["tuned", "1:3"], "1", 1)],
    "stopped": [(["validated 1:2"], "1", 1)],
    "swa": [(["0:3", "1:2", "validated 3:2"], "1", 1)],
    "roots": [(["1:4"], "1", 2)],
    "listed": [(["1:4", "validated 1:2"], "1", 2)],
    "files": [(["1:3", "2:2"], "5", 1), (["1:3", "2:2"], "5", 2)],
}
"""By mode: where each start but the last is killed, how often it saves, and its ranks."""
Said = dict[tuple[Any, ...], list[Any]]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Job, Job]]]:
    """By mode: a job that is killed, and one that is not. All in one process, which imports Lightning once."""
    path, python = tmp_path_factory.mktemp("edges"), side_python(".frameworks")
    made: dict[str, list[tuple[Job, Job]]] = {}
    for mode, cases in CASES.items():
        for kills, every, ranks in cases:
            name = f"{mode}-{len(made.setdefault(mode, []))}"
            jobs = [Job(path, f"{what}-{name}", MODE=mode, ELASTIC_AGENT_SAVE_EVERY=every) for what in ("whole", "cut")]
            for job in jobs:
                job.env["ELASTIC_AGENT_EXACT_RESUME"] = str(job.checkpoints)
            for kill in kills:
                jobs[1].life(ranks, KILL=kill)
            made[mode].append((jobs[0].life(ranks), jobs[1].life(ranks)))
    play(python, SCRIPT, [job for each in made.values() for pair in each for job in pair], IMPORTS)
    return made


def same(pairs: list[tuple[Job, Job]]) -> Said:
    """What the last of the jobs that were killed said: what one that was not killed says, after the same batches."""
    said: Said = {}
    for whole, killed in pairs:
        assert differences(whole, killed) == []
        said = killed.reported()
        assert said == whole.reported()
    return said


def test_a_second_fit_of_the_same_trainer_goes_on(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """Killed in both, between them, and before the second has a checkpoint."""
    same(pairs["twice"])


def test_what_stands_behind_fit_finds_what_fit_has_left(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """The metrics, and the generators."""
    said = same(pairs["behind"])
    assert "validated" in said["end", 0][1]


def test_an_average_of_the_weights_goes_on(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """Which is in the model while it is validated, and behind `fit`."""
    same(pairs["averaged"])


def test_a_stream_goes_on_behind_a_validation_at_an_epochs_end(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """It keeps its place by itself, and Lightning reads ahead in a pass that it gives up."""
    same(pairs["stream"])


def test_what_a_callback_sets_as_an_epoch_begins_holds_to_its_end(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """How many batches make a step."""
    same(pairs["accumulated"])


def test_a_callback_may_make_its_state_when_the_training_begins(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    same(pairs["late"])


def test_what_is_frozen_or_in_another_mode_stays_so(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """A callback changes both when an epoch begins."""
    assert same(pairs["unfrozen"])["trained", 0][:2] == [[True] * 6, False]


def test_lightnings_own_checkpoints_have_the_names_of_one_start(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """Killed behind a checkpoint that the next start writes again."""
    assert same(pairs["files"])["files", 0][0][:2] == ["best.ckpt", "last.ckpt"]


def test_a_search_for_a_rate_is_not_done_again_in_the_middle(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """It sets the loops to the beginning, and ended the run's account of a training that had not begun."""
    same(pairs["searched"])


def test_a_fit_of_the_tuner_is_no_training(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """A start found it over, and began the training with what the search had trained."""
    said = same(pairs["tuned"])
    assert said["found", 0][0] != 0.02


def test_the_validation_that_follows_a_stop_goes_on(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    same(pairs["stopped"])


def test_an_average_by_epochs_keeps_its_schedule_and_its_last_epoch(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    same(pairs["swa"])


def test_a_loss_that_is_optimized_by_hand_keeps_its_value(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """Though the ranks' parts of a batch differ, so that it is weighed."""
    same(pairs["roots"])


def test_a_metric_that_is_a_list_goes_on_on_every_rank(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """A start behind the last batch of an epoch that reduced it sent other sizes on each rank."""
    same(pairs["listed"])


def test_a_validation_that_fills_a_list_is_begun_anew(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """A start within it found the list empty, and the mean was over the batches that were left."""
    same(pairs["collected"])


def test_combined_loaders_are_taken_in_each_epoch(pairs: dict[str, list[tuple[Job, Job]]]) -> None:
    """The second epoch's were refused as loaders of an unknown kind. Doubles are not rounded as they are loaded."""
    same(pairs["combined"])


def test_a_start_from_lightnings_own_checkpoint_within_an_epoch_says_what_it_lacks(tmp_path: Path) -> None:
    """Killed before the first checkpoint of this library's, behind one that the script's `ckpt_path` names."""
    jobs = [Job(tmp_path, name, MODE="path", ELASTIC_AGENT_SAVE_EVERY="100") for name in ("whole", "killed")]
    for each in jobs:
        each.env["ELASTIC_AGENT_EXACT_RESUME"] = str(each.checkpoints)
    whole, killed = jobs[0].life(), jobs[1].life(KILL="0:5").life()
    play(side_python(".frameworks"), SCRIPT, [whole, killed], IMPORTS)
    assert differences(whole, killed) == []
    assert killed.reported()["end", 0][0] == whole.reported()["end", 0][0]
    assert "lacks its batches so far" in killed.reported()["warned", 0][0]
    assert ("warned", 0) not in whole.reported()
