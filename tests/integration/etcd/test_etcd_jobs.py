"""Whole jobs on real etcd servers: their keys and leases, several jobs on one cluster, takeover, TLS and logins."""

from __future__ import annotations

import glob
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
from elastic_agent.rendezvous.etcd.credentials import Login
from elastic_agent.rendezvous.etcd.ops import Delete, Item, Read
from elastic_agent.rendezvous.records import Outcome
from support.etcd_certificates import Certificates
from support.etcd_servers import VERSIONS, Servers, ServerTls, serving, shared_servers, start_shared_servers
from support.harness import Cluster, Node
from support.procfs import read, slowed

REFUSED_WITHIN_S = 10.0
"""Bound on the exit of an agent that the cluster refuses."""
SETTLED_S = 20.0
"""Bound on the expiry of a node's lease."""
ROOT_LOGIN = Login("root", "the-root-of-it-all")
USER = Login("trainer", "s3cret-of-the-trainer")
PREFIX = "/jobs/of-trainer"


@pytest.fixture(scope="session", autouse=True)
def _servers() -> None:
    start_shared_servers()


@pytest.fixture(params=VERSIONS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Agents on one server of each version."""
    servers = shared_servers(request.param)
    made = Cluster("etcd", tmp_path, nnodes="2")
    made.meet_at(servers)
    yield made
    made.close()


def keys(cluster: Cluster, prefix: str = "/elastic-agent", until: set[str] | None = None) -> dict[str, Item]:
    """All items of the job, by their keys without the job's folder. `until`: wait until there are exactly these."""
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


def test_after_a_job_only_its_record_remains_for_record_ttl(cluster: Cluster) -> None:
    """The record has the outcome, and expires with its lease."""
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


def test_the_record_of_a_failed_job_has_its_outcome(cluster: Cluster) -> None:
    """Read after all agents have exited."""
    nodes = [cluster.start(name, max_restarts=0) for name in "ab"]
    cluster.desk.wait_world(2)[0].order("exit 3")
    assert [node.wait() for node in nodes] == [1, 1]
    record = jobs.decode_job(keys(cluster, until={"job"})["job"].value)
    assert record.outcome is Outcome.FAILED


def test_every_key_of_a_job_is_attached_to_a_lease(cluster: Cluster) -> None:
    """So the keys of a job whose agents were all killed expire: those of the nodes within seconds, the others with the
    job's lease."""
    for name in "ab":
        cluster.start(name, conf={"beat": 0.4, "lease": 2})
    cluster.desk.wait_world(2)
    assert all(item.lease for item in keys(cluster).values())
    for node in cluster.nodes.values():
        node.vanish()
        node.wait()
    there = keys(cluster)  # nobody writes any more
    assert all(item.lease for item in there.values())
    living = {name for name in there if name.startswith("1/node-live/")} | {"1/leader"}
    keys(cluster, until=there.keys() - living)


def test_a_job_whose_keys_somebody_deleted_ends_and_says_so(cluster: Cluster) -> None:
    """At once, on every node, with the key that is gone and what to do."""
    nodes = [cluster.start(name) for name in "ab"]
    cluster.desk.wait_world(2)
    folder = f"/elastic-agent/{cluster.run_id}/".encode()
    with closing(cluster.etcd.client()) as client:
        client.txn([], [Delete(folder, prefix=True)])
    assert [node.wait() for node in nodes] == [80, 80]
    for node in nodes:
        assert f"{cluster.run_id}/1/" in node.last_line()
        assert "is gone, which somebody has deleted; restart the job" in node.last_line()


def test_reusing_a_finished_run_id_starts_a_new_incarnation(cluster: Cluster) -> None:
    """The record counts it, and the second run does not read the first one's keys."""
    for incarnation in (1, 2):
        nodes = [cluster.start(f"{name}{incarnation}") for name in "ab"]
        world = cluster.desk.wait_world(2)
        assert {worker.round for worker in world} == {1}
        finish(cluster, *nodes)
        record = jobs.decode_job(keys(cluster, until={"job"})["job"].value)
        assert (record.outcome, record.incarnation) == (Outcome.SUCCEEDED, incarnation)


def test_two_jobs_share_a_cluster_without_seeing_each_other(cluster: Cluster, tmp_path: Path) -> None:
    """One fails and ends; the other runs on."""
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


def test_an_agent_uses_at_most_42_megabytes(cluster: Cluster) -> None:
    """OpenSSL is not loaded: asyncio, which grpc imports, would load it, at a tenth of the memory."""
    nodes = [cluster.start(name) for name in "ab"]
    cluster.desk.wait_world(2)
    for node in nodes:
        status = read(f"/proc/{node.process.pid}/status").decode()
        assert int(status.split("VmRSS:")[1].split()[0]) * 1024 <= 42_000_000
        held = read(f"/proc/{node.process.pid}/maps").decode()
        assert "cygrpc" in held
        assert "libcrypto" not in held
    finish(cluster, *nodes)


def test_ssl_can_still_be_imported_in_an_agent_on_etcd() -> None:
    """User code may run in the agent's process, such as an accelerator's package."""
    look = """
from elastic_agent.launcher import store_link
store_link._need_only_grpc()
import asyncio, grpc, ssl
assert asyncio.base_events.ssl is None, "asyncio has imported ssl"
assert ssl.create_default_context().verify_mode is ssl.CERT_REQUIRED
assert grpc.ssl_channel_credentials() is not None
asyncio.run(asyncio.sleep(0))
"""
    subprocess.run([sys.executable, "-c", look], check=True, timeout=60)


def test_another_node_takes_over_when_the_coordinator_is_killed(cluster: Cluster) -> None:
    """Its workers are killed with it, the others re-form and go on, and no node is charged."""
    conf = {"beat": 0.4, "lease": 2}
    nodes = {name: cluster.start(name, nnodes="1:3", conf=conf) for name in "abc"}
    world = cluster.desk.wait_world(3)
    [coordinator] = [name for name, node in nodes.items() if "this node coordinates" in node.text()]
    nodes[coordinator].vanish()
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert {worker.restarts for worker in again} == {0}
    finish(cluster, *(node for name, node in nodes.items() if name != coordinator))


# -- security ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=VERSIONS)
def secured_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Servers]:
    """A server that requires certificates and a login; USER may do everything below PREFIX and nothing else."""
    server_tls = ServerTls(*certificates.issue("server"), certificates.ca_file, require_client_cert=True)
    home = tmp_path_factory.mktemp("etcd")
    with serving(request.param, home, server_tls=server_tls, tls=certificates.tls("client")) as servers:
        servers.require_login(ROOT_LOGIN, USER, PREFIX + "/")
        yield servers


