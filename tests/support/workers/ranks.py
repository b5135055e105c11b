"""Ranks of a training job as forked processes of the test: torch is loaded already, so that each starts in no time."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

BOUND_S = 60.0
"""Longer than any of these jobs takes."""


class Ranks:
    """Processes, one a rank, each with what `act(rank)` returned."""

    def __init__(self, act: Callable[[int], Any], count: int, directory: Path, group: bool = True) -> None:
        """directory: for files of these processes. group: they begin with a gloo process group of all."""
        self._where = Path(tempfile.mkdtemp(dir=directory))
        # Has an end as soon as every rank has closed it, or is gone.
        self._all_done, self._not_done = os.pipe()
        try:
            self.pids = [self._fork(act, rank, count, group) for rank in range(count)]
        finally:
            os.close(self._all_done)
            os.close(self._not_done)

    def _fork(self, act: Callable[[int], Any], rank: int, count: int, group: bool) -> int:
        if pid := os.fork():
            return pid
        try:
            hung = (self._where / f"hung-{rank}").open("w")
            faulthandler.dump_traceback_later(0.8 * BOUND_S, file=hung)  # so that one that is killed says where it was
            torch.set_num_threads(1)
            os.environ["LOCAL_RANK"] = str(rank)
            if group and count > 1:
                dist.init_process_group(
                    "gloo", init_method=f"file://{self._where / 'store'}", rank=rank, world_size=count
                )
            made = act(rank)
            (self._where / f"made-{rank}").write_text(json.dumps(made))
            # One that ends closes connections, and another that is still in a collective would fail by that.
            os.close(self._not_done)
            os.read(self._all_done, 1)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a forked process must not go on with its parent's program
            (self._where / f"failed-{rank}").write_text(traceback.format_exc())
        finally:
            os._exit(1)

    def statuses(self) -> list[int]:
        """Waits for all: the exit status of each, or minus its signal. Kills what does not end within the bound."""
        deadline, found = time.monotonic() + BOUND_S, []
        for pid in self.pids:
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.005)
            found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return found

    def why(self, rank: int) -> str:
        """The traceback of a rank that failed, or that has taken most of the bound."""
        paths = (self._where / f"{how}-{rank}" for how in ("failed", "hung"))
        return "\n".join(path.read_text() for path in paths if path.exists())

    def results(self) -> list[Any]:
        """Waits for all; fails where one did."""
        statuses = self.statuses()
        failed = "\n".join(self.why(rank) for rank in range(len(self.pids)))
        assert not any(statuses), f"ended with {statuses}:\n{failed}"
        return [json.loads((self._where / f"made-{rank}").read_text()) for rank in range(len(self.pids))]


def play(act: Callable[[int], Any], count: int, directory: Path) -> Sequence[Any]:
    """What `act(rank)` returned on each of `count` ranks."""
    return Ranks(act, count, directory).results()
