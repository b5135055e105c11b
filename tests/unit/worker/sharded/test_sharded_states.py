"""States that are sharded or large: each rank writes its part, and any number of ranks reads them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

# Imported before the ranks are forked from here: each would take seconds for them.
import torch._dynamo
import torch.distributed.checkpoint.format_utils
import torch.distributed.fsdp

from elastic_agent.worker import Every, Run, persistence
from elastic_agent.worker.checkpoints.folder import Folder
from elastic_agent.worker.errors import NotResumable
from elastic_agent.worker.verify import verify
from support.workers.ranks import Ranks, play
from support.workers.sharding import shard, whole

NEVER = Every(seconds=None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from"),
]


def model(sharded: bool, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    net: Any = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    if sharded:
        shard(net)
    return net


def train(directory: Path, sharded: bool, steps: int, seed: int = 0) -> Any:
    """Loads, trains on the same data on every rank, saves; gives what was loaded and what was saved."""
    net = model(sharded, seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    run = Run(directory, every=NEVER, model=net, optimizer=optimizer)
    loaded = whole([net.state_dict(), optimizer.state_dict()])
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(4, 5)).square().sum().backward()
        optimizer.step()
        run.step()
        run._commits += 1  # there is no loader here
    run.close()
    return [loaded, whole([net.state_dict(), optimizer.state_dict()])]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_a_sharded_model_and_its_optimizer_are_resharded_at_load(tmp_path: Path, before: int, after: int) -> None:
    """FSDP2 over `before` ranks, then over `after` ranks; over one rank, the plain model."""
    directory = tmp_path / "checkpoints"
    saved = play(lambda _: train(directory, sharded=before > 1, steps=3), before, tmp_path)[0][1]
    for loaded, _ in play(lambda _: train(directory, sharded=after > 1, steps=0, seed=9), after, tmp_path):
        assert loaded == saved


def test_every_rank_writes_its_part_and_one_manifest_has_all(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    play(lambda _: train(directory, sharded=True, steps=1), 2, tmp_path)
    (kept,) = Folder(directory, lambda text: None).kept()
    manifest = Folder(directory, lambda text: None).verify(kept.path)
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata", "pieces.json", "state.pt"} <= set(manifest.files)
    assert {path.name for path in kept.path.iterdir()} == {*manifest.files, "manifest.json"}
    assert verify(directory).proved


def test_torchs_distributed_checkpoint_reads_it(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    saved = play(lambda _: train(directory, sharded=True, steps=2), 2, tmp_path)[0][1]
    (kept,) = Folder(directory, lambda text: None).kept()

    def load(_: int) -> Any:
        net = model(True, seed=5)
        state = {"model": net.state_dict()}
        torch.distributed.checkpoint.state_dict_loader.load(state, checkpoint_id=str(kept.path))
        return whole(state["model"])

    assert play(load, 3, tmp_path) == [saved[0]] * 3
    torch.distributed.checkpoint.format_utils.dcp_to_torch_save(str(kept.path), tmp_path / "whole.pt")
    unpacked = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert whole(unpacked["model"]) == saved[0]
    assert whole(unpacked["optimizer"]["state"]) == saved[1]["state"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_large_replicated_state_is_written_in_parts_by_all(tmp_path: Path, ranks: int) -> None:
    directory = tmp_path / "checkpoints"

    def act(_: int) -> Any:
        persistence.SHARED_BYTES = 1000
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(100, 77), torch.nn.Linear(77, 33))
        run = Run(directory, every=NEVER, model=net, tied=torch.nn.ModuleList([net]))
        run._commits += 1
        run.close()
        return whole(net.state_dict())

    saved = play(act, ranks, tmp_path)[0]
    (kept,) = Folder(directory, lambda text: None).kept()
    sizes = [path.stat().st_size for path in kept.path.glob("__*_0.distcp")]
    assert len(sizes) == (ranks if ranks > 1 else 0)
    assert not sizes or max(sizes) < 1.3 * min(sizes)

    def load(_: int) -> Any:
        net = torch.nn.Sequential(torch.nn.Linear(100, 77), torch.nn.Linear(77, 33))
        Run(directory, every=NEVER, model=net, tied=torch.nn.ModuleList([net]))
        return whole(net.state_dict())

    assert play(load, 2, tmp_path) == [saved] * 2


def test_a_small_state_is_written_by_one_rank(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    play(lambda _: train(directory, sharded=False, steps=1), 2, tmp_path)
    (kept,) = Folder(directory, lambda text: None).kept()
    assert {path.name for path in kept.path.iterdir()} == {"state.pt", "ledger.json", "manifest.json"}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_while_all_write_leaves_the_checkpoint_before(
    tmp_path: Path, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "checkpoints"
    play(lambda _: train(directory, sharded=True, steps=1), 2, tmp_path)

    def dies(rank: int) -> None:
        if rank == victim:
            real = os.fsync

            def fsync(fd: int) -> None:
                if os.readlink(f"/proc/self/fd/{fd}").endswith(".distcp"):
                    os.kill(os.getpid(), signal.SIGKILL)
                real(fd)

            monkeypatch.setattr(os, "fsync", fsync)
        train(directory, sharded=True, steps=1)

    statuses = Ranks(dies, 2, tmp_path).statuses()
    assert statuses[victim] == -signal.SIGKILL
    assert statuses[1 - victim] != 0
    found = Folder(directory, lambda text: None).newest()
    assert found is not None
    assert found[1].step == 1
    assert play(lambda _: train(directory, sharded=True, steps=1), 2, tmp_path)[0][0] is not None


def test_a_full_disk_at_one_rank_is_told_on_all_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "checkpoints"

    def act(rank: int) -> Any:
        from elastic_agent.worker.checkpoints import writer
        from elastic_agent.worker.errors import CheckpointNotWritten

        net = model(True)
        run = Run(directory, every=NEVER, model=net)
        if rank == 1:

            def full(*_: Any) -> Any:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(writer, "write_pieces", full)
        run._commits += 1
        with pytest.raises(CheckpointNotWritten) as told:
            run.close()
        monkeypatch.undo()
        run._commits += 1
        run.close()
        return str(told.value)

    told = play(act, 2, tmp_path)
    assert told[0] == "checkpoint of step 0: rank 1: [Errno 28] No space left on device"
    assert told[1] == "checkpoint of step 0: [Errno 28] No space left on device"
    assert [kept.step for kept in Folder(directory, lambda text: None).kept()] == [0]


def test_a_node_that_lacks_the_checkpoint_gets_it_from_a_peer_and_keeps_a_copy(tmp_path: Path) -> None:
    """Each rank has a directory of its own, as on nodes without a shared file system."""

    def act(rank: int) -> Any:
        os.environ["LOCAL_RANK"] = "0"
        net = torch.nn.Linear(3, 3)
        net.weight.data.fill_(7.0)
        run = Run(tmp_path / f"node{rank}", every=NEVER, model=net)
        run._commits += 1
        run.close()

    play(act, 2, tmp_path)
    assert verify(tmp_path / "node1").proved

    def load(rank: int) -> Any:
        os.environ["LOCAL_RANK"] = "0"
        net = torch.nn.Linear(3, 3)
        run = Run(tmp_path / ("node0" if rank == 0 else "a new node"), every=NEVER, model=net)
        return [run.steps, float(net.weight[0][0].item())]

    assert play(load, 2, tmp_path) == [[0, 7.0]] * 2
    assert verify(tmp_path / "a new node").proved


def test_stages_of_a_pipeline_are_refused_at_the_first_save(tmp_path: Path) -> None:
    """Small ones, too, of which one rank writes all: a start would find its own stage in no checkpoint."""

    def act(rank: int) -> Any:
        run = Run(tmp_path / "checkpoints", every=NEVER, stage=torch.nn.Linear(2, 3 + rank))
        run.step()
        with pytest.raises(NotResumable) as told:
            run.close()
        return str(told.value)

    for said in play(act, 2, tmp_path):
        assert said.startswith("'stage' has other tensors on rank 1 than on rank 0: only models with the same names")


def test_what_no_save_could_keep_ends_the_training_at_the_next_one(tmp_path: Path) -> None:
    """Ranks whose states have other tensors, where all of them write."""

    def act(rank: int) -> Any:
        persistence.SHARED_BYTES = 1000
        state: Any = SimpleNamespace(state_dict=lambda: {"w": torch.ones(3000 + rank)}, load_state_dict=print)
        run = Run(tmp_path / "checkpoints", every=Every(steps=1, seconds=None), state=state)
        run.step()
        order = run._persistence._writer._now
        assert order is not None
        assert order.done.wait(60)
        with pytest.raises(NotResumable) as told:
            run.step()
        return str(told.value)

    assert all("rank 1 holds other tensors than rank 0" in said for said in play(act, 2, tmp_path))


@pytest.mark.parametrize("seed", [0, 1])
def test_models_that_are_not_the_same_on_all_ranks_are_told_of_once(tmp_path: Path, seed: int) -> None:
    def act(rank: int) -> Any:
        torch.manual_seed(rank * seed)
        net, said = torch.nn.Linear(2, 3), list[str]()
        run = Run(tmp_path / "checkpoints", every=NEVER, net=net)
        run._persistence._log = said.append
        for _ in range(2):
            run.step()
            run.close()
        return said

    told = play(act, 2, tmp_path)
    assert told[1] == []
    assert len(told[0]) == seed
    assert all(text.startswith("'net' has other parameters on rank 1 than on rank 0, and a start") for text in told[0])
