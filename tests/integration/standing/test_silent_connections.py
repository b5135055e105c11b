"""One thread of an agent gets no answers any more, on connections that stay open, while its other threads do.

Agents are threads of this process, on real stores; `SilentStore` keeps the answers from one thread of one agent.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.rendezvous.c10d.opening import open_c10d
from elastic_agent.rendezvous.etcd.store import Location, open_etcd
from support.desk import restarts_of, worker_of
from support.etcd_servers import VERSIONS, shared_servers
from support.faults.silence import Silence, SilentStore
from support.harness import Cluster
from support.procfs import slowed

pytestmark = pytest.mark.usefixtures("stores_in_use")

STORES = ("c10d", "etcd")
FOUND = ("reader", "announcer")
REPLACED = ("reader", "announcer", "watcher")
HANGING = ("reader", "watcher")
LEASE_S = 5.0
FOUND_S = 10.0
"""Until the node itself knows; a lease, if that is longer."""
SLACK_S = 4.0
"""A beat, the election of another coordinator, a round."""


class Stores:
    """The connections of agents to one store, as `Cluster.store`; the first agent's can be silenced."""

    def __init__(self, opened: Callable[[bool], Any]) -> None:
        """`opened` opens the store anew; its argument: for the first agent."""
        self._opened = opened
        self.silence = Silence()
        self._made: list[Any] = []

    def host(self) -> Any:
        return self.guest()

    def guest(self) -> Any:
        inner = self._opened(not self._made)
        self._made.append(inner)
        return inner if len(self._made) > 1 else SilentStore(inner, self.silence)


def on_c10d() -> Callable[[bool], Any]:
    made: list[Any] = []

    def opened(first: bool) -> Any:
        made.append(open_c10d(str(made[0].endpoint) if made else "127.0.0.1:0", "silent", is_host=first))
        return made[-1]

    return opened


def on_etcd() -> Callable[[bool], Any]:
    place = Location(f"silent {uuid.uuid4()}", lease_s=LEASE_S)
    return lambda first: open_etcd(shared_servers(VERSIONS[0]).endpoints, place, connect_timeout_s=10.0)


def cluster_on(store: str, folder: Path) -> Cluster:
    """The first agent coordinates, whatever the store."""
    made = Cluster("memory" if store == "c10d" else "electing memory", folder, conf={"lease": LEASE_S})
    made.store = Stores(on_c10d() if store == "c10d" else on_etcd())
    return made


def two_nodes(cluster: Cluster) -> tuple[Any, Any, list[Any]]:
    """The coordinator, another node, and the workers of their round."""
    a = cluster.start("a", hosts=cluster.backend == "memory", nnodes="1:2")
    a.wait_text("round 1 begins")
    b = cluster.start("b", nnodes="1:2")
    return a, b, cluster.desk.wait_world(2)


Jobs = dict[tuple[str, str], Future[None]]
"""By store and by who is silent."""


