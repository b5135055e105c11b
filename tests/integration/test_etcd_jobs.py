"""Whole jobs on real etcd servers: what they leave there, who they share them with, what they tell of themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_agent.rendezvous.codec import job as jobs
from elastic_agent.rendezvous.etcd.cluster import Login
from elastic_agent.rendezvous.etcd.ops import Item, Read
from elastic_agent.rendezvous.records import Outcome
from support.etcd_certificates import Papers
from support.etcd_servers import VERSIONS, Secured, Servers, serving, standing, start_standing
from support.harness import Cluster, Node
from support.procfs import read

PROMISED_S = 10.0
"""An agent that the cluster refuses has said so by then."""
SETTLED_S = 20.0
"""What leases take to run out, and more."""
ROOT_LOGIN = Login("root", "the-root-of-it-all")
USER = Login("trainer", "s3cret-of-the-trainer")
PREFIX = "/jobs/of-trainer"


@pytest.fixture(scope="session", autouse=True)
def _servers() -> None:
    start_standing()


@pytest.fixture(params=VERSIONS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Agents on one server of each version."""
    made = Cluster("etcd", tmp_path, nnodes="2")
    made.meet_at(standing(request.param))
    yield made
    made.close()


def keys(cluster: Cluster, prefix: str = "/elastic-agent", until: set[str] | None = None) -> dict[str, Item]:
    """All that is there of the job, by what comes after its folder; `until`: as soon as it is just these keys."""
    folder = f"{prefix}/{cluster.run_id}/"
    deadline = time.monotonic() + SETTLED_S
    with closing(cluster.etcd.client()) as client:
        while True:
            found = client.read(Read(folder.encode(), prefix=True))
            there = {item.key.decode().removeprefix(folder): item for item in found.items}
            if until is None or there.keys() == until:
                return there
            with closing(client.watch(folder.encode(), prefix=True, start_revision=found.revision + 1)) as watch:
                assert watch.wait(deadline - time.monotonic()), f"there are {sorted(there)}, not {sorted(until)}"


def finish(cluster: Cluster, *nodes: Node) -> None:
    for worker in cluster.desk.world():
        worker.order("exit 0")
    assert [node.wait() for node in nodes] == [0] * len(nodes)


def test_after_a_job_only_its_record_remains_for_a_time(cluster: Cluster) -> None:
    """It tells the outcome, and goes with its lease."""
    nodes = [cluster.start(name, conf={"record_ttl": 600}) for name in "ab"]
    cluster.desk.wait_world(2)
    assert {"job", "1/leader", "1/round-newest"} < keys(cluster).keys()
    finish(cluster, *nodes)
    there = keys(cluster, until={"job"})
    record = jobs.decode_job(there["job"].value)
    assert (record.outcome, record.incarnation) == (Outcome.SUCCEEDED, 1)
    left = json.loads(
        cluster.etcd.ctl("lease", "timetolive", f"{there['job'].lease:x}", "--write-out=json").replace("\n", "")
    )
    assert 500 < left["ttl"] <= 600


def test_a_failed_job_leaves_its_outcome_too(cluster: Cluster) -> None:
    """Whoever looks later learns how it went."""
    nodes = [cluster.start(name, max_restarts=0) for name in "ab"]
    cluster.desk.wait_world(2)[0].order("exit 3")
    assert [node.wait() for node in nodes] == [1, 1]
    record = jobs.decode_job(keys(cluster, until={"job"})["job"].value)
    assert record.outcome is Outcome.FAILED


def test_all_of_a_job_hangs_on_leases(cluster: Cluster) -> None:
    """So that nothing stays for ever of a job whose agents were all killed: the nodes go at once, the rest in time."""
    for name in "ab":
        cluster.start(name, conf={"beat": 0.4, "lease": 2})
    cluster.desk.wait_world(2)
    there = keys(cluster)
    assert all(item.lease for item in there.values())
    for node in cluster.nodes.values():
        node.vanish()
    living = {name for name in there if name.startswith("1/node-live/")} | {"1/leader"}
    keys(cluster, until=there.keys() - living)


