"""The failover contract as stories: each .story file is a job that the production machines run in the simulator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulation import script
from simulation.world.world import World

STORIES = sorted(Path(__file__).parent.glob("*.story"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_outcome_of_a_story_is_as_written(path: Path) -> None:
    """The trace of each step equals the lines below it. REWRITE=1 writes the trace of this run into the file."""
    written = path.read_text()
    text = script.retell(script.read(written), _ends)
    if os.environ.get("REWRITE") == "1":
        path.write_text(text)
    else:
        assert text == written


def _ends(world: World) -> None:
    """Every node must have ended when the story does, so that no outcome is left open."""
    left = [node.ident for node in world.nodes.values() if not node.done]
    assert not left, f"nodes that have not ended when the story does: {left}"
