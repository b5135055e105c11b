"""Arguments of a trainer that it can do nothing with: named before a worker is started."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.trainer import TorchTrainer
from elastic_agent.trainer.options import THE_OPERATOR, checked_function, checked_interval, checked_seed


def nothing(*_: Any) -> None:
    """Stands for a creator that is never called."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"save_every": {"second": 5}}, "save_every has 'second': give"),
        ({"save_every": {}}, "save_every is {}, so that no state would be kept"),
        ({"save_every": {"steps": None}}, "so that no state would be kept"),
        ({"save_every": {"seconds": -1}}, "save_every['seconds'] is -1, and must be a number of at least 0"),
        ({"save_every": {"steps": "100"}}, "save_every['steps'] is '100', and must be a number of at least 1"),
        ({"save_every": "60s"}, "save_every is a str, and must be a dict"),
        ({"seed": None}, "seed is None, and must be a whole number"),
        ({"seed": 1 << 70}, "and must be a whole number of at most 64 bits"),
        ({"checkpoint_dir": ""}, "checkpoint_dir is empty; give a directory"),
        ({"checkpoint_dir": 5}, "checkpoint_dir is a int, and must be a path"),
        ({"ddp_args": ["bucket_cap_mb"]}, "ddp_args is a list, and must be a dict"),
        ({"rdzv_endpoint": 2.5}, "rdzv_endpoint is a float, and must be a text"),
        ({"launch": {"restart_windo": 1}}, "launch has 'restart_windo', which is no field of LaunchConfig; did"),
        (
            {"launch": {"nproc_per_node": 3}},
            "launch has 'nproc_per_node', which num_workers of the trainer sets; give that",
        ),
        ({"launch": {"max_restarts": 1}}, "launch has 'max_restarts', which max_retries of the trainer sets"),
        ({"launch": {"virtual_local_rank": True}}, "launch has 'virtual_local_rank', and workers of a trainer need"),
        (
            {"optimizer_creator": lambda model: None},
            "optimizer_creator is called with the models and config: too many positional arguments; change it, or wrap",
        ),
        ({"data_creator": lambda: None}, "data_creator is called with config: too many positional arguments"),
        (
            {"initialization_hook": lambda rank: None},
            "initialization_hook is called with no argument: missing a required argument: 'rank'",
        ),
        ({"launch": {"env": {"RATE": 1}}}, "env has 1, of type int; give text"),
    ],
)
def test_a_wrong_argument_is_named_before_a_worker_starts(given: dict[str, Any], said: str) -> None:
    """Some were taken in silence: states were never kept, or in the working directory; others ended in a traceback of
    each worker."""
    with pytest.raises(UsageError) as refused:
        TorchTrainer(model_creator=nothing, use_gpu=False, **given)
    assert said in str(refused.value)


def test_what_means_something_is_taken() -> None:
    for every in (None, {"steps": 100}, {"seconds": 0.5}, {"steps": 10, "seconds": None}):
        assert checked_interval(every) == every
    for seed in (0, -1, 1 << 63, 42.0):
        assert checked_seed(seed) == seed
    for function in (nothing, len, lambda operator: operator, lambda operator=None: operator):
        checked_function(function, THE_OPERATOR)