def test_a_finished_run_id_begins_a_new_incarnation(cluster: Cluster) -> None:
    """The record says so, and nothing of the first is seen by the second."""
    for incarnation in (1, 2):
        nodes = [cluster.start(f"{name}{incarnation}") for name in "ab"]
        world = cluster.desk.wait_world(2)
        assert {worker.round for worker in world} == {1}
        finish(cluster, *nodes)
        record = jobs.decode_job(keys(cluster, until={"job"})["job"].value)
        assert (record.outcome, record.incarnation) == (Outcome.SUCCEEDED, incarnation)


def test_two_jobs_share_a_cluster_without_seeing_each_other(cluster: Cluster, tmp_path: Path) -> None:
    """One fails and ends; the other never learns of it."""
    (tmp_path / "other").mkdir()
    other = Cluster("etcd", tmp_path / "other", nnodes="2", max_restarts=0)
    other.meet_at(cluster.etcd)
    with closing(other):
        nodes = [cluster.start(name) for name in "ab"]
        world = cluster.desk.wait_world(2)
        others = [other.start(name) for name in "ab"]
        other.desk.wait_world(2)[0].order("exit 3")
        assert [node.wait() for node in others] == [1, 1]
        assert cluster.desk.world() == world
        finish(cluster, *nodes)


def test_an_agent_takes_45_megabytes_at_most(cluster: Cluster) -> None:
    """It holds no OpenSSL either, which would be a tenth of it: what comes in with asyncio, and that with grpc."""
    nodes = [cluster.start(name) for name in "ab"]
    cluster.desk.wait_world(2)
    for node in nodes:
        status = read(f"/proc/{node.process.pid}/status").decode()
        assert int(status.split("VmRSS:")[1].split()[0]) * 1024 <= 45_000_000
        held = read(f"/proc/{node.process.pid}/maps").decode()
        assert "cygrpc" in held
        assert "libcrypto" not in held
    finish(cluster, *nodes)


def test_whoever_wants_ssl_beside_an_agent_on_etcd_has_it() -> None:
    """A user's code may come into the agent's process, as that of an accelerator's package."""
    look = """
from elastic_agent.launcher import store_link
store_link._need_only_grpc()
import asyncio, grpc, ssl
assert asyncio.base_events.ssl is None, "asyncio had OpenSSL all the same"
assert ssl.create_default_context().verify_mode is ssl.CERT_REQUIRED
assert grpc.ssl_channel_credentials() is not None
asyncio.run(asyncio.sleep(0))
"""
    subprocess.run([sys.executable, "-c", look], check=True, timeout=PROMISED_S)


def test_another_node_takes_over_when_the_coordinator_is_killed(cluster: Cluster) -> None:
    """Its workers die with it, the others re-form and go on, and nobody is charged."""
    conf = {"beat": 0.4, "lease": 2}
    nodes = {name: cluster.start(name, nnodes="1:3", conf=conf) for name in "abc"}
    world = cluster.desk.wait_world(3)
    [coordinator] = [name for name, node in nodes.items() if "this node coordinates" in node.text()]
    nodes[coordinator].vanish()
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert {worker.restarts for worker in again} == {0}
    finish(cluster, *(node for name, node in nodes.items() if name != coordinator))


# -- security ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module", params=VERSIONS)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, papers: Papers
) -> Iterator[Servers]:
    """A server with certificates on both sides, users, and one who may do all below PREFIX and nothing else."""
    secured = Secured(*papers.issue("server"), papers.ca_file, asks_clients=True)
    home = tmp_path_factory.mktemp("etcd")
    with serving(request.param, home, secured=secured, tls=papers.tls("client")) as servers:
        servers.require_login(ROOT_LOGIN, USER, PREFIX + "/")
        yield servers


@pytest.fixture
def secure(guarded: Servers, papers: Papers, tmp_path: Path) -> Iterator[Cluster]:
    """Agents that know all they need."""
    tls = papers.tls("agent")
    (tmp_path / "password").write_text(USER.password + "\n")
    conf = {
        "cacert": tls.ca_file,
        "cert": tls.cert_file,
        "key": tls.key_file,
        "user": USER.user,
        "password_file": str(tmp_path / "password"),
        "prefix": PREFIX,
    }
    made = Cluster("etcd", tmp_path, nnodes="2", conf=conf)
    made.meet_at(guarded)
    yield made
    made.close()


