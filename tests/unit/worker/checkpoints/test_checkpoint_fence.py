"""Who may commit: a process of an older round that still lives, and shares the file system, commits nothing."""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_agent.worker import Every, Run
from elastic_agent.worker.checkpoints.fence import Claim
from elastic_agent.worker.checkpoints.folder import Folder
from elastic_agent.worker.checkpoints.manifest import Manifest
from elastic_agent.worker.checkpoints.writer import Writer
from elastic_agent.worker.errors import CheckpointNotWritten, WrongState
from elastic_agent.worker.verify import verify
from support.workers.ranks import Ranks, play

NEVER = Every(seconds=None)
BOUND_S = 60.0

pytestmark = pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from")


def folder_in(path: Path) -> Folder:
    return Folder(path, lambda text: None)


def test_an_older_round_of_the_job_does_not_begin(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.claim(Claim("new", 3, ("a", "b")))
    with pytest.raises(WrongState, match=r"round 3 of this job writes to .* now; this is round 2, which is over"):
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


def test_a_start_on_a_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = Folder(tmp_path, lambda text: None)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=f"No space left on device: {tmp_path} has no room for round.json, .* free a MiB"):
        folder.claim(Claim("mine"))


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


def advance(directory: Path, number: int, node: str, step: int, value: float) -> Any:
    """A worker of one round: loads, goes on to a step, saves. Gives what it loaded, and what its save said."""
    os.environ.update(ELASTIC_AGENT_ROUND=str(number), ELASTIC_AGENT_NODE=node, LOCAL_RANK="0")
    run = Run(directory, every=NEVER, net=torch.nn.Linear(1, 1))
    loaded = [run.steps, run.vars.get("value")]
    if step > run.steps:
        run.vars.value, run.steps, run._commits = value, step, run._commits + 1
    try:
        run.close()
    except CheckpointNotWritten as error:
        return [loaded, str(error)]
    return [loaded, ""]


def at_the_name(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, step: int, before: Callable[[], Any] = lambda: None
) -> None:
    """In a worker: a signal to itself between the word that its round is the newest, and the rename of this step.
    before: what it does there first."""
    real = Folder.place

    def signalled(self: Folder, *arguments: Any) -> Any:
        if arguments[1].step == step:
            before()
            signal.pthread_kill(threading.get_ident(), number)
        return real(self, *arguments)

    monkeypatch.setattr(Folder, "place", signalled)


def advance_to(directory: Path, step: int, _: int) -> Any:
    """A rank of round 1, on node a."""
    return advance(directory, 1, "a", step, float(step))


def freeze() -> None:
    """Stops this process before the next line: of a signal to the process another thread might be the first to know."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def until_frozen(pid: int) -> None:
    deadline = time.monotonic() + BOUND_S
    while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None:
        assert time.monotonic() < deadline, "the worker was not stopped"
        time.sleep(0.005)


def thawed(frozen: Ranks, rank: int = 0) -> None:
    """Lets a stopped worker go on, and waits for the end of all ranks."""
    os.kill(frozen.pids[rank], signal.SIGCONT)
    frozen.statuses()


def stale_while(frozen: Callable[[int], Any], meanwhile: Callable[[], Any], count: int, tmp_path: Path) -> Any:
    """Runs a job whose rank 0 stops itself; what `meanwhile` gives; then lets rank 0 go on to its end."""
    ranks = Ranks(frozen, count, tmp_path)
    try:
        until_frozen(ranks.pids[0])
        return meanwhile()
    finally:
        thawed(ranks)


@pytest.mark.parametrize("frozen_step", [2, 9])
def test_a_worker_frozen_between_the_word_and_the_rename_commits_nothing_when_it_goes_on(
    tmp_path: Path, frozen_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP, a new round of its own on the same directory, SIGCONT; the step is the new round's, or a later one."""
    directory = tmp_path / "checkpoints"
    play(lambda _: advance(directory, 1, "a", 1, 1.0), 1, tmp_path)

    def frozen(_: int) -> Any:
        at_the_name(monkeypatch, signal.SIGSTOP, frozen_step)
        return advance(directory, 1, "a", frozen_step, 2.0)

    def newer() -> Any:
        return play(lambda _: advance(directory, 2, "b", 2, 3.0), 1, tmp_path)[0]

    assert stale_while(frozen, newer, 1, tmp_path) == [[1, 1.0], ""]
    assert [kept.path.name for kept in folder_in(directory).kept()] == ["step-000002", "step-000001"]
    assert play(lambda _: advance(directory, 3, "b", 2, 0.0), 1, tmp_path)[0] == [[2, 3.0], ""]
    assert [kept.path.name for kept in folder_in(directory).kept()] == ["step-000002", "step-000001"]
    assert verify(directory).lines[0].startswith("step-000002: whole")


