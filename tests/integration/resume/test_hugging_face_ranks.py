"""Hugging Face's Trainer on several ranks, whose number changes, over steps of several batches: real SIGKILL.

With transformers 5, and with 4, for which most scripts were written.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import support.resume
from support.resume.jobs import Job, differences, play
from support.side_environments import side_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(support.resume.__path__[0]) / "accumulating_script.py"
HUGGING_FACE = ["torch", "transformers.trainer", "accelerate"]


@pytest.mark.parametrize("packages", [".frameworks", ".transformers4"])
def test_a_step_of_several_batches_is_the_same_on_any_number_of_ranks(packages: str, tmp_path: Path) -> None:
    """The last step of an epoch has 4 samples and 2, so that two of four ranks have none of its last batch."""
    one, two = Job(tmp_path, "one").life(1), Job(tmp_path, "two").life(2)
    killed = Job(tmp_path, "killed").life(2, KILL="0:7").life(2, KILL="0:17").life(2)
    resized = Job(tmp_path, "resized").life(2, KILL="0:7").life(1, KILL="0:17").life(4)
    play(side_python(packages), SCRIPT, [one, two, killed, resized], HUGGING_FACE)
    assert killed.reported()["end", 3] == two.reported()["end", 3]
    for job in (two, killed, resized):
        assert differences(one, job) == []
        for mine, theirs in zip(one.reported()["weights", 0], job.reported()["weights", 0], strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5)
