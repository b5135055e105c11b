"""The program `deepspeed` with the switch on: its launcher for one node becomes our agent.

`deepspeed` (0.19.8, deepspeed/launcher/runner.py) runs `python -m deepspeed.launcher.launch` on every node, itself for
one and through pdsh for several. That module calls nothing of torch's: it starts the workers and, when one fails, kills
the others. `site/sitecustomize.py` finds it by its name in the command line and calls `become` in its place.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, NoReturn

from ...agent.errors import UsageError

_PID_FOLDER = "/tmp"  # noqa: S108 - where deepspeed's other tools look for it


def become(argv: Sequence[str]) -> NoReturn:
    """Replace this process, which was to be `deepspeed.launcher.launch` with these arguments, by our agent. A mistake
    is one line on stderr, and status 2."""
    try:
        asked = _parser().parse_args(list(argv))
        devices = _devices(asked)
        flags, added = translated(asked, devices)
        env = {**os.environ, **added}
        _hand_out_devices(env, devices[asked.node_rank])
        if asked.save_pid:
            with open(os.path.join(_PID_FOLDER, f"{asked.save_pid}.deepspeed"), "x") as file:
                file.write(str(os.getpid()))
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-m", "elastic_agent", *flags], env)
    except UsageError as error:
        sys.stderr.write(f"elastic-agent: exit 2: {error}\n")
    except FileExistsError as error:
        sys.stderr.write(
            f"elastic-agent: exit 2: {error.filename} is there: is another deepspeed of that pid running?\n"
        )
    sys.stderr.flush()
    os._exit(2)  # `site` takes any exception for a broken installation


def translated(asked: Namespace, devices: Sequence[Sequence[int]]) -> tuple[list[str], dict[str, str]]:
    """The arguments of our agent on this node, and what its environment must be given. `devices`: of each node.

    Raises UsageError for what our agent does otherwise."""
    if asked.bind_cores_to_rank or asked.bind_core_list:
        raise UsageError(
            "deepspeed's --bind_cores_to_rank has no counterpart on this agent; "
            "leave it out, or run the script by elastic-agent --numa-binding=node"
        )
    if asked.module and asked.no_python:
        raise UsageError("--module and --no_python exclude each other; give one of them")
    local = len(devices[asked.node_rank])
    flags = [f"--nnodes={len(devices)}", f"--nproc-per-node={local}"]
    if len(devices) == 1:
        flags.append("--standalone")
    else:
        place = [f"--node-rank={asked.node_rank}", f"--master-addr={asked.master_addr}"]
        flags += [*place, f"--master-port={asked.master_port}"]
    if asked.enable_each_rank_log != "None":
        flags += ["--redirects=3", f"--log-dir={asked.enable_each_rank_log}"]
    if asked.no_python:
        flags.append("--no-python")
    flags += ["--module", asked.training_script] if asked.module else [asked.training_script]
    if not asked.no_local_rank:
        flags.append("--local_rank=${local_rank}")
    added = {"LOCAL_SIZE": str(local), "CROSS_RANK": str(asked.node_rank), "CROSS_SIZE": str(len(devices))}
    return [*flags, *asked.training_script_args], added


def _parser() -> ArgumentParser:
    """deepspeed.launcher.launch's flags (0.19.8)."""
    parser = ArgumentParser(prog="deepspeed.launcher.launch", allow_abbrev=False)
    parser.add_argument("--node_rank", type=int, default=0)
    parser.add_argument("--master_addr", default="127.0.0.1")
    parser.add_argument("--master_port", type=int, default=29500)
    parser.add_argument("--world_info", default="None")
    for name in ("module", "no_python", "no_local_rank", "bind_cores_to_rank"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--save_pid", type=int, default=0)
    parser.add_argument("--enable_each_rank_log", default="None")
    parser.add_argument("--bind_core_list")
    parser.add_argument("--log_level", default="info")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=REMAINDER)
    return parser


def _devices(asked: Namespace) -> list[list[int]]:
    """The numbers of the devices of each node, in the order of node ranks. Raises UsageError."""
    try:
        world: dict[str, list[int]] = json.loads(base64.urlsafe_b64decode(asked.world_info))
        devices = [list(map(int, each)) for each in world.values()]
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"--world_info is {asked.world_info!r}, which is not deepspeed's ({error})") from error
    if not 0 <= asked.node_rank < len(devices):
        raise UsageError(f"--node_rank is {asked.node_rank}, but --world_info has {len(devices)} nodes")
    return devices


def _hand_out_devices(env: dict[str, str], numbers: Sequence[int]) -> None:
    """Name this node's devices in its variable, such as CUDA_VISIBLE_DEVICES: deepspeed knows which."""
    from importlib import import_module

    accelerator: Any = import_module("deepspeed.accelerator").get_accelerator()
    accelerator.set_visible_devices_envs(env, list(numbers))


def arguments_of(command: Sequence[str]) -> list[str] | None:
    """What follows `-m deepspeed.launcher.launch` in a Python's command line; None for any other command line."""
    for at, word in enumerate(command[1:], 1):
        if word == "-m":
            return list(command[at + 2 :]) if command[at + 1 : at + 2] == ["deepspeed.launcher.launch"] else None
        if not word.startswith("-"):
            return None
    return None
