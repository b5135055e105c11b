"""The example of a trainer on several nodes, by the line that it shows, under a real srun."""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.network import free_port
from support.outside.slurm_cluster import SlurmCluster
from support.source_tree import ROOT

pytestmark = pytest.mark.campaign

PROGRAM = ROOT / "examples" / "trainer" / "digits.py"
FIRST = "$(scontrol show hostnames | head -n 1):29400"
BOUND_S = 240.0


def test_the_srun_line_of_the_example_trains_on_three_nodes(cluster: SlurmCluster, tmp_path: Path) -> None:
    """All three print the same epochs, and the job is done. The nodes share one address here: `n1` is no name of it."""
    shown = re.search(r"srun .*\\\n.*", ast.get_docstring(ast.parse(PROGRAM.read_text())) or "")
    assert shown is not None
    line = shown[0].replace("\\\n", " ")
    assert FIRST in line
    bare = f"{Path(sys.executable).parent}{os.pathsep}{cluster.env['PATH']}"
    script = "\n".join(
        (
            "#!/bin/bash",
            f"cd {shlex.quote(str(ROOT))}",
            '[ "$(scontrol show hostnames | head -n 1)" = n1 ] || exit 9',
            line.replace(FIRST, f"127.0.0.1:{free_port()}"),
        )
    )
    (tmp_path / "job").write_text(script)
    job = cluster.run(
        "sbatch", "--parsable", "--nodes=3", str(tmp_path / "job"),
        PATH=bare, PYTHONPATH=str(ROOT / ".typing"), OMP_NUM_THREADS="1", LOGLEVEL="INFO",
    ).strip()  # fmt: skip
    cluster.wait_end(job, bound_s=BOUND_S)
    assert cluster.state(job) == "COMPLETED", cluster.story()
    printed = (cluster.home / f"slurm-{job}.out").read_text()
    epochs = Counter(re.findall(r"epoch \d+: loss [\d.]+, accuracy [\d.]+%", printed))
    assert len(epochs) == 8, printed
    assert set(epochs.values()) == {3}, printed