def test_what_a_frozen_worker_commits_on_a_node_of_its_own_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes without a shared directory. Node a is frozen at its commit of step 5 and node b dies there; round 2 is
    node b alone, goes on from step 1 and commits step 3; then node a commits step 5, and both meet in round 3."""
    play(lambda rank: advance(tmp_path / f"node{rank}", 1, "ab"[rank], 1, 1.0), 2, tmp_path)

    there, comes = os.pipe()

    def frozen(rank: int) -> Any:
        if rank:  # which node a would miss while it is still in the exchange
            at_the_name(monkeypatch, signal.SIGKILL, 5, lambda: os.read(there, 1))
        else:
            at_the_name(monkeypatch, signal.SIGSTOP, 5, lambda: os.write(comes, b"x"))
        return advance(tmp_path / f"node{rank}", 1, "ab"[rank], 5, 5.0)

    def newer() -> Any:
        return play(lambda _: advance(tmp_path / "node1", 2, "b", 3, 3.0), 1, tmp_path)[0]

    assert stale_while(frozen, newer, 2, tmp_path) == [[1, 1.0], ""]
    os.close(there)
    os.close(comes)
    assert (tmp_path / "node0" / "step-000005").exists()
    both = play(lambda rank: advance(tmp_path / f"node{rank}", 3, "ab"[rank], 3, 0.0), 2, tmp_path)
    assert both == [[[3, 3.0], ""]] * 2
    why = (tmp_path / "node0" / "step-000005.stale" / "WHY.txt").read_text()
    assert why == "round 1 committed step 5 after a later start had gone on from its step 1\n"
    assert (tmp_path / "node0" / "step-000003").exists()


@pytest.mark.parametrize("stale_step", [3, 7])
def test_a_commit_by_a_file_system_that_shows_an_old_fence_is_not_loaded_and_costs_no_checkpoint(
    tmp_path: Path, stale_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As network file systems do for seconds: the stale worker reads the `round.json` of before, and its folder is made
    when the newer round has looked around."""
    directory = tmp_path / "checkpoints"
    play(lambda _: advance(directory, 1, "a", 1, 1.0), 1, tmp_path)

    def frozen(_: int) -> Any:
        real = Writer.start

        def start(self: Writer, order: Any) -> None:
            freeze()
            real(self, order)

        monkeypatch.setattr(Writer, "start", start)
        monkeypatch.setattr(Folder, "check_claim", lambda *_: None)
        return advance(directory, 1, "a", stale_step, 9.0)

    def newer() -> Any:
        return play(lambda _: advance(directory, 2, "b", 3, 3.0), 1, tmp_path)[0]

    assert stale_while(frozen, newer, 1, tmp_path) == [[1, 1.0], ""]
    stale = max(path for path in directory.glob("step-*"))
    assert Manifest.read(stale).round == 1
    assert "left behind" in verify(directory).lines[0]
    # It takes no place among the two newest that stay.
    assert play(lambda _: advance(directory, 3, "b", 4, 4.0), 1, tmp_path)[0] == [[3, 3.0], ""]
    assert [kept.step for kept in folder_in(directory).kept()] == [4, 3]
    assert (directory / f"{stale.name}.stale").exists()


def test_a_worker_frozen_before_it_retains_removes_nothing_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own commits are newer than what the newer round goes back to, as after damage."""
    directory = tmp_path / "checkpoints"
    for step in (1, 2):
        play(partial(advance_to, directory, step), 1, tmp_path)

    def frozen(_: int) -> Any:
        real = Writer._retain

        def retain(self: Writer) -> None:
            freeze()
            real(self)

        monkeypatch.setattr(Writer, "_retain", retain)
        return advance(directory, 1, "a", 3, 3.0)

    def newer() -> Any:
        for step in (2, 3):
            state = directory / f"step-00000{step}" / "state.pt"
            state.write_bytes(bytes(state.stat().st_size))
        loaded = play(lambda _: advance(directory, 2, "b", 0, 0.0), 1, tmp_path)[0]
        for step in (2, 3):  # somebody mends them, and they have their names again
            (directory / f"step-00000{step}.bad").rename(directory / f"step-00000{step}")
        return loaded

    assert stale_while(frozen, newer, 1, tmp_path) == [[1, 1], ""]
    assert (directory / "step-000001").exists()


def test_a_worker_frozen_at_the_mark_of_completion_leaves_none_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "checkpoints"

    def frozen(_: int) -> Any:
        os.environ.update(ELASTIC_AGENT_ROUND="1", ELASTIC_AGENT_NODE="a")
        run = Run(directory, every=NEVER, net=torch.nn.Linear(1, 1))
        run.close()
        real = Folder.check_claim

        def check(self: Folder, mine: Claim) -> None:
            real(self, mine)
            freeze()

        monkeypatch.setattr(Folder, "check_claim", check)
        run.complete()

    def newer() -> Any:
        return play(lambda _: advance(directory, 2, "b", 2, 2.0), 1, tmp_path)[0]

    assert stale_while(frozen, newer, 1, tmp_path) == [[0, None], ""]
    assert not (directory / "complete.json").exists()
    assert not list(directory.glob(".*"))


def test_checkpoints_of_another_training_are_told_of_and_not_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a node that a job gets in the place of a lost one, where an earlier job has used the same path."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for directory, steps in ((ours, 2), (theirs, 7)):
        run = Run(directory, every=Every(steps=1, seconds=None))
        for _ in range(steps):
            run.step()
        run.close()
    for kept in folder_in(theirs).kept():
        kept.path.rename(ours / kept.path.name)
    run = Run(ours, every=NEVER)
    assert run.steps == 7
    assert f"there are checkpoints of several trainings in {ours} " in caplog.text
    assert "it goes on with the one of step 7, and sets the others aside at its first checkpoint" in caplog.text
    assert (ours / "step-000002").exists()
    run.step()
    run.close()
    assert [kept.step for kept in folder_in(ours).kept()] == [8, 7]
    assert sorted(path.name for path in ours.glob("*.stale")) == ["step-000001.stale", "step-000002.stale"]
    caplog.clear()
    assert Run(ours, every=NEVER).steps == 8
    assert "several trainings" not in caplog.text
