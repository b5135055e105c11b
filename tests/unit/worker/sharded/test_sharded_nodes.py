"""Sharded states on nodes that share no directory: each keeps parts, and gets what it lacks from its peers."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

# Imported before the ranks are forked from here: each would take seconds for them.
import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint.format_utils
import torch.distributed.fsdp

from elastic_agent.worker import Every, Run
from elastic_agent.worker.checkpoints import folder, transfer, writer
from elastic_agent.worker.checkpoints.files import CheckedWriter, Reader, sums_of
from elastic_agent.worker.checkpoints.folder import Folder
from elastic_agent.worker.checkpoints.manifest import Manifest
from elastic_agent.worker.errors import CheckpointNotWritten, NotResumable
from elastic_agent.worker.verify import verify
from support.workers.ranks import Ranks, play
from support.workers.sharding import shard, whole

NEVER = Every(seconds=None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from"),
]

WIDE = 3000
"""Makes parts of some hundred KiB, and a buffer that is taken out of the skeleton."""


def model(seed: int) -> Any:
    torch.manual_seed(seed)
    net: Any = torch.nn.Sequential(torch.nn.Linear(5, WIDE), torch.nn.Linear(WIDE, 3))
    net.register_buffer("table", torch.rand(WIDE))
    if dist.is_initialized():
        shard(net)
    return net


def train(directory: Path, steps: int, seed: int = 0, before_save: Callable[[], None] = lambda: None) -> Any:
    """Loads, trains on the same data on every rank, saves after the last step; gives the step that it began with, what
    was loaded and what was saved."""
    net = model(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    run = Run(directory, every=NEVER, model=net, optimizer=optimizer)
    began, loaded = run.steps, whole([net.state_dict(), optimizer.state_dict()])
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(4, 5)).square().sum().backward()
        optimizer.step()
        run.step()
        run._commits += 1  # there is no loader here
    before_save()
    run.close()
    return [began, loaded, whole([net.state_dict(), optimizer.state_dict()])]


def on(tmp_path: Path, nodes: Sequence[int], act: Callable[[Path, int], Any]) -> Callable[[int], Any]:
    """For ranks that are one on each of these nodes, each with a directory of its own."""

    def ranked(rank: int) -> Any:
        os.environ["LOCAL_RANK"] = "0"
        return act(tmp_path / f"node{nodes[rank]}", rank)

    return ranked


def jobs(tmp_path: Path, nodes: Sequence[int], steps: int, seed: int = 9) -> Any:
    """One job over these nodes: what each rank returned from `train`."""
    return play(on(tmp_path, nodes, lambda directory, _: train(directory, steps, seed)), len(nodes), tmp_path)


def parts(directory: Path) -> set[str]:
    """Files with pieces of tensors in a node's newest checkpoint. Those that a save left are in its manifest."""
    (kept, *_) = Folder(directory, lambda text: None).kept()
    here = {path.name for path in kept.path.glob("__*_0.distcp")}
    assert {name for name in Manifest.read(kept.path).files if name.endswith("_0.distcp")} <= here
    return here


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([0, 1], [0, 1], id="the same nodes"),
        pytest.param([0, 1], [1], id="one node of two"),
        pytest.param([0, 1], [0, 1, 2], id="a new node"),
        pytest.param([0, 1, 2], [2, 0], id="two of three, in another order"),
        pytest.param([0, 1, 2, 3], [3, 2, 5, 1, 0], id="a new node among four"),
    ],
)
def test_nodes_without_a_shared_directory_go_on_with_a_sharded_state(
    tmp_path: Path, before: list[int], after: list[int]
) -> None:
    """FSDP2 with one rank a node, each with a directory of its own."""
    saved = jobs(tmp_path, before, steps=3)[0][2]
    for node in range(max(*before, *after) + 1):
        (tmp_path / f"node{node}").mkdir(exist_ok=True)
    for began, loaded, _ in jobs(tmp_path, after, steps=0):
        assert began == 3
        assert loaded == saved


def test_ranks_of_a_launcher_that_numbers_none_on_a_node_save_where_they_share_a_directory(tmp_path: Path) -> None:
    """Under srun or mpirun a script may have no LOCAL_RANK: two ranks of one node wrote into one another's files."""

    def act(rank: int) -> Any:
        del os.environ["LOCAL_RANK"]
        return train(tmp_path / f"node{min(rank, 1)}", 3)

    saved = play(act, 3, tmp_path)[0][2]
    for node in range(2):
        assert verify(tmp_path / f"node{node}").proved
    for began, loaded, _ in jobs(tmp_path, [1, 0], steps=0):
        assert (began, loaded) == (3, saved)


def test_each_part_is_on_two_nodes_and_no_node_has_all(tmp_path: Path) -> None:
    jobs(tmp_path, [0, 1, 2, 3], steps=1)
    assert [parts(tmp_path / f"node{node}") for node in range(4)] == [
        {f"__{node}_0.distcp", f"__{(node - 1) % 4}_0.distcp"} for node in range(4)
    ]
    for node in range(4):
        manifest = Manifest.read(tmp_path / f"node{node}" / "step-000001")
        assert parts(tmp_path / f"node{node}") == manifest.parts().keys() - manifest.elsewhere.keys()
        assert len(manifest.elsewhere) == 2
        assert verify(tmp_path / f"node{node}").proved


