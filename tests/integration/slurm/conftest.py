"""A SLURM of three nodes for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.outside.slurm_cluster import SlurmCluster, slurm


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SlurmCluster]:
    with slurm(tmp_path / "slurm", 3) as running:
        yield running
