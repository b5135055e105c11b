"""Find a learning rate with Ray Tune, which pauses and resumes trials: `python examples/trainer/tune_sweep.py`.

Each trial has a trainer with two workers; ray must be installed (`pip install "ray[tune]"`).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import ray
from ray import tune
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from digits import make_data, make_model, make_optimizer  # type: ignore[import-not-found]  # noqa: E402

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    ray.init(include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    trainable = TorchTrainer.as_trainable(
        model_creator=make_model,
        data_creator=make_data,
        optimizer_creator=make_optimizer,
        loss_creator=nn.CrossEntropyLoss,
        config={"channels": 4, BATCH_SIZE: 64},
        num_workers=2,
    )
    tuner = tune.Tuner(
        trainable,
        param_space={"lr": tune.loguniform(1e-4, 1e-1)},
        tune_config=tune.TuneConfig(
            metric="val_accuracy", mode="max", num_samples=arguments.trials, max_concurrent_trials=1
        ),
        run_config=tune.RunConfig(
            stop={"training_iteration": arguments.epochs},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
    )
    best = tuner.fit().get_best_result()
    metrics, config = best.metrics or {}, best.config or {}
    print(f"best: {metrics['val_accuracy']:.1%} with lr={config['lr']:.2g}")
    ray.shutdown()


if __name__ == "__main__":
    main()
