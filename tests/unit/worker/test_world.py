"""What ranks tell each other: messages of any length, by rank, on real gloo."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elastic_agent.worker import world
from elastic_agent.worker.world import World
from support.source_tree import ROOT
from support.workers.ranks import play

pytestmark = pytest.mark.slow

SHORT = world._SHORT
FORKING = """
import atexit, logging, os, signal, sys
from pathlib import Path
from elastic_agent.worker.failing import end_when_uncaught
from elastic_agent.worker.world import World
from support.workers.ranks import play

def act(rank):
    World()
    end_when_uncaught(logging.getLogger(), rank, 2)
    sys.excepthook, hook = sys.__excepthook__, sys.excepthook
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(30)
    with open(os.devnull, "w") as sys.stderr:
        hook(ValueError, ValueError("not the rank's"), None)
    atexit._run_exitfuncs()
    os._exit(7)

print(play(act, 2, Path(sys.argv[1])))
"""


def test_messages_of_any_length_come_whole_to_every_rank(tmp_path: Path) -> None:
    """Also empty ones, those that just fit into one exchange or do not, and short ones beside long ones."""
    lengths = [(0, 0), (1, 0), (SHORT, SHORT), (SHORT + 1, 3), (3, SHORT - 1), (5 * SHORT, SHORT + 7), (0, 9 * SHORT)]

    def message(rank: int, length: int) -> bytes:
        return bytes((rank + 7 * at) % 256 for at in range(length))

    def act(rank: int) -> list[list[bool]]:
        made = World()
        found = [made.gather_bytes(message(rank, each[rank])) for each in lengths]
        return [
            [part == message(other, each[other]) for other, part in enumerate(parts)]
            for each, parts in zip(lengths, found, strict=True)
        ]

    assert play(act, 2, tmp_path) == [[[True, True]] * len(lengths)] * 2


def test_messages_stay_in_host_memory_whatever_torchs_default_device_is(tmp_path: Path) -> None:
    """As behind `torch.set_default_device("cuda")`, for which `meta` stands: it has no memory to read from."""

    def act(rank: int) -> Any:
        torch.set_default_device("meta")
        world = World()
        lengths = [len(part) for part in world.gather_bytes(bytes(3000 * (rank + 1)))]
        return [lengths, world.gather(rank), world.broadcast("said"), world.most([rank, 3]), world.sum([0.5])]

    assert play(act, 2, tmp_path) == [[[3000, 6000], [0, 1], "said", [1, 3], [1.0]]] * 2


def test_no_rank_goes_on_before_all_have_their_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is refused in its next line ends; another that still connects would name the connection as the cause."""
    new_group = world._new_group

    def slow_on_rank_0(members: list[int] | None) -> object:
        made = new_group(members)
        if dist.get_rank() == 0:
            time.sleep(0.3)  # what the other rank would be ahead by
            (tmp_path / "connected").touch()
        return made

    monkeypatch.setattr(world, "_new_group", slow_on_rank_0)

    def act(rank: int) -> bool:
        World()
        return (tmp_path / "connected").exists()

    assert play(act, 2, tmp_path) == [True, True]


def test_a_rank_that_waits_for_another_says_so_once_and_waits_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation on one rank alone stood still without a word."""
    monkeypatch.setattr(world, "PATIENCE_S", 0.2)

    def act(rank: int) -> list[object]:
        made, said = World(), list[str]()

        def waited() -> None:
            said.append("waited")
            (tmp_path / "waited").touch()

        made.waited = waited
        while rank == 1 and not (tmp_path / "waited").exists():
            time.sleep(0.01)
        return [made.most([rank, 7 - rank]), said]

    assert play(act, 2, tmp_path) == [[[1, 7], ["waited"]], [[1, 7], []]]


def test_a_group_of_ours_gives_up_no_sooner_than_the_training_own(tmp_path: Path) -> None:
    """Ranks may wait in ours while one works alone for as long as the script allows in init_process_group."""

    def act(rank: int) -> list[float]:
        training: Any = dist.group.WORLD
        own = training._get_backend(torch.device("cpu")).options
        found = []
        for hours in (2.0, 0.1):
            own._timeout = timedelta(hours=hours)
            options: Any = World().group._get_backend(torch.device("cpu")).options
            found.append(options._timeout.total_seconds() / 3600)
        return found

    assert play(act, 2, tmp_path) == [[2.0, 0.5]] * 2


def test_a_process_that_a_rank_forks_ends_by_itself_and_as_none_of_the_ranks(tmp_path: Path) -> None:
    """It has none of the threads of the process groups: to leave them, it would wait for ever. In a program of its own,
    as what other tests have loaded has something to do at a fork and at the end, too."""
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / '.typing'}:{ROOT / 'tests'}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[7, 7]\n", done.stderr


def test_runs_one_after_the_other_share_one_group_until_the_trainings_own_is_left(tmp_path: Path) -> None:
    """A hundred folds would have a hundred groups, each with threads and sockets."""

    def act(rank: int) -> list[Any]:
        first, *more = [World() for _ in range(3)]
        same = all(each.group is first.group for each in more)
        dist.destroy_process_group()
        gone = first.group is None
        store = f"file://{tmp_path / 'again'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
        return [same, gone, World().gather(rank)]

    assert play(act, 2, tmp_path) == [[True, True, [0, 1]]] * 2
