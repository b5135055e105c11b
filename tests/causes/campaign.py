"""Jobs that fail in known ways, and what their launcher says was the cause.

Two nodes of two workers each, the wall clock of one node 5 s ahead."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import harness
from harness import Cluster, free_port

HERE = Path(__file__).parent
SKEW_S = 5.0
BOUND_S = 120.0

KINDS = (
    "exception", "exit 3", "exit 0", "killed", "terminated", "segfault", "abort", "stopped", "hang", "slow death",
    "failing clean-up", "import", "wrapped by the peers", "swallowed by the peers", "node lost",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One job that fails."""

    kind: str
    seed: int
    bad: int
    """The rank at fault."""
    step: int
    slow_s: float
    ahead: str
    """The node whose clocks are ahead."""

    @staticmethod
    def draw(kind: str, seed: int) -> Case:
        rng = random.Random(f"{kind}/{seed}")
        return Case(kind, seed, rng.randrange(4), rng.randrange(4, 12), rng.uniform(0.1, 0.8), rng.choice("ab"))

    def environment(self, folder: Path, node: str) -> dict[str, str]:
        return {
            "TEST_KIND": self.kind,
            "TEST_BAD": "-1" if self.kind == "node lost" else str(self.bad),
            "TEST_STEP": str(self.step),
            "TEST_SLOW_S": str(self.slow_s),
            "TEST_MESH": str(folder),
            "TEST_SKEW_S": str(SKEW_S if node == self.ahead else 0),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{HERE / 'skew'}:{os.environ.get('PYTHONPATH', '')}",
        }


@dataclass(frozen=True)
class Answer:
    """What was said."""

    right: bool
    certain: bool
    text: str


def ours(case: Case, *, backend: str = "memory", kept: bool = True) -> Answer:
    """Our agents' verdict; every node must give the same."""
    with tempfile.TemporaryDirectory(prefix="causes-") as name:
        folder = Path(name)
        (folder / "mesh").mkdir()
        conf = {"beat": 0.4, "lease": 2, "join_timeout": 3 if case.kind == "node lost" else 60}
        cluster = Cluster(
            backend, folder, nnodes="2", nproc=2, max_restarts=0, redirects=2 if kept else 0, grace_s=2, conf=conf
        )
        try:
            for node in "ab":
                with (
                    mock.patch.dict(os.environ, case.environment(folder / "mesh", node)),
                    mock.patch.object(harness, "WORKER", str(HERE / "worker.py")),
                ):
                    cluster.start(node, node_rank="ab".index(node))
            if case.kind == "node lost":
                _wait_running(folder / "mesh")
                cluster.nodes["b"].vanish()
                cluster.nodes["a"].wait(BOUND_S)
                text = cluster.nodes["a"].text().splitlines()[-1]
                return Answer("(lost)" in text, True, text)
            for node in cluster.nodes.values():
                node.wait(BOUND_S)
            texts = [node.text().splitlines()[-1].partition("worker failed: ")[2] for node in cluster.nodes.values()]
        finally:
            cluster.close()
        found = re.match(r"rank (\d+) ", texts[0])
        agree = len(set(texts)) == 1
        right = agree and found is not None and int(found[1]) == case.bad
        return Answer(right, "; the cause: " in texts[0] or "; probably: " not in texts[0], texts[0])


def torchruns(case: Case) -> Answer:
    """torchrun's: of the blocks that its agents print, the one with the earliest time, as a reader would choose."""
    with tempfile.TemporaryDirectory(prefix="causes-") as name:
        folder = Path(name)
        (folder / "mesh").mkdir()
        port = free_port()
        agents = [_torchrun(case, folder, number, port) for number in (0, 1)]
        try:
            if case.kind == "node lost":
                _wait_running(folder / "mesh")
                agents[1].kill()
                _kill_workers(folder / "mesh", "1")
            for agent in agents:
                agent.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            return Answer(False, False, "no end")
        finally:
            for agent in agents:
                agent.kill()
                agent.wait()
            _kill_workers(folder / "mesh", "0")
            _kill_workers(folder / "mesh", "1")
        roots = [(folder / node).read_text().rpartition("Root Cause (first observed failure):")[2] for node in "ab"]
    found = [(re.search(r"time +: (\S+)", root), re.search(r"rank +: (\d+)", root)) for root in roots]
    blocks = [(when[1], int(rank[1])) for when, rank in found if when and rank]
    if not blocks:
        return Answer(False, False, "nobody named")
    rank = min(blocks, key=lambda block: block[0])[1]
    return Answer(case.kind != "node lost" and rank == case.bad, True, f"rank {rank} of {blocks}")


def _torchrun(case: Case, folder: Path, number: int, port: int) -> subprocess.Popen[bytes]:
    node = "ab"[number]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2",
        "--node-rank", str(number), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}",
        "--rdzv-conf", f"is_host={int(number == 0)},join_timeout=60", "--redirects", "2",
        "--log-dir", str(folder / f"logs-{node}"), str(HERE / "worker.py"),
    ]  # fmt: skip
    env = {**os.environ, **case.environment(folder / "mesh", node), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "2"}
    with (folder / node).open("w") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def _kill_workers(mesh: Path, group: str) -> None:
    """Those of this node that are still there: nobody else does it when torchrun is killed."""
    for path in mesh.glob("pid.*"):
        pid, home = path.read_text().split()
        if home == group:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _wait_running(mesh: Path) -> None:
    until = time.monotonic() + BOUND_S
    while len(list(mesh.glob("runs.*"))) < 4:
        if time.monotonic() > until:
            raise AssertionError(f"the workers did not come to run within {BOUND_S:g} s")
        time.sleep(0.05)


def score(answers: list[Answer]) -> Counter[str]:
    """How many were right, and how many wrong though said to be certain."""
    return Counter(
        right=sum(answer.right for answer in answers),
        certain=sum(answer.certain and answer.right for answer in answers),
        deceived=sum(answer.certain and not answer.right for answer in answers),
        jobs=len(answers),
    )
