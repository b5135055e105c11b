"""Random deadlines x phases x world sizes: each save is whole and in time, or was skipped with the reason.

    python -m tests.campaigns.guards.deadlines --runs 300 --jobs 4

Each case forks the ranks of one start of a run, whose steps, saves and deadline are drawn; saves are slowed down. At
the deadline all that still runs is killed, as a scheduler does. The times that the library leaves are those of
`worker/loop/deadline.py` made smaller, so that a case takes seconds. Most of them are waits, so several cases go on at
a time.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from elastic_agent.proto.endings import PREEMPTED
from elastic_agent.worker.checkpoints.folder import Folder

MARGIN_S, UNKNOWN_S = 2.5, 1.5
"""In place of the library's 5 s each: as much less as still covers a busy host."""
TOO_NEAR_S = MARGIN_S / 10
"""Before a deadline that is nearer than this when the first step ends, nothing can be agreed on."""
LOOK_S = 0.005
STOOD_S = MARGIN_S / 10
NOT_JUDGED = f"killed, not judged: this host let a process wait {STOOD_S:g} s or more for a processor"
SAMPLES, BATCH = 4096, 4
_SKIPPED = "are left until the deadline, and a save"


@dataclass(frozen=True)
class Case:
    """One start of a run. Times in seconds."""

    seed: int
    world: int
    step_s: float
    save_s: float
    """How long each save takes beyond the disk's own time."""
    every: int
    deadline_s: float
    """After the begin of the run; below 0: it has passed by then."""
    pause_at: int
    """A step that takes `pause_s` more, as an evaluation does; 0: none."""
    pause_s: float


def draw(seed: int) -> Case:
    """What this seed stands for."""
    rng = random.Random(seed)
    return Case(
        seed,
        world=rng.choice((1, 2, 2, 3, 4)),
        step_s=rng.choice((0.002, 0.01, 0.05)),
        save_s=rng.choice((0.0, 0.1, 0.4)),
        every=rng.choice((5, 20, 1000)),
        deadline_s=rng.choice(
            (-1.0, *(rng.uniform(0.05, 2.5) for _ in range(3)), *(rng.uniform(2.5, 7.0) for _ in range(6)))
        ),
        pause_at=rng.choice((0, 0, rng.randrange(1, 60))),
        pause_s=rng.choice((0.3, 1.5)),
    )