class AtOnce:
    """Plays jobs that need no processor while they wait, at the same time, for the first test that asks for one."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._played: dict[str, Jobs] = {}

    def check(self, play: Callable[[Cluster, str], None], store: str, role: str, roles: Sequence[str]) -> None:
        """What became of this one of the jobs of all stores and roles."""
        if play.__name__ not in self._played:
            cases = list(itertools.product(STORES, roles))
            with ThreadPoolExecutor(len(cases)) as pool:
                self._played[play.__name__] = {case: pool.submit(self._on, play, *case) for case in cases}
        self._played[play.__name__][store, role].result()

    def _on(self, play: Callable[[Cluster, str], None], store: str, role: str) -> None:
        with closing(cluster_on(store, self._folders.mktemp("silent"))) as cluster:
            play(cluster, role)


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> AtOnce:
    return AtOnce(tmp_path_factory)


@pytest.mark.parametrize("role", FOUND)
@pytest.mark.parametrize("store", STORES)
def test_a_coordinator_whose_reader_or_announcer_is_silent_is_found_in_seconds(
    store: str, role: str, at_once: AtOnce
) -> None:
    """It says so itself. Where the store elects, another node coordinates from then on."""
    at_once.check(find_silent, store, role, FOUND)


def find_silent(cluster: Cluster, role: str) -> None:
    a, b, _ = two_nodes(cluster)
    began = time.monotonic()
    cluster.store.silence.begin(role)
    a.wait_text(f"the {role} of this agent got no answer in time", FOUND_S + slowed(SLACK_S))
    found_s = time.monotonic() - began
    if cluster.backend != "memory":
        b.wait_text("this node coordinates the job", slowed(SLACK_S))
    else:
        b.wait_text("no heartbeat of a", LEASE_S + slowed(SLACK_S))
    assert found_s < FOUND_S + slowed(SLACK_S)
    cluster.store.silence.end()
    a.wait_text("the store answers again", slowed(SLACK_S))
    for node in (b, a):
        node.terminate()
        assert node.wait() == 143


@pytest.mark.parametrize("role", REPLACED)
@pytest.mark.parametrize("store", STORES)
def test_a_connection_that_went_silent_is_replaced_before_it_counts(store: str, role: str, at_once: AtOnce) -> None:
    """New ones are answered: a worker fails, and all restart; nobody is lost, and to nobody the store is away."""
    at_once.check(replace_connection, store, role, REPLACED)


def replace_connection(cluster: Cluster, role: str) -> None:
    a, b, world = two_nodes(cluster)
    cluster.store.silence.begin(role, new_too=False)
    worker_of(world, "b").order("exit 3")
    again = cluster.desk.wait_world(2, after=world[0].round, bound_s=FOUND_S + slowed(SLACK_S))
    assert restarts_of(again) == {"a": 0, "b": 1}
    for node in (a, b):
        assert "does not answer" not in node.text()
        assert "was lost" not in node.text()
    cluster.finish()
    assert (a.wait(), b.wait()) == (0, 0)


@pytest.mark.parametrize("role", HANGING)
@pytest.mark.parametrize("store", STORES)
def test_a_watch_that_hangs_is_replaced_before_it_counts(store: str, role: str, at_once: AtOnce) -> None:
    """Its waits end on time, and show nothing: what the heartbeats show tells that something was missed."""
    at_once.check(replace_watch, store, role, HANGING)


def replace_watch(cluster: Cluster, role: str) -> None:
    a, b, world = two_nodes(cluster)
    cluster.store.silence.begin(role, new_too=False, hangs=True)
    worker_of(world, "b").order("exit 3")
    again = cluster.desk.wait_world(2, after=world[0].round, bound_s=FOUND_S + slowed(SLACK_S))
    assert restarts_of(again) == {"a": 0, "b": 1}
    cluster.finish()
    assert (a.wait(), b.wait()) == (0, 0)


@contextmanager
def busy(load: int) -> Iterator[None]:
    """So many processes that compute without pause."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


PREPARED_S = 120.0
"""For a world of three on a busy host: workers that begin late are no alarm."""


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["c10d", "etcd"])
def test_a_busy_host_raises_no_alarm(backend: str, tmp_path: Path) -> None:
    """Ten processes that compute on each core, for longer than anything may go without an answer. They begin behind
    the first round: whoever hosts a c10d store imports torch before it, which beside them takes ten times as long."""
    many = {"nnodes": "3", "max_restarts": 1000, "conf": {"lease": LEASE_S}}
    with closing(Cluster(backend, tmp_path, **many)) as cluster:
        nodes = [cluster.start(name) for name in "abc"]
        world = cluster.desk.wait_world(3, bound_s=PREPARED_S)
        with busy(10 * (os.cpu_count() or 1)):
            until = time.monotonic() + 2 * FOUND_S
            while time.monotonic() < until:
                worker_of(world, "b").order("exit 3")
                world = cluster.desk.wait_world(3, after=world[0].round, bound_s=PREPARED_S)
            cluster.finish()
            assert [node.wait() for node in nodes] == [0, 0, 0]
        for node in nodes:
            for alarm in ("does not answer", "was lost", "was not received", "no heartbeat"):
                assert alarm not in node.text()