def test_a_node_gets_no_parts_that_its_ranks_do_not_load(tmp_path: Path) -> None:
    jobs(tmp_path, [0, 1, 2, 3], steps=1)
    jobs(tmp_path, [0, 1, 2, 3], steps=0)
    assert [len(parts(tmp_path / f"node{node}")) for node in range(4)] == [2, 2, 2, 2]
    jobs(tmp_path, [3, 2, 1, 0], steps=0)
    # Nodes 3 and 1 have ranks 0 and 2 now, and had parts 3, 2 and 1, 0; nodes 2 and 0 have what their ranks load.
    assert [len(parts(tmp_path / f"node{node}")) for node in range(4)] == [2, 3, 2, 3]
    assert "__0_0.distcp" in parts(tmp_path / "node3")


def test_a_node_killed_in_a_save_costs_that_save_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 1 is killed while it writes its part of step 2; then both go on, and then three nodes."""
    saved = jobs(tmp_path, [0, 1], steps=1)[0][2]

    def dies(directory: Path, rank: int) -> Any:
        def die(*_: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        if rank == 1:
            monkeypatch.setattr(writer, "write_pieces", die)
        return train(directory, steps=1)

    ranks = Ranks(on(tmp_path, [0, 1], dies), 2, tmp_path)
    statuses = ranks.statuses()
    assert statuses[1] == -signal.SIGKILL
    assert statuses[0] != 0
    began, loaded, again = jobs(tmp_path, [0, 1], steps=1)[0]
    assert [began, loaded] == [1, saved]
    assert [[step, state] for step, state, _ in jobs(tmp_path, [2, 1, 0], steps=0)] == [[2, again]] * 3


def test_a_checkpoint_that_only_some_nodes_committed_is_not_used_unless_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three nodes two are killed between the word that all is written and the name."""
    saved = jobs(tmp_path, [0, 1, 2], steps=1)[0][2]
    committed, commits = os.pipe()

    def dies(directory: Path, rank: int) -> Any:
        real = Folder.place

        def place(*arguments: Any) -> Any:
            if arguments[2].step == 2 and rank:
                os.read(committed, 1)  # before, rank 0 might still be in the exchange, and fail there
                os.kill(os.getpid(), signal.SIGKILL)
            named = real(*arguments)
            if arguments[2].step == 2:
                os.write(commits, b"xx")
            return named

        monkeypatch.setattr(Folder, "place", place)
        return train(directory, steps=1)

    assert Ranks(on(tmp_path, [0, 1, 2], dies), 3, tmp_path).statuses()[1:] == [-signal.SIGKILL] * 2
    os.close(committed)
    os.close(commits)
    assert (tmp_path / "node0" / "step-000002").exists()
    began, loaded, _ = jobs(tmp_path, [0, 1, 2], steps=0)[0]
    assert [began, loaded] == [1, saved]


def test_a_damaged_part_is_taken_from_the_other_node_that_has_it(tmp_path: Path) -> None:
    saved = jobs(tmp_path, [0, 1, 2], steps=1)[0][2]
    damaged = tmp_path / "node1" / "step-000001" / "__1_0.distcp"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    for began, loaded, _ in jobs(tmp_path, [0, 1, 2], steps=0):
        assert [began, loaded] == [1, saved]
    assert "__1_0.distcp: CRC-32" in (tmp_path / "node1" / "step-000001.bad" / "WHY.txt").read_text()


def test_a_node_whose_disk_reads_nothing_goes_on_with_what_its_peers_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = jobs(tmp_path, [0, 1, 2], steps=1)[0][2]

    def act(directory: Path, rank: int) -> Any:
        def unreadable(*_: Any) -> None:
            raise OSError(5, "Input/output error")

        if rank == 1:
            monkeypatch.setattr(folder, "check_file", unreadable)
        return train(directory, steps=0)

    for began, loaded, _ in play(on(tmp_path, [0, 1, 2], act), 3, tmp_path):
        assert [began, loaded] == [1, saved]
    assert "Input/output error" in (tmp_path / "node1" / "step-000001.bad" / "WHY.txt").read_text()


def test_all_nodes_begin_with_the_same_step_where_the_run_has_no_loader(tmp_path: Path) -> None:
    """A loop that makes its own batches. The newest checkpoint of node 0 is damaged, and it has the one before."""

    def act(directory: Path, rank: int) -> Any:
        run = Run(directory, every=Every(steps=1, seconds=None), model=torch.nn.Linear(1, 1))
        began = run.steps
        for _ in range(2 - began):
            run.step()
            run._persistence.wait()
        run.close()
        return began

    assert play(on(tmp_path, [0, 1], act), 2, tmp_path) == [0, 0]
    (tmp_path / "node0" / "step-000002" / "state.pt").write_bytes(b"")
    assert (tmp_path / "node0" / "step-000001").exists()
    assert play(on(tmp_path, [0, 1], act), 2, tmp_path) == [2, 2]


