"""The command lines of docs/schedulers.md: run as the page has them, with the variables that each tool sets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.side_environments import side_python
from support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PAGE = (ROOT / "docs" / "schedulers.md").read_text()
SCRIPT = (
    "import os\nprint('worker', *(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'GROUP_RANK')), flush=True)\n"
)


def lines_below(heading: str) -> str:
    """The first block of commands below a heading."""
    block = re.search(rf"^## {heading}\n.*?\n((?:    [^\n]*\n)+)", PAGE, re.MULTILINE | re.DOTALL)
    assert block, heading
    return "\n".join(line[4:] for line in block[1].splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the script, and with commands of the agent's names."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "elastic-agent"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m elastic_agent "$@"\n')
    command.chmod(0o755)
    return tmp_path


def env_of(folder: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", **variables}


@pytest.mark.parametrize(
    ("heading", "common", "rank"),
    [
        (
            "dstack",
            {"DSTACK_NODES_NUM": "2", "DSTACK_GPUS_PER_NODE": "2", "DSTACK_MASTER_NODE_IP": "127.0.0.1"},
            "DSTACK_NODE_RANK",
        ),
        (
            "SkyPilot",
            {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "2", "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2"},
            "SKYPILOT_NODE_RANK",
        ),
    ],
)
def test_two_nodes_meet_by_the_variables_of(heading: str, common: dict[str, str], rank: str, folder: Path) -> None:
    """On each node the same line; ranks follow the tool's."""
    line = lines_below(heading)
    nodes = [
        subprocess.Popen(["bash", "-c", line], cwd=folder, env=env_of(folder, **common, **{rank: str(number)}),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in (0, 1)
    ]  # fmt: skip
    done = [node.communicate(timeout=200) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], done
    for number, (printed, _) in enumerate(done):
        ranks = (2 * number, 2 * number + 1)
        assert sorted(printed.splitlines()) == [f"worker {each} 4 {number}" for each in ranks]


def test_torchx_runs_the_agents_command_on_this_host(folder: Path) -> None:
    """The line of the table, as the page has it."""
    found = re.search(r"`(torchx run -s local_cwd utils\.sh[^`]*)`", PAGE)
    assert found
    torchx = Path(side_python(".frameworks")).parent
    env = env_of(folder)
    done = subprocess.run(found[1].split(), cwd=folder, env={**env, "PATH": f"{env['PATH']}:{torchx}"},
                          capture_output=True, text=True, timeout=250, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line[line.index("worker") :] for line in (done.stdout + done.stderr).splitlines() if "worker " in line} >= {
        "worker 0 2 0",
        "worker 1 2 0",
    }


def test_the_other_line_of_torchx_is_the_one_that_is_tested() -> None:
    """By `test_torchx_launches_on_the_agent`."""
    assert "elastic-agent --as-torchrun torchx run -s local_cwd dist.ddp -j 1x2 --script train.py" in lines_below(
        "TorchX"
    )
