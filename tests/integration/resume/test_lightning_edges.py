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
    "late": [(["0:0", "0:1", "1:4"], "1", 1)],
    "unfrozen": [(["0:4", "1:4", "validated 1:2", "2:3", "fitted"], "1", 1)],
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
