"""The workers' store with real torch: libraries that expect torchrun's, and every way in which a job may be started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from elastic_agent import LaunchConfig, launch
from elastic_agent.agent.processes.ports import PortHold
from support.network import free_port
from support.workers import WORKERS, calls

CLIENTS = str(WORKERS / "clients.py")
BOUND_S = 90.0
"""For a job whose workers import torch on a busy host."""


def job(*flags: str, mode: str = "manager", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one agent to its end."""
    return subprocess.run(
        [sys.executable, "-m", "elastic_agent", *flags, CLIENTS, mode],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        capture_output=True, text=True, timeout=BOUND_S, check=False,
    )  # fmt: skip


def met(ended: subprocess.CompletedProcess[str], world: int) -> None:
    """Every rank met the others, and nobody complained."""
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"rank {rank} of {world} met the others" for rank in range(world)]


@pytest.mark.parametrize(
    "flags",
    [
        ("--standalone", "--nproc-per-node", "2"),
        ("--nproc-per-node", "2"),
        ("--nproc-per-node", "2", "--preload", "torch"),
        ("--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "/dev/null"),
    ],
    ids=["standalone", "bare", "preload", "no files"],
)
def test_a_library_may_open_the_store_as_a_client_in_every_rank(flags: tuple[str, ...]) -> None:
    """torchft's Manager does so before any process group exists; it waits for ever where a worker is to serve it."""
    met(job(*flags), 2)


def test_it_may_on_a_port_given_on_the_command_line_in_every_round() -> None:
    """--master-port of a single static node: each round's store is empty, although its port stays."""
    ended = job(
        "--nnodes", "1", "--nproc-per-node", "2", "--rdzv-backend", "static", "--master-port", str(free_port()),
        "--max-restarts", "1", mode="again",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("met the others") == 4


def test_a_port_on_the_command_line_that_is_taken_is_named_before_workers_start() -> None:
    """torchrun, too, ends there."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        ended = job("--rdzv-backend", "static", "--master-port", str(port))
    assert ended.returncode == 71
    assert f"cannot hold TCP port {port}: Address already in use; stop the process that has it" in ended.stderr


def test_two_nodes_open_the_store_of_group_rank_0(tmp_path: Path) -> None:
    """Each an agent of its own, meeting on c10d."""
    flags = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    flags += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-conf", "last_call_timeout=1"]
    argv = [sys.executable, "-m", "elastic_agent", *flags, CLIENTS, "manager"]
    with open(tmp_path / "out", "w+") as out:
        agents = [subprocess.Popen(argv, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=out) for _ in range(2)]
        assert [agent.wait(BOUND_S) for agent in agents] == [0, 0]
        out.seek(0)
        assert sorted(out.read().splitlines()) == [f"rank {rank} of 4 met the others" for rank in range(4)]


def test_rank_0_may_return_first(tmp_path: Path) -> None:
    """The others use the store after it, and neither gloo nor the store's client complains."""
    ended = job("--standalone", "--nproc-per-node", "3", mode="early", env={"TORCH_CPP_LOG_LEVEL": "INFO"})
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"rank {rank} had a store after rank 0" for rank in (1, 2)]
    complaints = [line for line in ended.stderr.splitlines() if "error" in line.lower() or "[W" in line]
    assert not [line for line in complaints if "hostname" not in line]


def test_functions_get_the_store_too() -> None:
    """`launch` of a Python function."""
    config = LaunchConfig(nproc_per_node=2, max_restarts=0)
    assert launch(config, calls.store_value, "hello") == {0: "hello", 1: "hello"}


def test_rank_0_serves_the_store_if_that_is_asked_for() -> None:
    """--worker-store rank0: TORCHELASTIC_USE_AGENT_STORE is False, and the port is free for that worker."""
    code = (
        "import os; import torch.distributed as d; d.init_process_group('gloo'); d.barrier();"
        "os.write(1, os.environ['TORCHELASTIC_USE_AGENT_STORE'].encode() + b' '); d.destroy_process_group()"
    )
    flags = ["--standalone", "--nproc-per-node", "2", "--worker-store", "rank0", "--no-python"]
    ended = subprocess.run(
        [sys.executable, "-m", "elastic_agent", *flags, sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=BOUND_S, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout.split()) == (0, ["False", "False"]), ended.stderr


def test_two_rounds_in_a_row_never_have_the_same_port() -> None:
    """The next is held before the last is given back."""
    from elastic_agent.agent.processes.master_port import MasterPort
    from elastic_agent.agent.processes.supervisor import Supervisor
    from elastic_agent.agent.spec import WorkerSpec

    def count() -> int:
        return 1

    for who in ("agent", "rank0"):
        spec = WorkerSpec(("true",), "true", "job", count, worker_store=who)
        port: Any = MasterPort(spec, Supervisor())
        ports = [port.renew() for _ in range(50)]
        assert all(one != other for one, other in pairwise(ports))
        port.close()


def test_a_port_that_listens_can_be_taken_by_nobody() -> None:
    """Not even with SO_REUSEADDR; and a client that comes before the server is kept waiting, not refused."""
    hold = PortHold(listening=True)
    try:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("", hold.port))
        socket.create_connection(("127.0.0.1", hold.port), 5.0).close()
    finally:
        hold.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", hold.port), 5.0)
