"""Find a learning rate with Optuna, which prunes trials by `validate()`: `python examples/trainer/optuna_sweep.py`."""

from __future__ import annotations

import argparse

import optuna
from digits import make_data, make_model, make_optimizer  # type: ignore[import-not-found] # beside this file
from torch import nn

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer


def objective(trial: optuna.Trial, epochs: int) -> float:
    """The accuracy that one learning rate comes to."""
    config = {"lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True), "channels": 4, BATCH_SIZE: 64}
    with TorchTrainer(
        model_creator=make_model,
        data_creator=make_data,
        optimizer_creator=make_optimizer,
        loss_creator=nn.CrossEntropyLoss,
        config=config,
        num_workers=2,
    ) as trainer:
        accuracy = 0.0
        for epoch in range(epochs):
            trainer.train()
            accuracy = trainer.validate()["val_accuracy"]
            trial.report(accuracy, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=1),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1),
    )
    study.optimize(lambda trial: objective(trial, arguments.epochs), n_trials=arguments.trials)
    pruned = len(study.get_trials(states=(optuna.trial.TrialState.PRUNED,)))
    print(f"best: {study.best_value:.1%} with lr={study.best_params['lr']:.2g}; {pruned} trials pruned")


if __name__ == "__main__":
    main()
