"""Plays schedules with real processes: ranks that are forked, train over gloo, and get SIGKILL at any moment."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
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
ECHO_S = 2.0
"""So long after the failure of a rank the end of one that was killed may be seen: in the order of pids, not of time."""
KILLED_LATE_S = 0.03
"""At most so long after its last step a life is killed: in the middle of a save, of loading, of the next step."""
LARGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Memory in pages of 2 MB, of which a fork copies a 500th as many entries. For an interpreter with torch that takes
3 ms of processor time in the place of 11 to 16. C libraries other than glibc, from 2.35 on, take no notice."""


class Hung(AssertionError):
    """A life did not end."""


@contextmanager
def pool_of(jobs: int, forks: bool, variables: Mapping[str, str] | None = None) -> Iterator[ProcessPoolExecutor]:
    """New interpreters that play parts of a campaign side by side. forks: whether what is played forks much.
    variables: of their environment, too."""
    more = {**(LARGE_PAGES if forks else {}), **(variables or {})}
    before = {name: os.environ.get(name) for name in more}
    os.environ |= more  # of interpreters that begin from here on
    # A fork of one that has used torch's threads may hang. Not daemons, which may have no children.
    try:
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, spawned, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def play(schedule: Schedule, directory: Path) -> Played:
    """All lives of a schedule, with checkpoints in `directory`."""
    played = Played()
    for number, life in enumerate(schedule.lives):
        records = directory / f"life{number}"
        records.mkdir(parents=True)

        def main(rank: int, victim: bool, life: Life = life, records: Path = records) -> None:
            _train(schedule, life, rank, victim, directory, records)

        live(schedule, schedule.seed, life.ranks, records, main)
        _read(played, records, life.ranks)
    report = verify(directory / "checkpoints")
    if not report.proved:
        played.wrong += list(report.lines)
    newest = max((directory / "checkpoints").glob("step-*/ledger.json"), key=lambda path: _order(path.parent.name))
    played.ledger = Ledger.from_bytes(newest.read_bytes())
    return played


def _order(name: str) -> tuple[int, int]:
    step, _, again = name.removeprefix("step-").partition("-")
    return int(step), int(again or 1)


def live(what: Any, seed: int, ranks: int, records: Path, main: Callable[[int, bool], None]) -> None:
    """One life: `main` in as many processes as ranks, until all have ended or one has killed itself, and the
    others with it. main: called with the rank, and whether it is to kill itself. Raises AssertionError, Hung."""
    rng = random.Random(f"{seed} {records.name}")
    victim, late_s = rng.randrange(ranks), rng.random() * KILLED_LATE_S
    pids = [_fork(ranks, rank, rank == victim, records, main) for rank in range(ranks)]
    waiting, now = set(pids), time.monotonic()
    killed, late, failed = False, now + LIFE_S, float("inf")
    while waiting:
        pid, status = os.waitpid(-1, os.WNOHANG)
        waiting.discard(pid)
        if pid == 0:
            time.sleep(0.001)  # the ranks of a life are few, and their deaths are what this loop is for
        elif os.WIFSIGNALED(status) and not killed:
            killed, failed = True, float("inf")
            time.sleep(late_s)  # the point of the campaign: a random moment
            _kill(waiting)
        elif status != 0 and not killed:
            # Perhaps because of one that killed itself, whose end is reported later.
            failed = min(failed, time.monotonic() + ECHO_S)
        if time.monotonic() > late:
            _end(waiting)
            raise Hung(f"{what}: a life of {ranks} ranks did not end within {LIFE_S:g} s")
        if failed < (time.monotonic() if waiting else float("inf")):
            _end(waiting)
            raise AssertionError(f"{what}: a rank of {records.name} failed: {_why(records)}")


def _why(records: Path) -> str:
    return "\n".join(path.read_text() for path in records.glob("failed-*"))


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended, and nobody has waited for it yet
            os.killpg(pid, signal.SIGKILL)


def _end(pids: set[int]) -> None:
    """Nothing of a life is left for the next one to wait for."""
    _kill(pids)
    for pid in pids:
        os.waitpid(pid, 0)


def _fork(ranks: int, rank: int, victim: bool, records: Path, main: Callable[[int, bool], None]) -> int:
    pid = os.fork()
    if pid:
        with suppress(OSError):  # the child has done it itself, or has ended
            os.setpgid(pid, pid)  # so that it can be killed by its group from now on
        return pid
    status = 1
    try:
        os.setpgid(0, 0)  # so that loader processes die with their rank
        _join(ranks, rank, records)
        main(rank, victim)
        status = 0
    except BaseException:  # noqa: BLE001 - a forked process must not go on with its parent's program
        (records / f"failed-{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _join(ranks: int, rank: int, records: Path) -> None:
    gc.freeze()  # else a collection in each of its loader processes copies every page
    torch.set_num_threads(1)
    if ranks > 1:
        where = f"file://{records / 'store'}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
    os.environ["LOCAL_RANK"] = str(rank)


def _train(schedule: Schedule, life: Life, rank: int, victim: bool, directory: Path, records: Path) -> None:
    with (records / f"rank{rank}").open("a") as file:

        def record(loader: str, steps: int, samples: list[Any], weight: float) -> None:
            file.write(json.dumps([loader, steps, samples, weight]) + "\n")
            file.flush()

        every = Every(steps=schedule.save_steps, seconds=None)
        run = Run(directory / "checkpoints", seed=schedule.seed, every=every)
        if victim and life.until is not None:
            dies_after(run, run.steps + life.until)
        script.train(run, schedule, life.loader_processes, record)


def dies_after(run: Run, last: int) -> None:
    """SIGKILL to this process and its loader processes once so many steps are committed."""
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
