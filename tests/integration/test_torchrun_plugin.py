"""etcd v3 for people who stay on torchrun: stock torchrun, real etcd, agents and workers that are real processes."""

from __future__ import annotations

import configparser
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.launcher.torchrun.plugin import make_handler
from elastic_agent.rendezvous.etcd.credentials import Login
from elastic_agent.rendezvous.etcd.keys import TorchrunKeys
from elastic_agent.rendezvous.etcd.ops import Delete, Put, Read
from support.desk import Worker
from support.etcd_servers import VERSIONS, serving, shared_servers, start_shared_servers
from support.harness import Cluster, ProcessNode
from support.network import free_port
from support.procfs import read
from support.source_tree import ROOT
from support.workers import WORKERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COLLECTIVE = str(WORKERS / "collective.py")
BOUND_S = 120.0
"""torchrun imports torch in each agent and each worker."""


@pytest.fixture(scope="session", autouse=True)
def _servers() -> None:
    start_shared_servers()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH in which torchrun finds the entry points that setup.cfg names."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "elastic_agent-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elastic-agent\nVersion: 0\n")
    points = config["options.entry_points"]["torchrun.handlers"]
    (info / "entry_points.txt").write_text(f"[torchrun.handlers]{points}\n")
    return folder


class Torchrun:
    """Agents of one job of stock torchrun's."""

    def __init__(self, made: Cluster, installed: Path) -> None:
        self.cluster = made
        self.desk = made.desk
        self._path = os.pathsep.join([str(installed), os.environ["PYTHONPATH"]])

    def start(
        self, name: str, nnodes: str = "2", address: str = "127.0.0.1", conf: str = "", restarts: int = 1, **env: str
    ) -> ProcessNode:
        conf = "last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=4" + (f",{conf}" if conf else "")
        flags = [
            "--nnodes", nnodes, "--nproc-per-node", "1", "--max-restarts", str(restarts), "--local-addr", address,
            "--rdzv-backend", "elastic-etcd", "--rdzv-endpoint", ",".join(map(str, self.cluster.etcd.endpoints)),
            "--rdzv-id", self.cluster.run_id, "--rdzv-conf", conf, COLLECTIVE,
        ]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": self._path, "TEST_NODE": name, "TEST_DESK": self.desk.path, **env}
        start = ("-m", "torch.distributed.run")
        node = ProcessNode(name, flags, {**env, "OMP_NUM_THREADS": "1"}, self.cluster.folder, start)
        self.cluster.nodes[name] = node
        return node

    def wait_world(self, size: int, after: list[Worker] | None = None) -> list[Worker]:
        """The world of this size whose process group has formed; `after`: one that came later than this."""
        world = self.desk.wait_world(size, after=after[0].round if after else 0, bound_s=BOUND_S)
        assert [worker.env["TEST_SUM"] for worker in world] == [str(size)] * size
        return world

    def finish(self, *nodes: ProcessNode) -> None:
        for worker in self.desk.world():
            worker.order("exit 0")
        codes = [node.wait(BOUND_S) for node in nodes]
        assert codes == [0] * len(nodes), "\n".join(node.text() for node in nodes)


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path, installed: Path) -> Iterator[Torchrun]:
    """A job on a server, of the first version unless a test says so: each costs seconds."""
    servers = shared_servers(getattr(request, "param", VERSIONS[0]))
    made = Cluster("etcd", tmp_path)
    made.meet_at(servers)
    yield Torchrun(made, installed)
    made.close()


@pytest.mark.parametrize("job", VERSIONS[-1:], indirect=True)
def test_a_job_of_two_agents_runs_to_its_end(job: Torchrun) -> None:
    """torchrun's flags as they are, two agents, one process group; all of it in etcd hangs on a lease."""
    nodes = [job.start(name) for name in "ab"]
    world = job.wait_world(2)
    assert {worker.env["TORCHELASTIC_USE_AGENT_STORE"] for worker in world} == {"True"}
    job.finish(*nodes)
    under = f"/elastic-agent/{job.cluster.run_id}/".encode()
    with closing(job.cluster.etcd.client()) as client:
        items = client.read(Read(under, prefix=True)).items
        assert {item.lease for item in items} == {TorchrunKeys("/elastic-agent", job.cluster.run_id).lease}
    left = job.cluster.etcd.ctl("lease", "timetolive", f"{items[0].lease:x}")
    assert "granted with TTL(60s)" in left


def test_after_a_failure_all_workers_are_restarted(job: Torchrun) -> None:
    """They meet in a store to which no earlier worker wrote."""
    nodes = [job.start(name, restarts=3) for name in "ab"]
    first = job.wait_world(2)
    first[1].order("exit 3")
    second = job.wait_world(2, after=first)
    assert second[0].env["MASTER_PORT"] != first[0].env["MASTER_PORT"]
    job.finish(*nodes)