def test_what_rank_0_alone_sets_in_run_vars_outlives_its_node(tmp_path: Path) -> None:
    """Each node keeps checkpoints of its own, and all of them have what rank 0 has set."""

    def act(directory: Path, rank: int) -> Any:
        run = Run(directory, every=NEVER, model=torch.nn.Linear(1, 1))
        found = run.vars.get("best")
        if rank == 0 and run.steps == 0:
            run.vars.best = [0.5, {"at": (3, float("inf"))}]
        run.step()
        run.close()
        return [run.steps, repr(found)]

    play(on(tmp_path, [0, 1], act), 2, tmp_path)
    assert play(on(tmp_path, [1, 2], act), 2, tmp_path) == [[2, "[0.5, {'at': (3, inf)}]"]] * 2


def test_a_part_that_changes_on_its_way_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs(tmp_path, [0, 1, 2], steps=1)

    def act(directory: Path, rank: int) -> Any:
        real = Reader.readinto

        def readinto(self: Any, buffer: Any) -> int:
            count = real(self, buffer)
            buffer[count - 1] ^= 1
            return count

        if rank == 0:
            monkeypatch.setattr(transfer, "Reader", type("Changing", (Reader,), {"readinto": readinto}))
        with pytest.raises(Exception, match=r"CRC-32|rank \d") as told:
            train(directory, steps=0)
        return str(told.value)

    assert any("CRC-32" in said for said in play(on(tmp_path, [0, 4, 2], act), 3, tmp_path))
    assert not list((tmp_path / "node4").glob("step-*/__*_0.distcp"))


def test_parts_that_are_on_no_node_are_named_and_the_run_does_not_begin_anew(tmp_path: Path) -> None:
    """Two neighbours of four are gone: one part is gone with them."""
    jobs(tmp_path, [0, 1, 2, 3], steps=1)

    def refused(directory: Path, _: int) -> str:
        with pytest.raises(NotResumable) as told:
            train(directory, steps=0)
        return str(told.value)

    for said in play(on(tmp_path, [0, 1, 4], refused), 3, tmp_path):
        assert "that of step 1 lacks __2_0.distcp; start with the nodes that wrote it" in said
    assert jobs(tmp_path, [0, 1, 3], steps=0)[0][0] == 1


def test_a_full_disk_on_one_node_is_told_on_all_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(directory: Path, rank: int) -> Any:
        run = Run(directory, every=NEVER, model=model(0))
        if rank == 1:

            class Full(CheckedWriter):
                def write(self, data: Any) -> int:
                    raise OSError(28, "No space left on device")

            monkeypatch.setattr(transfer, "CheckedWriter", Full)
        run._commits += 1
        with pytest.raises(CheckpointNotWritten) as told:
            run.close()
        monkeypatch.undo()
        run._commits += 1
        run.close()
        return str(told.value)

    said = play(on(tmp_path, [0, 1], act), 2, tmp_path)
    assert [text.removeprefix("checkpoint of step 0: ") for text in said] == [
        "rank 1: [Errno 28] No space left on device",
        "[Errno 28] No space left on device",
    ]
    assert [kept.step for kept in Folder(tmp_path / "node1", lambda text: None).kept()] == [0]
    assert len(parts(tmp_path / "node1")) == 2


def test_a_transfer_needs_the_memory_of_one_message(tmp_path: Path) -> None:
    """512 MiB go from one node to another; neither needs a third of it: 16 MiB, and copies of them."""
    size = 512 << 20
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(size)
    content = sums_of(path)

    def act(rank: int) -> int:
        from elastic_agent.worker.world import World

        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        each = transfer.Transfer("large", content, 0, 1)
        transfer.carry(World(), [each], tmp_path.joinpath, lambda name: tmp_path / f"{name}.copy")
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib

    assert max(play(act, 2, tmp_path)) * 1024 < size / 3
    assert (tmp_path / "large.copy").stat().st_size == size
    (tmp_path / "large.copy").unlink()


def test_a_copy_on_slower_storage_of_parts_on_several_nodes_is_refused(tmp_path: Path) -> None:
    def act(directory: Path, _: int) -> str:
        with pytest.raises(NotResumable) as told:
            Run(directory, every=NEVER, copy_to=tmp_path / "slow", model=model(0))
        return str(told.value)

    for said in play(on(tmp_path, [0, 1], act), 2, tmp_path):
        assert "model is sharded over nodes that do not see each other's files" in said
        assert "a directory that all nodes share, or leave copy_to out" in said


def test_the_folders_of_all_nodes_together_are_torchs_distributed_checkpoint(tmp_path: Path) -> None:
    saved = jobs(tmp_path, [0, 1, 2], steps=2)[0][2]
    together = tmp_path / "together"
    for node in range(3):
        shutil.copytree(tmp_path / f"node{node}" / "step-000002", together, dirs_exist_ok=True)
    torch.distributed.checkpoint.format_utils.dcp_to_torch_save(str(together), tmp_path / "whole.pt")
    unpacked = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert whole(unpacked["model"]) == saved[0]
