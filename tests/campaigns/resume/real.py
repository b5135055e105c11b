"""Plays schedules with real processes: ranks that are forked, train over gloo, and get SIGKILL at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from elastic_agent.worker.ledger import Ledger
from elastic_agent.worker.run import Run
from elastic_agent.worker.schedule import Every
from elastic_agent.worker.verify import verify

from . import script
from .in_process import Played

if TYPE_CHECKING:
    from .schedule import Life, Schedule

LIFE_S = 120.0
"""Longer than any life takes; one that takes longer is a hang, and wrong."""
KILLED_LATE_S = 0.03
"""At most so long after its last step a life is killed: in the middle of a save, of loading, of the next step."""


class Hung(AssertionError):
    """A life did not end."""


def play(schedule: Schedule, directory: Path) -> Played:
    """All lives of a schedule, with checkpoints in `directory`."""
    played = Played()
    for number, life in enumerate(schedule.lives):
        records = directory / f"life{number}"
        records.mkdir(parents=True)
        _live(schedule, life, directory, records)
        _read(played, records, life.ranks)
    report = verify(directory / "checkpoints")
    if not report.proved:
        played.wrong += list(report.lines)
    newest = max((directory / "checkpoints").glob("step-*/ledger.json"), key=lambda path: _order(path.parent.name))
    played.ledger = Ledger.from_json(json.loads(newest.read_bytes()))
    return played


def _order(name: str) -> tuple[int, int]:
    step, _, again = name.removeprefix("step-").partition("-")
    return int(step), int(again or 1)


def _live(schedule: Schedule, life: Life, directory: Path, records: Path) -> None:
    rng = random.Random(f"{schedule.seed} {records.name}")
    victim, late_s = rng.randrange(life.ranks), rng.random() * KILLED_LATE_S
    pids = [_fork(schedule, life, rank, rank == victim, directory, records) for rank in range(life.ranks)]
    waiting, deadline = set(pids), time.monotonic() + LIFE_S
    killed = False
    while waiting:
        pid, status = os.waitpid(-1, os.WNOHANG if time.monotonic() < deadline else 0)
        if pid == 0:
            time.sleep(0.001)  # the ranks of a life are few, and their deaths are what this loop is for
            if time.monotonic() > deadline - 1.0:
                _kill(waiting)
                raise Hung(f"{schedule}: a life of {life.ranks} ranks did not end within {LIFE_S:g} s")
            continue
        waiting.discard(pid)
        if os.WIFSIGNALED(status) and not killed:
            killed = True
            time.sleep(late_s)  # the point of the campaign: a random moment
            _kill(waiting)
        elif status != 0 and not killed:
            _kill(waiting)
            raise AssertionError(f"{schedule}: a rank of {records.name} ended with status {status}: {_why(records)}")


def _why(records: Path) -> str:
    return "\n".join(path.read_text() for path in records.glob("failed-*"))


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended, and nobody has waited for it yet
            os.killpg(pid, signal.SIGKILL)


def _fork(schedule: Schedule, life: Life, rank: int, victim: bool, directory: Path, records: Path) -> int:
    pid = os.fork()
    if pid:
        with suppress(OSError):  # the child has done it itself, or has ended
            os.setpgid(pid, pid)  # so that it can be killed by its group from now on
        return pid
    status = 1
    try:
        os.setpgid(0, 0)  # so that loader processes die with their rank
        _rank(schedule, life, rank, victim, directory, records)
        status = 0
    except BaseException:  # noqa: BLE001 - a forked process must not go on with its parent's program
        (records / f"failed-{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _rank(schedule: Schedule, life: Life, rank: int, victim: bool, directory: Path, records: Path) -> None:
    torch.set_num_threads(1)
    if life.ranks > 1:
        where = f"file://{records / 'store'}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=life.ranks)
    os.environ["LOCAL_RANK"] = str(rank)
    with (records / f"rank{rank}").open("a") as file:

        def record(loader: str, steps: int, samples: list[Any], weight: float) -> None:
            file.write(json.dumps([loader, steps, samples, weight]) + "\n")
            file.flush()

        every = Every(steps=schedule.save_steps, seconds=None)
        run = Run(directory / "checkpoints", seed=schedule.seed, every=every)
        if victim and life.until is not None:
            _dies_after(run, run.steps + life.until)
        script.train(run, schedule, life.loader_processes, record)


def _dies_after(run: Run, last: int) -> None:
    step = run.step

    def stepping() -> None:
        step()
        if run.steps >= last:
            os.killpg(0, signal.SIGKILL)

    run.step = stepping  # type: ignore[method-assign]


def _read(played: Played, records: Path, ranks: int) -> None:
    """Adds what the ranks of a life recorded, where all of them did."""
    seen: dict[tuple[str, int, int], list[tuple[int, list[Any], float]]] = {}
    for rank in range(ranks):
        path = records / f"rank{rank}"
        counts: dict[tuple[str, int], int] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                loader, steps, samples, weight = json.loads(line)
            except ValueError:
                continue  # the last line of a rank that was killed while it wrote
            number = counts[loader, steps] = counts.get((loader, steps), 0) + 1
            plain = [(index, tuple(drawn)) for index, drawn in samples]
            seen.setdefault((loader, steps, number), []).append((rank, plain, weight))
    played.merge({place: parts for place, parts in seen.items() if len(parts) == ranks})
