"""Rendezvous handlers of other packages: nodes meet through an entry point of `torchrun.handlers`, and train on our
agents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_agent import LaunchConfig, UsageError, launch
from support.desk import WORKER
from support.harness import Cluster, ProcessNode
from support.network import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PACKAGE = """
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout
from datetime import timedelta

class Handler(DynamicRendezvousHandler):
    def get_backend(self):
        return "others"

def entry():
    return make

def make(params):
    if "secret" not in params.config:
        raise ValueError("it needs a secret")
    backend, store = create_backend(params)
    return Handler.from_backend(
        params.run_id, store, backend, params.min_nodes, params.max_nodes, params.local_addr,
        RendezvousTimeout(last_call=timedelta(seconds=0.5)), 1, 3,
    )
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with a package that has a handler, `others`: torch's own, under another name."""
    folder = tmp_path / "package"
    info = folder / "others-1.dist-info"
    info.mkdir(parents=True)
    (folder / "others.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torchrun.handlers]\nothers = others:entry\n")
    return folder


class Job:
    """Agents that meet through the package."""

    def __init__(self, made: Cluster, package: Path) -> None:
        self.cluster = made
        self.desk = made.desk
        # The first node serves torch's store too, so it is the address of a node.
        self._endpoint = f"127.0.0.1:{free_port()}"
        self._path = os.pathsep.join([str(package), os.environ["PYTHONPATH"]])

    def start(self, name: str, nnodes: str) -> ProcessNode:
        flags = [
            "--nnodes", nnodes, "--nproc-per-node", "1", "--max-restarts", "1", "--local-addr", "127.0.0.1",
            "--rdzv-backend", "others", "--rdzv-endpoint", self._endpoint, "--rdzv-id", "job",
            "--rdzv-conf", "secret=x,beat=0.4,lease=2", WORKER,
        ]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": self._path, "TEST_NODE": name, "TEST_DESK": self.desk.path}
        node = ProcessNode(name, flags, env, self.cluster.folder)
        self.cluster.nodes[name] = node
        return node


@pytest.fixture
def job(tmp_path: Path, package: Path) -> Iterator[Job]:
    made = Cluster("c10d", tmp_path)
    yield Job(made, package)
    made.close()


def test_nodes_meet_through_another_packages_handler(job: Job) -> None:
    """Two nodes, one world; then a failure, after which it forms again without the handler."""
    nodes = [job.start(name, "2") for name in "ab"]
    first = job.desk.wait_world(2, bound_s=90)
    first[1].order("exit 3")
    second = job.desk.wait_world(2, after=first[0].round, bound_s=90)
    for worker in second:
        worker.order("exit 0")
    assert [node.wait(60) for node in nodes] == [0, 0], "\n".join(node.text() for node in nodes)


def test_a_node_that_waits_in_the_handler_is_let_in(job: Job) -> None:
    """It arrives when the job runs; under torchrun it would end the job."""
    nodes = [job.start("a", "1:2")]
    alone = job.desk.wait_world(1, bound_s=90)
    nodes.append(job.start("b", "1:2"))
    both = job.desk.wait_world(2, after=alone[0].round, bound_s=90)
    for worker in both:
        worker.order("exit 0")
    assert [node.wait(60) for node in nodes] == [0, 0], "\n".join(node.text() for node in nodes)


def test_what_a_handler_refuses_is_a_usage_error(job: Job, monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    """Its own words, before anything starts; and a name that nobody has. The package is found although torch, which
    looks for handlers when it is imported, was imported before it was there."""
    import torch.distributed.elastic.rendezvous.registry  # noqa: F401 - for its effect

    with (package / "others-1.dist-info" / "entry_points.txt").open("a") as points:
        points.write("broken = nowhere:entry\n")
    monkeypatch.syspath_prepend(str(package))
    with pytest.raises(UsageError, match="--rdzv-backend others: ValueError: it needs a secret"):
        launch(LaunchConfig(max_nodes=2, rdzv_backend="others", rdzv_endpoint="127.0.0.1:1"), WORKER)
    with pytest.raises(UsageError, match=r"--rdzv-backend broken: ModuleNotFoundError: .*nowhere"):
        launch(LaunchConfig(max_nodes=2, rdzv_backend="broken", rdzv_endpoint="127.0.0.1:1"), WORKER)
    with pytest.raises(UsageError, match=r"no package has a handler of that name"):
        launch(LaunchConfig(rdzv_backend="nobodys"), WORKER)
