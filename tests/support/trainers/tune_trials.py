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
    """Pauses a trial whenever it reports."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        paused: str = TrialScheduler.PAUSE
        return paused if result["training_iteration"] < EPOCHS else TrialScheduler.CONTINUE


def step(trainer: TorchTrainer, info: dict[str, Any]) -> dict[str, Any]:
    return {**trainer.train(), **trainer.validate(), "pid": os.getpid()}


def main() -> None:
    work = Path(sys.argv[1])
    common: dict[str, Any] = {
        **training.CREATORS,
        "num_workers": 2,
    }
    ray.init(include_dashboard=False, num_cpus=1, runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})
    results = tune.Tuner(
        TorchTrainer.as_trainable(**common, config={BATCH_SIZE: 25}, override_tune_step=step),
        param_space={"lr": tune.grid_search(list(RATES))},
        tune_config=tune.TuneConfig(scheduler=Pausing(), max_concurrent_trials=1, reuse_actors=False),
        run_config=tune.RunConfig(
            storage_path=str(work), name="trials", stop={"training_iteration": EPOCHS}, verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
    ).fit()  # fmt: skip
    reported: dict[str, Any] = {}
    for result in results:
        lines = Path(result.path, "result.json").read_text().splitlines()
        reported[str(result.config["lr"])] = [json.loads(line) for line in lines]
    ray.shutdown()
    undisturbed: dict[str, Any] = {}
    for rate in RATES:
        with TorchTrainer(**common, config={BATCH_SIZE: 25, "lr": rate}) as trainer:
            undisturbed[str(rate)] = [step(trainer, {}) for _ in range(EPOCHS)]
    (work / "told.json").write_text(json.dumps([reported, undisturbed]))


if __name__ == "__main__":
    main()
