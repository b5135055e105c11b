"""The benchmark of agreement of many nodes: it measures real drivers, and says what grows."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from elastic_agent.benchmarks.rendezvous_scale import chart, fit, report
from support.source_tree import ROOT

LIMIT_S = 120.0


def test_an_exponent_is_that_of_the_power_law() -> None:
    assert fit.exponent({nodes: 3.0 * nodes**1.5 for nodes in (8, 64, 512)}) == pytest.approx(1.5)
    assert fit.exponent({8: 1.0}) is None


def test_what_grows_with_the_nodes_is_named() -> None:
    """Bytes of one guest that double twice, and a total that grows with the square."""
    flat = {nodes: {"join_bytes": 5000.0, "join_cpu_s": nodes / 100} for nodes in (64, 256, 1000)}
    assert report.misses("ours", flat) == []
    grown = {nodes: {"join_bytes": 50.0 * nodes, "join_cpu_s": nodes**2 / 10000} for nodes in (64, 256, 1000)}
    missed = report.misses("ours", grown)
    assert "join_bytes of one guest is 50000 with 1000 nodes, 3200 with 64" in missed[0]
    assert "exponent 2.00; at most 1.15" in missed[1]


def test_a_chart_has_a_curve_for_each_series() -> None:
    series = {name: {8: {"join_s": 0.1, "join_cpu_s": 0.2}, 64: {"join_s": 0.5}} for name in ("ours", "torch's")}
    root = ET.fromstring(chart.draw(series))
    assert sum(path.get("stroke-width") == "2" for path in root.iter("{http://www.w3.org/2000/svg}path")) == 4


def test_real_participants_join_rest_restart_and_lose_one(tmp_path: Path) -> None:
    """On real sockets; torch's join beside them. Ranks take messages, and a restart goes over the store again."""
    flags = ["--c10d", "4", "--torch", "4", "--steady", "0.5", "--lease", "2", "--chart", str(tmp_path / "chart.svg")]
    command = [sys.executable, "-m", "benchmarks.rendezvous_scale", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    raw = Path(done.stdout.split("raw results: ")[1].split("\n")[0])
    found = json.loads(raw.read_text())["found"]
    raw.unlink()
    ours, torchs = found["elastic-agent on c10d"]["4"], found["torch's dynamic rendezvous"]["4"]
    for figure in ("join_s", "join_messages", "join_bytes", "restart_s", "restart_bytes", "death_decided_s"):
        assert ours[figure] > 0, figure
    assert torchs["join_s"] > 0 < torchs["join_bytes"]
    assert (tmp_path / "chart.svg").exists()
