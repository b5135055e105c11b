"""torchrun's names and shapes (torch 2.13, `torch.distributed.run`), on this agent.

    from elastic_agent import torchrun
    torchrun.main(["--nproc-per-node", "2", "train.py"])

What is not here is torch's own, so the whole of `torch.distributed.run` can be replaced by it. `install` does so for
everything else in this process and for what it starts. torch is imported when a name needs it.
"""

from __future__ import annotations

from .launcher.as_torchrun.command import config_from_args, get_args_parser, main, parse_args, run
from .launcher.as_torchrun.elastic import elastic_launch, launch_agent
from .launcher.as_torchrun.place import SHIMS, install
from .launcher.config.config import LaunchConfig

__all__ = [
    "SHIMS",
    "LaunchConfig",
    "config_from_args",
    "elastic_launch",
    "get_args_parser",
    "install",
    "launch_agent",
    "main",
    "parse_args",
    "record",  # noqa: F822 - of torch
    "run",
]


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.distributed import run as torchs

    return getattr(torchs, name)


if __name__ == "__main__":
    from .__main__ import main as program

    program()