@pytest.mark.parametrize(
    ("job", "newcomer"),
    [(VERSIONS[0], "127.0.0.2"), (VERSIONS[-1], "127.0.0.1")],
    ids=["becomes rank 1", "becomes rank 0"],
    indirect=["job"],
)
def test_a_node_that_arrives_later_joins(job: Torchrun, newcomer: str) -> None:
    """The job grows from one node to two, whichever of them has rank 0; on torchrun's c10d backend it ends."""
    survivor = "127.0.0.1" if newcomer == "127.0.0.2" else "127.0.0.2"
    nodes = [job.start("a", "1:2", survivor)]
    first = job.wait_world(1)
    nodes.append(job.start("b", "1:2", newcomer))
    second = job.wait_world(2, after=first)
    assert second[0].env["MASTER_ADDR"] == "127.0.0.1"
    assert second[0].node == ("a" if survivor == "127.0.0.1" else "b")
    job.finish(*nodes)


def test_a_replacement_joins(job: Torchrun) -> None:
    """A node that is killed is noticed when its worker's peers fail, and the next node that arrives takes its place."""
    nodes = [job.start("a", restarts=3), job.start("b", restarts=3)]
    first = job.wait_world(2)
    lost = job.cluster.nodes["b"]
    lost.vanish()
    for worker in first:
        worker.order("exit 1")
    nodes[1] = job.start("c", restarts=3)
    second = job.wait_world(2, after=first)
    assert {worker.node for worker in second} == {"a", "c"}
    job.finish(*nodes)


def test_secrets_stay_with_the_agent(tmp_path: Path, installed: Path) -> None:
    """A user with a role for the prefix suffices; the worker inherits the environment without the password; with a
    wrong password the agent exits, and its error has our line."""
    secret = "s3cret-of-the-trainer"
    with serving(VERSIONS[0], tmp_path / "etcd") as servers:
        servers.require_login(Login("root", "the-root-of-it-all"), Login("trainer", secret), "/jobs/")
        made = Cluster("etcd", tmp_path)
        made.meet_at(servers)
        job = Torchrun(made, installed)
        conf = "user=trainer,prefix=/jobs"
        refused = job.start("x", "1", conf=conf, ELASTIC_AGENT_ETCD_PASSWORD="wrong")
        assert refused.wait(BOUND_S) == 1
        assert "authentication failed" in refused.text()
        node = job.start("a", "1", conf=conf, ELASTIC_AGENT_ETCD_PASSWORD=secret)
        [worker] = job.wait_world(1)
        assert "ELASTIC_AGENT_ETCD_PASSWORD" not in worker.env
        assert secret.encode() not in read(f"/proc/{node.process.pid}/environ")
        job.finish(node)
        assert secret not in node.text()
        made.close()


# -- the pieces, in this process ------------------------------------------------------------------------------------


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A job's folder on a real server, as an agent has it."""
    from elastic_agent.launcher.torchrun.folder import Folder, RetryLimits

    client = shared_servers(VERSIONS[0]).client()
    made = Folder(client, TorchrunKeys("/plugin", request.node.name), 60.0, RetryLimits(5.0, 1.0))
    yield made
    made.close()


def parameters(endpoint: str, **conf: str) -> Any:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    return RendezvousParameters("elastic-etcd", endpoint, "parameters", 1, 1, **conf)


def test_a_cluster_that_is_not_there_is_named() -> None:
    """After `read_timeout`, in an exception of torch's."""
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    endpoint = f"127.0.0.1:{free_port()}"
    with pytest.raises(RendezvousConnectionError, match=f"gave up on etcd after 1 s: .*{endpoint}: connection refused"):
        make_handler(parameters(endpoint, read_timeout="1"))


@pytest.mark.parametrize(
    ("endpoint", "conf", "message"),
    [
        ("", {}, "needs servers; give --rdzv-endpoint"),
        ("h:1", {"quiet": "3"}, "has no key 'quiet'"),
        ("h:1", {"user": "me"}, "there is no password"),
        ("https://h:1", {"protocol": "http"}, "--rdzv-endpoint has https://"),
        ("h:1", {"read_timeout": "0"}, "read_timeout"),
    ],
)
def test_wrong_parameters_are_refused_at_once(endpoint: str, conf: dict[str, str], message: str) -> None:
    """By the agent's own rules, before a request is sent; so are keys that torch would ignore."""
    with pytest.raises(UsageError, match=message):
        make_handler(parameters(endpoint, **conf))


