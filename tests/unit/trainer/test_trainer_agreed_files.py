"""`save` of one of several nodes' programs: what it tells the others, and what it leaves on the disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_agent.trainer import files, plain
from elastic_agent.trainer.program import agreed_files
from elastic_agent.trainer.program.call_server import Answer

STATE = plain.to_bytes({"model": torch.ones(2)})


class Nodes:
    """What the workers of all nodes do with the call."""

    def __init__(self, folder: Path, value: str | None = None, recorded: bool = False) -> None:
        self.folder, self.value, self.recorded = folder, value, recorded
        self.refused: list[str] = []
        self.aside: list[str] = []

    def parcel(self, data: bytes) -> str:
        (self.folder / "parcel").write_bytes(data)
        return "parcel"

    def call(self, name: str, args: dict[str, Any], parcel: str, refused: str) -> Answer:
        self.refused.append(refused)
        self.aside = [path.name for path in self.folder.iterdir() if path.name.startswith(".file.")]
        if self.value is None and not self.recorded and not refused:
            files.put_in_place(*json.loads((self.folder / parcel).read_bytes()))
        return Answer(self.value or (f"{refused} (node 0)" if refused else None), recorded=self.recorded)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "parcel")


def test_the_file_is_written_aside_before_the_nodes_agree(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    assert agreed_files.save(tmp_path / "file", STATE, nodes.parcel, nodes.call)
    assert (len(nodes.aside), left(tmp_path)) == (1, ["file"])
    assert torch.equal(files.load(tmp_path / "file")["state"]["model"], torch.ones(2))


def test_an_error_of_another_node_leaves_the_file_from_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    nodes = Nodes(tmp_path, f"{errno.ENOSPC}: cannot write it (node 1)")
    with pytest.raises(OSError, match=r"cannot write it \(node 1\)") as raised:
        agreed_files.save(tmp_path / "file", STATE, nodes.parcel, nodes.call)
    assert raised.value.errno == errno.ENOSPC
    assert left(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


def test_an_error_of_this_node_is_told_to_the_others_before_it_is_raised(tmp_path: Path) -> None:
    """Also where the host has no memory left for what its workers are told: nobody waits for its call."""
    nodes = Nodes(tmp_path)
    with pytest.raises(FileNotFoundError, match="what was there stays"):
        agreed_files.save(tmp_path / "none" / "file", STATE, nodes.parcel, nodes.call)

    def full(data: bytes) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        agreed_files.save(tmp_path / "file", STATE, full, nodes.call)
    assert [text.partition(":")[0] for text in nodes.refused] == [str(errno.ENOENT), str(errno.ENOSPC)]
    assert left(tmp_path) == []


@pytest.mark.parametrize("state", [STATE, b""], ids=["found out late", "known before"])
def test_a_save_that_was_done_before_this_node_came_writes_nothing(tmp_path: Path, state: bytes) -> None:
    """The state is a later one by now."""
    nodes = Nodes(tmp_path, recorded=True)
    assert not agreed_files.save(tmp_path / "file", state, nodes.parcel, nodes.call)
    assert left(tmp_path) == []
    (tmp_path / "file").write_bytes(b"of that time")
    assert agreed_files.save(tmp_path / "file", b"", nodes.parcel, nodes.call)
    assert (tmp_path / "file").read_bytes() == b"of that time"


def test_a_directory_is_no_file_of_a_state_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=f"cannot read the trainer's state from {tmp_path}: Is a directory"):
        files.load(tmp_path)
    with pytest.raises(IsADirectoryError, match=r"cannot write the trainer's state to \.: Is a directory"):
        files.save("", {})
