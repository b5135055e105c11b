"""Ray Tune's own pause, resume and checkpoints, with trainers as trials: `tune_trials.py DIRECTORY`.

Every trial is paused after each of its steps, so that each step begins from a checkpoint, in a process of its own. It
prints what the trials reported, and what a trainer gives that is never paused.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer
from support.trainers import training

EPOCHS = 3
RATES = (0.01, 0.1)


class Pausing(FIFOScheduler):  # type: ignore[misc, unused-ignore] # untyped where ray is not installed
    """Pauses a trial whenever it reports, and writes each report down: a trial that goes on elsewhere begins with the
    copy of Tune's own file that was made last, which may lack the report by which it was paused."""

    def __init__(self, reports: Path) -> None:
        super().__init__()
        self.reports = reports

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        self._write(trial, result)
        paused: str = TrialScheduler.PAUSE
        return paused if result["training_iteration"] < EPOCHS else TrialScheduler.CONTINUE

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self._write(trial, result)

    def _write(self, trial: Any, result: dict[str, Any]) -> None:
        with self.reports.open("a") as file:
            file.write(json.dumps([str(trial.config["lr"]), result], default=str) + "\n")


def step(trainer: TorchTrainer, info: dict[str, Any]) -> dict[str, Any]:
    return {**trainer.train(), **trainer.validate(), "pid": os.getpid()}


def main() -> None:
    work = Path(sys.argv[1])
    common: dict[str, Any] = {
        **training.CREATORS,
        "num_workers": 2,
    }
    ray.init(include_dashboard=False, num_cpus=1, runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})
    reports = work / "reports"
    tune.Tuner(
        TorchTrainer.as_trainable(**common, config={BATCH_SIZE: 25}, override_tune_step=step),
        param_space={"lr": tune.grid_search(list(RATES))},
        tune_config=tune.TuneConfig(scheduler=Pausing(reports), max_concurrent_trials=1, reuse_actors=False),
        run_config=tune.RunConfig(
            storage_path=str(work), name="trials", stop={"training_iteration": EPOCHS}, verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
    ).fit()  # fmt: skip
    reported: dict[str, Any] = {}
    for line in reports.read_text().splitlines():
        rate, result = json.loads(line)
        reported.setdefault(rate, []).append(result)
    ray.shutdown()
    undisturbed: dict[str, Any] = {}
    for given in RATES:
        with TorchTrainer(**common, config={BATCH_SIZE: 25, "lr": given}) as trainer:
            undisturbed[str(given)] = [step(trainer, {}) for _ in range(EPOCHS)]
    (work / "told.json").write_text(json.dumps([reported, undisturbed]))


if __name__ == "__main__":
    main()