def test_a_state_is_only_written_over_what_was_read(folder: Any) -> None:
    """torch's contract of a backend: the token is the revision, and a stale one changes nothing."""
    from elastic_agent.launcher.torchrun.store import EtcdRendezvousBackend

    backend = EtcdRendezvousBackend(folder)
    assert backend.get_state() is None
    first = backend.set_state(b"one")
    assert first is not None
    assert first[2]
    assert backend.get_state() == first[:2]
    assert backend.set_state(b"two") == (*first[:2], False)
    second = backend.set_state(b"two", first[1])
    assert second is not None
    assert (second[0], second[2]) == (b"two", True)
    assert second[1] > first[1]
    assert backend.set_state(b"three", first[1]) == (*second[:2], False)
    assert backend.set_state(b"three", "no token") == (*second[:2], False)
    assert backend.set_state(b"two", first[1]) == second  # as when the answer to it was lost
    folder.client.delete(Delete(folder.keys.state))
    assert backend.set_state(b"four", second[1]) is None


def test_a_state_beyond_the_bound_is_refused(folder: Any) -> None:
    """It is neither written nor, if another program wrote it, given to torch."""
    from torch.distributed.elastic.rendezvous import RendezvousStateError

    from elastic_agent.launcher.torchrun.store import STATE_BYTES, EtcdRendezvousBackend

    backend = EtcdRendezvousBackend(folder)
    with pytest.raises(RendezvousStateError, match="more than 1048576"):
        backend.set_state(bytes(STATE_BYTES + 1))
    folder.client.put(Put(folder.keys.state, bytes(STATE_BYTES + 1)))
    with pytest.raises(RendezvousStateError, match="another program writes there"):
        backend.get_state()


def test_the_store_is_one_of_torchs(folder: Any) -> None:
    """Through PrefixStore, as torch uses it."""
    from torch.distributed import DistStoreError, PrefixStore  # type: ignore[attr-defined]

    from elastic_agent.launcher.torchrun.store import EtcdAgentStore

    plain = EtcdAgentStore(folder)  # kept in a variable: a PrefixStore does not keep a store written in Python alive
    store: Any = PrefixStore("round/1", plain)  # torch's stubs leave much out
    store.set("text", "one")
    store.set("raw/\xe9", b"\0\xff")
    assert (store.get("text"), store.get("raw/\xe9")) == (b"one", b"\0\xff")
    assert [store.add("count", 2), store.add("count", -3)] == [2, -1]
    assert store.get("count") == b"-1"
    assert store.compare_set("c", "", "new") == b"new"
    assert store.compare_set("c", "old", "newer") == b"new"
    assert store.compare_set("c", "new", "newer") == b"newer"
    assert store.compare_set("absent", "x", "y") == b"x"
    store.multi_set(["m0", "m1"], ["0", "1"])
    assert store.multi_get(["m0", "m1", "text"]) == [b"0", b"1", b"one"]
    assert (store.check(["text", "m0"]), store.check(["text", "absent"])) == (True, False)
    with pytest.raises(DistStoreError, match=r"no agent wrote .*absent"):
        store.wait(["absent"], timedelta(milliseconds=50))
    store.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(DistStoreError, match=r"no agent wrote .*absent.* within 0\.05 s"):
        store.get("absent")


def test_a_store_of_many_keys_is_read_in_parts(folder: Any) -> None:
    """torch reads a key of each node at once, and a server accepts 128 requests in a transaction."""
    from elastic_agent.launcher.torchrun.store import EtcdAgentStore

    store = EtcdAgentStore(folder)
    keys = [f"node{number}" for number in range(300)]
    for key in keys[:-1]:
        folder.client.put(Put(folder.keys.stored(key), key.encode()))
    assert not store.check(keys)
    store.set(keys[-1], keys[-1])
    assert store.check(keys)
    assert store.multi_get(keys) == [key.encode() for key in keys]


def test_the_plug_in_waits_for_the_cluster_no_longer_than_for_nodes() -> None:
    """The shortest of `join_timeout` and `read_timeout`, as on every store of the agent."""
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    with pytest.raises(RendezvousConnectionError, match="gave up on etcd after 1 s: "):
        make_handler(parameters(f"127.0.0.1:{free_port()}", join_timeout="1"))


def test_a_waiting_agent_gets_the_key_when_it_is_written(folder: Any) -> None:
    """Through a watch from the revision that did not have it."""
    from elastic_agent.launcher.torchrun.store import EtcdAgentStore

    store, received = EtcdAgentStore(folder), []
    waiter = threading.Thread(target=lambda: received.append(store.get("late")))
    waiter.start()
    other = EtcdAgentStore(folder)
    other.set("early", "1")
    other.set("late", "2")
    waiter.join(60.0)
    assert received == [b"2"]


def test_many_agents_count_each_once(folder: Any) -> None:
    """torch's barriers count agents so."""
    from elastic_agent.launcher.torchrun.store import EtcdAgentStore

    sums: list[int] = []

    def count() -> None:
        store = EtcdAgentStore(folder)
        sums.extend(store.add("n", 1) for _ in range(10))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert sorted(sums) == list(range(1, 41))