@pytest.fixture
def secure_cluster(secured_servers: Servers, certificates: Certificates, tmp_path: Path) -> Iterator[Cluster]:
    """Agents with a valid certificate, user and password."""
    tls = certificates.tls("agent")
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
    made.meet_at(secured_servers)
    yield made
    made.close()


def test_a_role_limited_to_the_prefix_and_certificates_are_enough(secure_cluster: Cluster) -> None:
    """For a whole job, its clean-up included."""
    nodes = [secure_cluster.start(name) for name in "ab"]
    failing = secure_cluster.desk.wait_world(2)[0]
    failing.order("exit 3")
    secure_cluster.desk.wait_world(2, after=failing.round)
    finish(secure_cluster, *nodes)
    keys(secure_cluster, PREFIX, until={"job"})


def test_the_password_is_in_no_argument_log_event_or_file(
    secure_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor in a worker's environment, whether the password comes from the variable or from a file."""
    monkeypatch.setenv("ELASTIC_AGENT_ETCD_PASSWORD", USER.password)
    monkeypatch.setenv("LOGLEVEL", "DEBUG")
    monkeypatch.setenv("ELASTIC_AGENT_EVENTS", str(tmp_path / "events"))
    kept = dict(secure_cluster._defaults["conf"])
    secure_cluster._defaults["conf"].pop("password_file")
    (tmp_path / "password").unlink()
    first = secure_cluster.start("a")
    (tmp_path / "elsewhere").write_text(USER.password)
    second = secure_cluster.start("b", conf={**kept, "password_file": str(tmp_path / "elsewhere")})
    world = secure_cluster.desk.wait_world(2)
    secret = USER.password.encode()
    for worker in world:
        assert secret not in read(f"/proc/{worker.pid}/environ")
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            assert secret not in read(f"/proc/{pid}/cmdline")
    world[0].order("raise of itself")
    secure_cluster.desk.wait_world(2, after=world[0].round)
    finish(secure_cluster, first, second)
    assert USER.password not in first.text() + second.text()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "elsewhere"]
    assert "events" in {path.name for path in files}
    assert not [path for path in files if secret in path.read_bytes()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefix": "/others"}, "permission denied; grant the user's role this prefix"),
        ({"user": "nobody"}, "login of user 'nobody': authentication failed"),
        ({"password_file": "{wrong}"}, "login of user 'trainer': authentication failed"),
        ({"cacert": "{stranger_ca}"}, "the server's certificate is not signed by the CA"),
        ({"cert": "{late}.pem", "key": "{late}.key"}, "is not valid: certificate has expired"),
        ({"cert": "{stranger}.pem", "key": "{stranger}.key"}, "have it signed by the CA"),
        ({"cert": "", "key": ""}, "the server requires a client certificate"),
    ],
)
def test_each_refusal_is_one_line_within_seconds(
    secure_cluster: Cluster, certificates: Certificates, tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    """Exit status 80, and what to correct."""
    (tmp_path / "wrong").write_text("not the password")
    stranger = Certificates(tmp_path)
    stranger.issue("stranger", "agent.example")
    certificates.issue("late", "agent.example", days=-1)
    places = {
        "wrong": tmp_path / "wrong",
        "stranger_ca": stranger.ca_file,
        "stranger": tmp_path / "stranger",
        "late": certificates.directory / "late",
    }
    for key, value in changes.items():
        secure_cluster._defaults["conf"][key] = value.format(**places)
        if not value:
            del secure_cluster._defaults["conf"][key]
    began = time.monotonic()
    node = secure_cluster.start("a")
    assert node.wait() == 80
    assert time.monotonic() - began < slowed(REFUSED_WITHIN_S)
    last = node.text().strip().splitlines()[-1]
    assert last.startswith("elastic-agent: exit 80: ")
    assert message in last
    assert "Traceback" not in node.text()


def test_unreachable_endpoints_are_reported_after_read_timeout(cluster: Cluster) -> None:
    """Each of them, with its reason."""
    cluster.endpoint = "127.0.0.1:1,127.0.0.1:2"
    node = cluster.start("a", conf={"read_timeout": 1})
    assert node.wait() == 80
    last = node.text().strip().splitlines()[-1]
    assert "127.0.0.1:1" in last
    assert "127.0.0.1:2" in last


@pytest.mark.parametrize("endpoints", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"])
def test_a_dead_cluster_is_given_up_after_the_join_timeout(cluster: Cluster, endpoints: str) -> None:
    """If that is shorter than `read_timeout`, 60 s: a node that has waited so long could not join any more."""
    cluster.endpoint = endpoints
    began = time.monotonic()
    node = cluster.start("a", conf={"join_timeout": 3})
    assert node.wait() == 80
    assert 3.0 <= time.monotonic() - began < 3.0 + slowed(REFUSED_WITHIN_S)
    assert "gave up on etcd after 3 s: reading of the job's record: no etcd server can be reached" in node.last_line()


def test_the_password_is_in_no_environment(secure_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the agent, which was given it there, nor of guardian, nursery, zygote and workers: all that the kernel
    shows in `/proc/PID/environ`."""
    monkeypatch.setenv("ELASTIC_AGENT_ETCD_PASSWORD", USER.password)
    monkeypatch.setenv("ELASTIC_AGENT_STAYS", "yes")
    secure_cluster._defaults["conf"].pop("password_file")
    nodes = [secure_cluster.start(name, flags=["--preload", "json"]) for name in "ab"]
    secure_cluster.desk.wait_world(2)
    secret, found = USER.password.encode(), set()
    for node in nodes:
        for pid in below(node.process.pid):
            if not (environment := read(f"/proc/{pid}/environ")):
                continue  # it has ended
            assert secret not in environment
            assert b"ELASTIC_AGENT_ETCD_PASSWORD" not in environment
            assert b"\0ELASTIC_AGENT_STAYS=yes\0" in b"\0" + environment
            found.add(read(f"/proc/{pid}/comm").strip())
    assert {b"elastic-guard", b"elastic-nursery", b"elastic-zygote"} < found
    finish(secure_cluster, *nodes)


def below(pid: int) -> list[int]:
    """This process, its children, and theirs."""
    found = [pid]
    for each in found:
        for path in glob.glob(f"/proc/{each}/task/*/children"):  # none: it has ended
            found += map(int, read(path).split())
    return found