def test_a_role_limited_to_the_prefix_and_certificates_are_enough(secure: Cluster) -> None:
    """From the first key to the clearing up."""
    nodes = [secure.start(name) for name in "ab"]
    failing = secure.desk.wait_world(2)[0]
    failing.order("exit 3")
    secure.desk.wait_world(2, after=failing.round)
    finish(secure, *nodes)
    keys(secure, PREFIX, until={"job"})


def test_the_password_is_nowhere_to_be_read(secure: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not in an argument, a log, an event or any file, nor in a worker's environment; from either source."""
    monkeypatch.setenv("ELASTIC_AGENT_ETCD_PASSWORD", USER.password)
    monkeypatch.setenv("LOGLEVEL", "DEBUG")
    monkeypatch.setenv("ELASTIC_AGENT_EVENTS", str(tmp_path / "events"))
    kept = dict(secure._defaults["conf"])
    secure._defaults["conf"].pop("password_file")
    (tmp_path / "password").unlink()
    first = secure.start("a")
    (tmp_path / "elsewhere").write_text(USER.password)
    second = secure.start("b", conf={**kept, "password_file": str(tmp_path / "elsewhere")})
    world = secure.desk.wait_world(2)
    secret = USER.password.encode()
    for worker in world:
        assert secret not in read(f"/proc/{worker.pid}/environ")
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            assert secret not in read(f"/proc/{pid}/cmdline")
    world[0].order("raise of itself")
    secure.desk.wait_world(2, after=world[0].round)
    finish(secure, first, second)
    assert USER.password not in first.text() + second.text()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "elsewhere"]
    assert "events" in {path.name for path in files}
    assert not [path for path in files if secret in path.read_bytes()]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"prefix": "/others"}, "permission denied; grant the user's role this prefix"),
        ({"user": "nobody"}, "login of user 'nobody': authentication failed"),
        ({"password_file": "{wrong}"}, "login of user 'trainer': authentication failed"),
        ({"cacert": "{stranger_ca}"}, "the server's certificate is not signed by the CA"),
        ({"cert": "{late}.pem", "key": "{late}.key"}, "is not good: certificate has expired"),
        ({"cert": "{stranger}.pem", "key": "{stranger}.key"}, "have it signed by the CA"),
        ({"cert": "", "key": ""}, "it asks for a certificate of ours"),
    ],
)
def test_each_refusal_is_one_line_within_seconds(
    secure: Cluster, papers: Papers, tmp_path: Path, changes: dict[str, str], told: str
) -> None:
    """Status 80, and what to correct."""
    (tmp_path / "wrong").write_text("not the password")
    stranger = Papers(tmp_path)
    stranger.issue("stranger", "agent.example")
    papers.issue("late", "agent.example", days=-1)
    places = {
        "wrong": tmp_path / "wrong",
        "stranger_ca": stranger.ca_file,
        "stranger": tmp_path / "stranger",
        "late": papers.directory / "late",
    }
    for key, value in changes.items():
        secure._defaults["conf"][key] = value.format(**places)
        if not value:
            del secure._defaults["conf"][key]
    began = time.monotonic()
    node = secure.start("a")
    assert node.wait() == 80
    assert time.monotonic() - began < PROMISED_S
    last = node.text().strip().splitlines()[-1]
    assert last.startswith("elastic-agent: exit 80: ")
    assert told in last
    assert "Traceback" not in node.text()


def test_nobody_at_the_endpoints_is_said_when_the_time_has_passed(cluster: Cluster) -> None:
    """With each of them."""
    cluster._endpoint = "127.0.0.1:1,127.0.0.1:2"
    node = cluster.start("a", conf={"read_timeout": 1})
    assert node.wait() == 80
    last = node.text().strip().splitlines()[-1]
    assert "127.0.0.1:1" in last
    assert "127.0.0.1:2" in last
