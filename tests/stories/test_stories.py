"""The failover contract as stories: tests/stories/*.story, told by the production machines in the simulator's world."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulation import script
from simulation.world.world import World

STORIES = sorted(Path(__file__).parent.glob("*.story"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_is_told_as_written(path: Path) -> None:
    """What happens, who says why, and in which order, is what the story says; REWRITE=1 records it anew."""
    written = path.read_text()
    told = script.retell(script.read(written), _ends)
    if os.environ.get("REWRITE") == "1":
        path.write_text(told)
    else:
        assert told == written


def _ends(world: World) -> None:
    """A story is told to its end, so that no loose end is taken for an outcome."""
    left = [node.ident for node in world.nodes.values() if not node.done]
    assert not left, f"still there when the story ends: {left}"
