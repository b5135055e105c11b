"""What ranks tell each other: messages of any length, by rank, on real gloo."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch.distributed as dist

from elastic_agent.worker import world
from elastic_agent.worker.world import World
from support.workers.ranks import play

pytestmark = pytest.mark.slow

SHORT = world._SHORT


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
