"""A case under torchrun: agents on c10d, and the cause in the blocks that they print."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from campaigns.chaos.leftovers import MARK, marked_processes
from support.network import free_port

from .elastic_agent_jobs import wait_running
from .plan import DEPARTED, Answer, Case

BOUND_S = 45.0
"""Bound on one job. An agent whose workers exited 0 may wait for 300 s; what was printed by then is judged."""
ROOT = "Root Cause (first observed failure):"


def answer(case: Case) -> Answer:
    """Of the blocks that the agents print, the one with the earliest time, which a reader would choose."""
    with tempfile.TemporaryDirectory(prefix="causes-") as name:
        folder = Path(name)
        (folder / "mesh").mkdir()
        port = free_port()
        marks = [f"{os.getpid()}-{time.monotonic_ns()}-{node}" for node in range(len(case.shape))]
        agents = {node: _start(case, folder, node, port, marks[node]) for node in case.starts}
        ended = True
        try:
            if case.leaver >= 0:
                wait_running(folder / "mesh", sum(case.shape))
                agents[case.leaver].send_signal(signal.SIGKILL if case.kind == "node lost" else signal.SIGTERM)
                if case.kind == "node lost":
                    _kill(marks[case.leaver])
            until = time.monotonic() + BOUND_S
            for agent in agents.values():
                agent.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            for node, agent in agents.items():
                agent.kill()
                agent.wait()
                _kill(marks[node])  # torchrun's workers outlive it when it is killed
        roots = [(folder / f"{node}.txt").read_text().rpartition(ROOT)[2] for node in agents if node != case.leaver]
    return _judge(case, roots, "" if ended else f", and no end within {BOUND_S:g} s")


def _start(case: Case, folder: Path, node: int, port: int, mark: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(case.shape)),
        "--nproc-per-node", str(case.shape[node]), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}",
        "--rdzv-conf", f"is_host={int(node == case.host)},join_timeout=60", "--redirects", "2",
        "--log-dir", str(folder / f"logs-{node}"), case.worker,
    ]  # fmt: skip
    more = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "2", "OMP_NUM_THREADS": "1", MARK: mark}
    env = {**os.environ, **case.environment(folder / "mesh", node), **more}
    with (folder / f"{node}.txt").open("w") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def _kill(mark: str) -> None:
    for pid in marked_processes(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _judge(case: Case, roots: list[str], trouble: str) -> Answer:
    found = [(re.search(r"time +: (\S+)", root), re.search(r"rank +: (\d+)", root)) for root in roots]
    blocks = [(when[1], int(rank[1])) for when, rank in found if when and rank]
    if not blocks:
        return Answer(False, False, f"no cause named{trouble}")
    rank = min(blocks, key=lambda block: block[0])[1]
    return Answer(case.kind not in DEPARTED and rank == case.bad, True, f"rank {rank} of {blocks}{trouble}")
