"""The examples of the trainer, run as a user runs them; those of sweeps are in `test_trainer_sweeps.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.network import free_ports
from support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(folder: Path, name: str, *options: str, bound_s: float = 200) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".typing"), "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "trainer" / name), *options],
        cwd=folder, env=env, capture_output=True, text=True, timeout=bound_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_classifier_reads_95_of_100_digits(tmp_path: Path) -> None:
    """It ends with another status below that."""
    printed = run(tmp_path, "digits.py")
    assert len(re.findall(r"epoch \d+: loss [\d.]+, accuracy [\d.]+%, 2 workers\n", printed)) == 8


def test_two_pods_of_its_kubernetes_job_train_the_classifier(tmp_path: Path) -> None:
    """The container's command, with a port of this host for each pod that it names."""
    service, job = yaml.safe_load_all((ROOT / "examples" / "trainer" / "digits.yaml").read_text())
    template = job["spec"]["template"]["spec"]
    assert template["subdomain"] == service["metadata"]["name"]
    endpoints = {f"{job['metadata']['name']}-{pod}.{template['subdomain']}:29400": "" for pod in (0, 1)}
    (container,) = template["containers"]
    line = " ".join(container["command"])
    for endpoint, port in zip(endpoints, free_ports(2), strict=True):
        assert endpoint in line
        line = line.replace(endpoint, f"127.0.0.1:{port}")
    assert line.startswith("python examples/trainer/digits.py --nnodes=1:3 ")
    command = [sys.executable, *line.split()[1:]]
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".typing"), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    pods = [subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        printed = [pod.communicate(timeout=200)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
            pod.communicate()
    assert [pod.returncode for pod in pods] == [0, 0]
    epochs = [re.findall(r"epoch \d+: loss [\d.]+, accuracy [\d.]+%", text) for text in printed]
    assert len(epochs[0]) == 8
    assert epochs[0] == epochs[1]


def test_the_dcgan_writes_a_picture(tmp_path: Path) -> None:
    assert "64 samples are in" in run(tmp_path, "dcgan.py", "samples.png", "--epochs", "2")
    assert (tmp_path / "samples.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.campaign  # test_trainer_nodes.py loses the first node, too
def test_the_demo_loses_its_first_node_and_all_others_agree(tmp_path: Path) -> None:
    """`make trainer-demo`."""
    printed = run(tmp_path, "demo.py", bound_s=280)
    assert "all three nodes printed the same 100 epochs" in printed
