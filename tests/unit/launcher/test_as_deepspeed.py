"""deepspeed's launcher for one node, in our agent's words."""

from __future__ import annotations

import base64
import json

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.launcher.as_torchrun.deepspeed import _devices, _parser, arguments_of, translated

ONE = {"localhost": [0, 2]}
TWO = {"a": [0], "b": [0, 1, 2]}


def told(world: dict[str, list[int]], *arguments: str) -> tuple[list[str], dict[str, str]]:
    info = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
    asked = _parser().parse_args([f"--world_info={info}", *arguments])
    return translated(asked, _devices(asked))


def test_one_node_stands_alone() -> None:
    flags, added = told(ONE, "--master_port=29501", "--log_level=info", "train.py", "--lr", "0.1", "--local_rank=7")
    assert flags == [
        "--nnodes=1", "--nproc-per-node=2", "--standalone", "train.py",
        "--local_rank=${local_rank}", "--lr", "0.1", "--local_rank=7",
    ]  # fmt: skip
    assert added == {"LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}


def test_several_nodes_meet_at_the_master() -> None:
    """Each has as many workers as devices."""
    flags, added = told(TWO, "--node_rank=1", "--master_addr=a", "--master_port=1234", "--no_local_rank", "train.py")
    assert flags == [
        "--nnodes=2", "--nproc-per-node=3", "--node-rank=1", "--master-addr=a", "--master-port=1234", "train.py",
    ]  # fmt: skip
    assert added["LOCAL_SIZE"] == "3"


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (("--module", "pkg.train"), ["--module", "pkg.train", "--local_rank=${local_rank}"]),
        (("--no_python", "--no_local_rank", "./train.sh", "x"), ["--no-python", "./train.sh", "x"]),
        (
            ("--enable_each_rank_log=logs", "--no_local_rank", "train.py"),
            ["--redirects=3", "--log-dir=logs", "train.py"],
        ),
    ],
    ids=["module", "no python", "logs"],
)
def test_other_flags_have_a_counterpart(given: tuple[str, ...], flags: list[str]) -> None:
    assert told(ONE, *given)[0] == ["--nnodes=1", "--nproc-per-node=2", "--standalone", *flags]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--bind_cores_to_rank", "train.py"), "--bind_cores_to_rank has no counterpart"),
        (("--module", "--no_python", "train.py"), "--module and --no_python exclude each other"),
        (("--node_rank=2", "train.py"), "--node_rank is 2, but --world_info has 1 nodes"),
        (("--world_info=None", "train.py"), "--world_info is 'None', which is not deepspeed's"),
        (("--world_info=MTI=", "train.py"), "--world_info is 'MTI=', which is not deepspeed's"),
    ],
)
def test_what_has_none_is_refused_with_the_next_step(given: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        told(ONE, *given)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("python -u -m deepspeed.launcher.launch --module x", ["--module", "x"]),
        ("python -m deepspeed.launcher.launch", []),
        ("python -m other deepspeed.launcher.launch", None),
        ("python train.py -m deepspeed.launcher.launch", None),
        ("python -m", None),
        ("python", None),
    ],
)
def test_only_that_module_is_replaced(command: str, arguments: list[str] | None) -> None:
    assert arguments_of(command.split()) == arguments
