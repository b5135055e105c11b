"""Nobody complains about a vanished store at the end of a job: ranks that ask it until their process ends.

So does NCCL: a thread of `ProcessGroupNCCL`, HeartbeatMonitor, looks for the key "heartbeat monitor dump signal" every
second until the group is destroyed or the process ends, and warns (`Failed to check the "should dump" flag on TCPStore,
(maybe TCPStore server has shut down too early)`) once the store does not answer; below it the store's client warns as
well. There is no GPU here; a thread of the worker makes the same calls, 500 times as often.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support.network import free_port
from support.workers import WORKERS

pytestmark = pytest.mark.timeout(300)

CLIENTS = str(WORKERS / "clients.py")
BOUND_S = 200.0
"""For a job whose workers import torch on a busy host."""
COMPLAINT = re.compile(
    r"\[[WE]\d|TCPStore|recvValue|sendBytes|closed|pipe|reset|refused|DistNetworkError|Traceback|gloo", re.I
)


def complaints(nodes: int, *flags: str, mode: str = "watching") -> list[str]:
    """Run a job of agents with these flags to its good end; return what was complained about."""
    argv = [sys.executable, "-m", "elastic_agent", "--nproc-per-node", "2", *flags, CLIENTS, mode]
    if nodes > 1:
        where = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        argv[3:3] = [*where, "--rdzv-conf", "last_call_timeout=1"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    agents = [subprocess.Popen(argv, env=env, stdout=pipe, stderr=pipe, text=True) for _ in range(nodes)]
    ended = [agent.communicate(timeout=BOUND_S) for agent in agents]
    errors = "".join(err for _, err in ended)
    assert [agent.returncode for agent in agents] == [0] * nodes, errors
    lines = [line for out, _ in ended for line in out.splitlines()]
    # In a round that fails, those that were asked to stop have their say, too.
    assert set(lines) == {f"rank {rank} of {2 * nodes} ends" for rank in range(2 * nodes)}
    assert len(lines) == 2 * nodes + (2 * nodes - 1) * (mode == "failing")
    return [line for line in errors.splitlines() if COMPLAINT.search(line)]


@pytest.mark.parametrize("nodes", [1, 2])
def test_no_rank_that_asks_the_store_until_its_end_complains(nodes: int) -> None:
    """Rank 0 ends first, and the store outlives every rank, on its own node and on others."""
    assert not complaints(nodes)


def test_no_rank_complains_beside_a_restart() -> None:
    """Neither those that take their time to stop once rank 0 has failed, nor those of the next round. Ranks of a failed
    round on other nodes may: its store ends with its node's workers, so that nobody is blocked in it (ADR 0025)."""
    assert not complaints(1, "--max-restarts", "1", mode="failing")


def test_every_rank_complains_where_rank_0_serves_the_store() -> None:
    """The same program shows it, so that the tests above could fail."""
    found = complaints(1, "--worker-store", "rank0")
    assert any("recvValue failed" in line or "sendBytes failed" in line for line in found), found
