"""torchrun's functions around its command line (torch 2.13, `torch.distributed.run`), on our agent.

The parser is torch's own, so that it has the flags of the torch that is installed, and ours beside them.
"""

from __future__ import annotations

import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from ...proto.frozen import replace
from ..config.config import LaunchConfig
from ..config.flag import Flag
from ..config.flags import FLAGS
from .elastic import elastic_launch
from .settings import settings_of


def get_args_parser() -> ArgumentParser:
    """torchrun's parser, with our own flags."""
    from torch.distributed import run as torchrun

    parser: ArgumentParser = torchrun.get_args_parser()
    for flag in _own_flags():
        names = dict.fromkeys((f"--{flag.name}", f"--{flag.key}"))
        if flag.read is None:
            parser.add_argument(*names, action="store_true", help=flag.help)
        else:
            how = "append" if flag.many else "store"
            parser.add_argument(*names, action=how, default=None, metavar=flag.metavar, help=flag.help)
    return parser


def parse_args(args: Sequence[str] | None) -> Namespace:
    """Read a command line; None: this process's. A mistake ends the process with status 2, as argparse does."""
    return get_args_parser().parse_args(args)


def config_from_args(args: Namespace) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """The configuration, the entry point and its arguments, of what `parse_args` returned. Raises ValueError."""
    import os

    from torch.distributed import run as torchrun

    config, entrypoint, entrypoint_args = torchrun.config_from_args(args)
    own: dict[str, Any] = {}
    for flag in _own_flags():
        given = getattr(args, flag.key, None)
        if flag.read is None:
            own |= {flag.key: True} if given else {}
        elif given is not None:
            own[flag.key] = flag.read(f"--{flag.name}", "\n".join(given) if flag.many else given)
    return replace(settings_of(config, os.environ), **own), entrypoint, entrypoint_args


def run(args: Namespace) -> None:
    """Run the job that `args` describes, to its end. Raises as `launch_agent`."""
    nodes = str(args.nnodes).rpartition(":")[2]
    unnamed = args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None
    if args.standalone or (unnamed and nodes == "1"):
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid.uuid4())
    if args.master_port is None:
        args.master_port = 29500
    config, entrypoint, entrypoint_args = config_from_args(args)
    elastic_launch(config, entrypoint)(*entrypoint_args)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command line; None: this process's. What it raises is also written to TORCHELASTIC_ERROR_FILE."""
    from torch.distributed.elastic.multiprocessing.errors import record

    record(_main)(args)


def _main(args: Sequence[str] | None) -> None:
    run(parse_args(args))


def _own_flags() -> list[Flag]:
    names = set(LaunchConfig.__dataclass_fields__)
    return [flag for flag in FLAGS if flag.ours and flag.key in names]
