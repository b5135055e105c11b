"""Who may commit: a process of an older round that still lives, and shares the file system, commits nothing."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_agent.worker import Every, Run
from elastic_agent.worker.checkpoints.fence import Claim
from elastic_agent.worker.checkpoints.folder import Folder
from elastic_agent.worker.errors import CheckpointNotWritten, WrongState
from support.workers.ranks import Ranks

NEVER = Every(seconds=None)
BOUND_S = 60.0

pytestmark = pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from")


def folder_in(path: Path) -> Folder:
    return Folder(path, lambda text: None)


def test_an_older_round_of_the_job_does_not_begin(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.claim(Claim("new", 3, ("a", "b")))
    with pytest.raises(WrongState, match=r"round 3 of this job writes to .*, and this is round 2, an older one"):
        folder.claim(Claim("old", 2, ("b",)))


def test_a_node_that_was_in_an_earlier_round_is_known_when_it_comes_late(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.claim(Claim("1", 1, ("a",)))
    folder.claim(Claim("2", 2, ("a", "b")))
    folder.claim(Claim("3", 3, ("b",)))
    with pytest.raises(WrongState):
        folder.claim(Claim("late", 2, ("a",)))


def test_the_next_job_begins_with_round_1_where_another_ended_with_round_3(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.claim(Claim("first job", 3, ("a", "b")))
    second = Claim("second job", 1, ("c", "d"))
    folder.claim(second)
    folder.check_claim(second)
    with pytest.raises(WrongState, match=r"round 1 writes to .* now; round 3 is over"):
        folder.check_claim(Claim("first job", 3, ("a", "b")))


def test_without_agents_the_last_start_counts(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.claim(Claim("first"))
    folder.claim(Claim("second"))
    folder.check_claim(Claim("second"))
    with pytest.raises(WrongState, match=r"another start of the run writes to .* now; this one is over"):
        folder.check_claim(Claim("first"))


class Stage:
    """Two pipes by which a test and a worker that it has forked wait for each other."""

    def __init__(self) -> None:
        self._there, self._tell = os.pipe()
        self._go, self._let = os.pipe()

    def pause(self) -> None:
        """In the worker: says that it is here, and waits."""
        os.write(self._tell, b".")
        os.read(self._go, 1)

    def wait(self) -> None:
        """In the test: until the worker is there."""
        assert select.select([self._there], [], [], BOUND_S)[0], "the worker did not come so far"
        os.read(self._there, 1)

    def let(self) -> None:
        os.write(self._let, b".")

    def close(self) -> None:
        for fd in (self._there, self._tell, self._go, self._let):
            os.close(fd)


def saving(directory: Path, number: int, node: str, value: float, before_save: Any = None) -> Any:
    """A worker of one round: loads, takes one step, saves. Gives what it loaded, and what its save said."""
    os.environ.update(ELASTIC_AGENT_ROUND=str(number), ELASTIC_AGENT_NODE=node)
    run = Run(directory, every=NEVER, net=torch.nn.Linear(1, 1))
    loaded = [run.steps, run.vars.get("value")]
    run.vars.value = value
    run.steps += 1
    run._commits += 1
    if before_save is not None:
        before_save()
    try:
        run.close()
    except CheckpointNotWritten as error:
        return [loaded, str(error)]
    return [loaded, ""]


@pytest.mark.parametrize("paused", ["before it saves", "with all files written", "just before the rename"])
def test_a_worker_of_an_older_round_that_still_lives_commits_nothing(
    tmp_path: Path, paused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process of round 1 stands still, cut off from its agent; one of round 2 starts and saves; the first goes
    on. It shares the file system, and nothing else."""
    directory, stage = tmp_path / "checkpoints", Stage()

    def stale(_: int) -> Any:
        if paused == "before it saves":
            return saving(directory, 1, "node-a", 1.0, before_save=stage.pause)
        where = "check_claim" if paused == "with all files written" else "place"
        real = getattr(Folder, where)

        def paused_there(*arguments: Any) -> Any:
            stage.pause()
            return real(*arguments)

        monkeypatch.setattr(Folder, where, paused_there)
        return saving(directory, 1, "node-a", 1.0)

    (tmp_path / "old").mkdir()
    old = Ranks(stale, 1, tmp_path)
    try:
        stage.wait()
        new = Ranks(lambda _: saving(directory, 2, "node-b", 2.0), 1, tmp_path).results()[0]
        stage.let()
        said = old.results()[0][1]
    finally:
        stage.let()
        stage.close()
    assert new == [[0, None], ""]
    if paused == "just before the rename":
        assert "No such file" in said  # the newer round has removed what was half written
    else:
        assert "writes to" in said
        assert "round 1 is over" in said
    (kept,) = folder_in(directory).kept()
    assert folder_in(directory).verify(kept.path).round == 2
