"""Measurements of workers' output: how much reading it slows the workers, and which lines are torn, late or lost.

Files and console are in memory where there is a tmpfs, so that the disk's speed does not matter.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import processes
from .run import Agent, Run, Worker

LINES = 1_000_000
"""Lines of all workers together."""
LINE_BYTES = 100
WRITE_LIMIT_S = 120.0
EXIT_LIMIT_S = 60.0
IN_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A directory for one run's files and console, in memory if possible."""
    with tempfile.TemporaryDirectory(prefix="bench-logs-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as path:
        yield Path(path)


def tee(run: Run, place: Path, nproc: int, style: str) -> tuple[Agent, list[Worker]]:
    """Start a job whose workers write `LINES` lines together in this style; returns when they have written them."""
    flags = ["--standalone", "--nproc-per-node", str(nproc), "--tee", "3", "--log-dir", str(place / "logs")]
    agent = run.start(flags, f"{style}:{LINES // nproc}", place / "console")
    workers = run.wait_world(nproc)
    for worker in workers:
        run.order(worker, "go")
    run.wait_world(nproc, event="written", limit_s=WRITE_LIMIT_S)
    return agent, workers


def end(run: Run, agent: Agent, workers: list[Worker]) -> float:
    """Have all workers exit 0; returns the time at which the launcher has exited."""
    for worker in workers:
        run.order(worker, "exit 0")
    return run.wait(lambda: agent.ended, EXIT_LIMIT_S, "exit of the launcher")


def writing(run: Run, nproc: int, style: str) -> Iterator[float]:
    """The first worker's first line to the last worker's last write: by how much reading slows the workers."""
    with folder() as place:
        _, workers = tee(run, place, nproc, style)
        yield max(w.at["written"] for w in workers) - min(w.at["writing"] for w in workers)


def job(run: Run, nproc: int, style: str) -> Iterator[float]:
    """The first worker's first line to the launcher's exit, when all is on the console and in the files."""
    with folder() as place:
        agent, workers = tee(run, place, nproc, style)
        yield end(run, agent, workers) - min(w.at["writing"] for w in workers)


def damage(run: Run, nproc: int, style: str) -> Iterator[float]:
    """Lines that are torn, late, doubled or lost, on the console and in the files, after the launcher's exit."""
    with folder() as place:
        end(run, *tee(run, place, nproc, style))
        files = sorted((place / "logs").rglob("stdout.log"))
        yield float(damaged([place / "console"], nproc) + damaged(files, nproc))


def memory(run: Run, nproc: int, style: str) -> Iterator[float]:
    """Peak RSS of the launcher's largest process while it passes the lines on, MiB."""
    with folder() as place:
        agent, _ = tee(run, place, nproc, style)
        yield max(processes.peak_mib(pid) for pid in run.overhead(agent))


def damaged(paths: list[Path], nproc: int) -> int:
    """How many lines of a job are not in these files exactly once, whole and in their rank's order; other lines count
    too. A line may have a prefix."""
    seen = [bytearray(LINES // nproc) for _ in range(nproc)]
    after = [-1] * nproc
    bad = 0
    for path in paths:
        with open(path, "rb") as file:
            for line in file:
                rank, number = parsed(line)
                if not (0 <= rank < nproc and 0 <= number < len(seen[rank])) or seen[rank][number]:
                    bad += 1
                    continue
                seen[rank][number] = 1
                bad += number < after[rank]
                after[rank] = max(after[rank], number)
    return bad + sum(ranks.count(0) for ranks in seen)


def parsed(line: bytes) -> tuple[int, int]:
    """Rank and number of a whole line of a worker; (-1, -1) for any other line."""
    text = line[max(0, line.find(b"L")) :]
    parts = text.split(b":")
    if len(text) != LINE_BYTES or len(parts) != 3 or not parts[1].isdigit() or parts[2].strip(b"x") != b"\n":
        return -1, -1
    return (int(parts[0][1:]), int(parts[1])) if parts[0][:1] == b"L" and parts[0][1:].isdigit() else (-1, -1)