def rank_main(case: Case, rank: int, folder: Path) -> None:
    """One rank: trains until the library stops it; one of a deadline that has passed goes on to the end."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset

    from elastic_agent.worker import Every, Run
    from elastic_agent.worker.checkpoints import writer
    from elastic_agent.worker.loop import deadline

    deadline.MARGIN_S, deadline.UNKNOWN_S = MARGIN_S, UNKNOWN_S
    written = writer.write

    def slowly(*args: object) -> object:
        time.sleep(case.save_s)
        return written(*args)  # type: ignore[arg-type]

    writer.write = slowly  # type: ignore[assignment]
    logging.basicConfig(filename=folder / f"log.{rank}", level=logging.INFO, force=True)
    if case.world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=case.world)
    end_s = time.time() + case.deadline_s
    if rank == 0:
        (folder / "deadline.new").write_text(str(end_s))
        (folder / "deadline.new").rename(folder / "deadline")
    # Of the first rank only: the others follow it. Below, time.sleep stands for work.
    os.environ["ELASTIC_AGENT_ROUND"] = "1"
    if rank == 0:
        os.environ[deadline.OURS] = str(end_s)
    steps = 60 if case.deadline_s < 0 else 1_000_000
    run = Run(folder / "checkpoints", net=torch.nn.Linear(2, 1), every=Every(seconds=None, steps=case.every))
    loader = run.loader(DataLoader(TensorDataset(torch.arange(SAMPLES)), batch_size=BATCH), global_batch=BATCH)
    with open(folder / f"steps.{rank}", "w", buffering=1) as notes:
        for _ in run.batches(loader, steps=steps):
            pause_s = case.pause_s if run.steps + 1 == case.pause_at else 0.0
            notes.write(f"begin {time.time()} {pause_s}\n")
            time.sleep(case.step_s + pause_s)
            run.step()
            notes.write(f"done {run.steps}\n")


def child(case: Case, rank: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        with open(folder / f"err.{rank}", "w") as errors:
            os.dup2(errors.fileno(), 2)
        rank_main(case, rank, folder)
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - the judge reads it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(pids: list[int], folder: Path, case: Case) -> tuple[dict[int, int], float]:
    """Exit codes by rank; all that runs at the deadline is killed then. And the longest time for which this process,
    which only waits, was not let run: the ranks of the case are no better off."""
    ends: dict[int, int] = {}
    began = looked = time.monotonic()
    stood_s = 0.0
    while len(ends) < len(pids):
        for rank, pid in enumerate(pids):
            if rank not in ends:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    ends[rank] = os.waitstatus_to_exitcode(status)
        deadline = folder / "deadline"
        over = case.deadline_s >= 0 and deadline.exists() and time.time() >= float(deadline.read_text())
        if over or time.monotonic() - began > 60:
            for rank, pid in enumerate(pids):
                if rank not in ends:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)
        before, looked = looked, time.monotonic()
        stood_s = max(stood_s, looked - before - LOOK_S)
    return ends, stood_s


def judge(case: Case, ends: dict[int, int], folder: Path) -> tuple[str, str]:
    """What became of the run, and what is wrong with that; empty: nothing."""
    checkpoints = folder / "checkpoints"
    whole = Folder(checkpoints, lambda text: None) if checkpoints.exists() else None
    saved: list[int] = []
    for path in sorted(checkpoints.glob("step-*")) if whole is not None else ():
        try:
            saved.append(whole.verify(path).step)  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001 - whatever it is, the checkpoint is not whole
            return "torn", f"{path.name} is not whole: {error}"
    notes = (folder / "steps.0").read_text().splitlines() if (folder / "steps.0").exists() else []
    done = [int(line.split()[1]) for line in notes if line.startswith("done")]
    text = "".join(path.read_text() for path in folder.glob("log.*"))
    if set(ends.values()) == {PREEMPTED}:
        if saved and done and saved[-1] == done[-1]:
            return "saved in time", ""
        skipped = _SKIPPED in text
        return "skipped with the reason", "" if skipped else f"ended at step {done[-1:]} with {saved} and no reason"
    if set(ends.values()) == {0}:
        right = case.deadline_s < 0 and saved[-1:] == done[-1:]
        return "a deadline that had passed", "" if right else f"exit 0 with {saved} at {done[-1:]}"
    if -signal.SIGKILL in ends.values():
        return _killed(case, notes, text, saved, folder)
    return "failed", f"exit codes {ends}"


def _killed(case: Case, notes: list[str], text: str, saved: list[int], folder: Path) -> tuple[str, str]:
    """Right where the save was whole by then. Else only where there was no time for what the library leaves time for:
    in a step, or right behind one, that was begun before and went on beyond the last moment to end, or where the first
    step began behind that moment."""
    end_s = float((folder / "deadline").read_text())
    last_s, done = end_s - MARGIN_S, [int(line.split()[1]) for line in notes if line.startswith("done")]
    begun = [(float(line.split()[1]), float(line.split()[2])) for line in notes if line.startswith("begin")]
    if not done:
        return "killed before the first step was done", ""
    if begun[0][0] > last_s and _SKIPPED in text:
        return "skipped with the reason, killed before the processes ended", ""
    if saved[-1:] == done[-1:]:
        return "saved in time, killed before the processes ended", ""
    if begun[0][0] + case.step_s > end_s - TOO_NEAR_S:
        return "killed right behind the first step", ""
    # Ranks compare what is asked of them every so many steps, and these went on before as quickly as all before.
    if any(began_s + case.step_s + pause_s > last_s for began_s, pause_s in begun if pause_s):
        return "killed in a step that took longer than all before, or right behind it", ""
    why = (
        f"{last_s:.2f} s was the last time to end; begun {begun[0][0]:.2f}, saved {saved}, the last notes {notes[-2:]}"
    )
    return "killed", why


def play(case: Case) -> tuple[str, str]:
    """Run the case; what became of it, and what is wrong with that."""
    folder = Path(tempfile.mkdtemp(prefix="deadline-"))
    try:
        ends, stood_s = wait([child(case, rank, folder) for rank in range(case.world)], folder, case)
        outcome, wrong = judge(case, ends, folder)
        if wrong and stood_s >= STOOD_S and outcome == "killed":
            return NOT_JUDGED, ""
        if wrong:
            errors = "".join(path.read_text() for path in (*folder.glob("err.*"), *folder.glob("log.*")))
            return outcome, f"{case}: {wrong}\n{errors[-2000:]}"
        return outcome, ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def campaign(runs: int, lasts_s: float, start: int = 0, jobs: int = 1) -> tuple[Counter[tuple[str, int]], list[str]]:
    """How often each outcome was reached by each number of ranks, and what was wrong. jobs: cases at a time."""
    import torch

    import elastic_agent.worker  # noqa: F401 - once, for all that are forked

    torch.set_num_threads(1)
    until = time.monotonic() + lasts_s
    outcomes: Counter[tuple[str, int]] = Counter()
    wrong: list[str] = []
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for case, played in pool.imap_unordered(_play_until, ((draw(start + each), until) for each in range(runs))):
            if played is not None:
                outcome, why = played
                outcomes[outcome, case.world] += 1
                wrong += [why] if why else []
    return outcomes, wrong


def _play_until(given: tuple[Case, float]) -> tuple[Case, tuple[str, str] | None]:
    case, until = given
    return case, play(case) if time.monotonic() < until else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Random deadlines, phases and world sizes.")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--for", dest="lasts_s", type=float, default=600.0, help="at most so many seconds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    given = parser.parse_args()
    outcomes, wrong = campaign(given.runs, given.lasts_s, given.start, given.jobs)
    worlds = sorted({world for _, world in outcomes})
    print("".join(f"{f'{world} ranks':>9}" for world in worlds))
    for outcome in sorted({outcome for outcome, _ in outcomes}):
        print("".join(f"{outcomes[outcome, world]:9}" for world in worlds), "", outcome)
    judged = sum(number for (outcome, _), number in outcomes.items() if outcome != NOT_JUDGED)
    print(f"{judged - len(wrong)} of {judged} right, {outcomes.total() - judged} not judged")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"{sum(each.ru_utime + each.ru_stime for each in used):.0f} s of processor time")
    for why in wrong:
        print(why)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
