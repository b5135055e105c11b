"""Whether level `bits` holds: the digest of a run that is killed and resized, beside that of one life with one rank."""

from __future__ import annotations

import faulthandler
import random
import shutil
import tempfile
import warnings
from pathlib import Path

from elastic_agent.worker.run import Run
from elastic_agent.worker.schedule import Every
from elastic_agent.worker.verify import verify

from . import real
from .bits_script import SHARDS, Training, draw_training, train
from .schedule import Life


def draw(seed: int, most_ranks: int = SHARDS, most_processes: int = 3) -> tuple[Training, tuple[Life, ...]]:
    """The script of this seed, and when it is killed and started again with how many ranks and loader processes."""
    rng = random.Random(seed)
    training = draw_training(rng, seed)
    kills = [
        Life(rng.randint(1, most_ranks), rng.randint(0, most_processes), rng.randint(1, 8))
        for _ in range(rng.randint(1, 3))
    ]
    return training, (*kills, Life(rng.randint(1, most_ranks), rng.randint(0, most_processes), None))


def judge(seed: int, most_ranks: int = SHARDS, most_processes: int = 3) -> tuple[int, int, list[str]]:
    """Real ranks over gloo, SIGKILL, loader processes: the numbers of lives and of batches, and what is wrong."""
    # What optimizers import at their first step, 1,000 modules: once, and not in each rank that is forked.
    import torch._dynamo  # noqa: F401

    training, lives = draw(seed, most_ranks, most_processes)
    directory = Path(tempfile.mkdtemp(prefix="bits-"))
    batches = training.epochs * -(-training.samples // training.batch)
    try:
        expected = play(training, (Life(1, 0, None),), directory / "whole")
        found = play(training, lives, directory / "killed")
    except AssertionError as error:
        return len(lives), batches, [str(error), f"kept in {directory}"]
    wrong = []
    if set(found) != set(expected):
        wrong.append(f"{training}, {lives}: digests {found}, and {expected[0]} in one life, kept in {directory}")
    report = verify(directory / "killed" / "checkpoints")
    if not report.proved:
        wrong += report.lines
    if not wrong:
        shutil.rmtree(directory)
    return len(lives), batches, wrong


def play(training: Training, lives: tuple[Life, ...], directory: Path) -> list[str]:
    """The digests that the ranks of the last life have at its end."""
    records = directory
    for number, life in enumerate(lives):
        records = directory / f"life{number}"
        records.mkdir(parents=True)

        def main(rank: int, victim: bool, life: Life = life, records: Path = records) -> None:
            hung = (records / f"hung{rank}").open("w")
            faulthandler.dump_traceback_later(real.LIFE_S * 0.75, file=hung)
            warnings.filterwarnings("ignore", message="This DataLoader will create")

            def prepare(run: Run) -> None:
                if victim and life.until is not None:
                    real.dies_after(run, run.steps + life.until)

            every = Every(steps=training.save_steps, seconds=None)
            _, digest = train(training, str(directory / "checkpoints"), every, life.loader_processes, prepare)
            (records / f"digest{rank}").write_text(digest)

        real.live(training, training.seed, life.ranks, records, main)
    return [path.read_text() for path in sorted(records.glob("digest*"))]
