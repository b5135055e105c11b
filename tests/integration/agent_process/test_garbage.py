"""When an agent searches for garbage: not while it loads itself, and as ever from then on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOOK = """
import gc, sys
from elastic_agent.launcher import agent_setup, command
made = agent_setup.make_agent
def make_agent(*args, **options):
    print("loading", gc.isenabled())
    agent = made(*args, **options)
    ran = agent.run
    def run(*args, **options):
        print("running", gc.isenabled(), gc.get_freeze_count() > 1000)
        return ran(*args, **options)
    agent.run = run
    return agent
command.make_agent = make_agent
from elastic_agent.__main__ import main
main()
"""


def test_an_agent_searches_for_garbage_once_it_runs(tmp_path: Path) -> None:
    """And never for what it has loaded until then, which stays."""
    (tmp_path / "train.py").write_text("")
    command = [sys.executable, "-c", LOOK, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    # The modules that the look itself imports are loaded before main() runs.
    assert done.stdout.splitlines() == ["loading False", "running True True"]
