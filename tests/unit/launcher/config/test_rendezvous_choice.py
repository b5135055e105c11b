"""LaunchConfig: which job it describes, and which rendezvous its fields choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_agent.agent.spec import EtcdSpec
from elastic_agent.launcher.config.config import LaunchConfig, plan
from elastic_agent.rendezvous.records import Survivor
from support.rigs.plans import C10D, ENDPOINT, ETCD, met, planned, refusal


@pytest.mark.parametrize(
    ("argv", "title", "command"),
    [
        (("python", "-u", "train.py", "--lr", "1"), "train.py", ("train.py", "--lr", "1")),
        (("/opt/other/python3.12", "-u", "./train.py"), "./train.py", ("train.py",)),
        (("python", "-u", "-m", "pkg.train", "train.py"), "pkg.train", ("-m", "pkg.train", "train.py")),
        (("python", "-u", "-m", "elastic_agent.launcher.in_worker.run_path", "a/../b.py"), "a/../b.py", ("b.py",)),
        (("./run.sh", "x"), "./run.sh", ("./run.sh", "x")),
        (("python", "-u", "runner", "folder"), "a_function", ("a_function",)),
    ],
)
def test_a_job_is_identified_by_script_and_arguments(
    argv: tuple[str, ...], title: str, command: tuple[str, ...]
) -> None:
    """The interpreter, and the spelling of the script's path, may differ from node to node."""
    assert plan(LaunchConfig(), argv, title, {}).rendezvous.command == command


@pytest.mark.parametrize(("nproc", "rule"), [(1, "number"), (8, "number"), ("4", "number"), ("cpu", "cpu")])
def test_numbers_of_workers_are_one_rule_and_each_device_another(nproc: int | str, rule: str) -> None:
    """Nodes with different numbers of workers may be in one job."""
    assert met(nproc_per_node=nproc).nproc == rule


def test_settings_of_one_node_are_no_part_of_the_job() -> None:
    """Rank, address, budget, output and times may differ from node to node."""
    own = {"node_rank": 3, "local_addr": "h", "max_restarts": 9, "tee": 3, "exit_barrier_timeout": 5.0, "role": "r"}
    plain, odd = met(**C10D), met(**C10D, **own)
    assert [getattr(plain, part) for part in ("run_id", "command", "min_nodes", "max_nodes", "nproc")] == [
        getattr(odd, part) for part in ("run_id", "command", "min_nodes", "max_nodes", "nproc")
    ]


# -- c10d with several nodes that may host ------------------------------------------------------------------------


def test_a_c10d_store_may_have_several_nodes_to_host_it() -> None:
    """Each with c10d's port unless it names another; all in the order given."""
    several = met(**{**C10D, "rdzv_endpoint": "node0, node1:29500,[::1]:5"})
    assert several.endpoint == "node0:29400,node1:29500,[::1]:5"
    assert (several.listed, met(**C10D).listed) == (True, False)


def test_any_member_of_a_c10d_job_may_host_its_store_next() -> None:
    """Not of a job of one node, nor where --node-rank says which node hosts."""
    several = met(**{**C10D, "rdzv_endpoint": "node0,node1"})
    assert (several.succeeds, met(**C10D).succeeds, met(**ETCD).succeeds) == (True, True, False)
    assert not met(**{**C10D, "min_nodes": 1, "max_nodes": 1}).succeeds
    static = met(rdzv_backend="static", rdzv_endpoint="node0:29500", min_nodes=2, max_nodes=2, node_rank=1)
    assert (static.backend, static.succeeds) == ("c10d", False)


@pytest.mark.parametrize(
    ("endpoint", "conf", "part"),
    [
        ("node0,node0:29400", {}, "names one endpoint twice"),
        ("node0,node1:0", {}, "port 0 means any"),
        ("node0,", {}, "a comma with no node beside it"),
        ("node0,node1", {"is_host": "1"}, "leave is_host out"),
    ],
)
def test_a_list_of_hosts_that_cannot_work_is_refused(endpoint: str, conf: dict[str, str], part: str) -> None:
    assert part in refusal(**{**C10D, "rdzv_endpoint": endpoint, "rdzv_configs": conf})


# -- etcd ----------------------------------------------------------------------------------------------------------


def etcd(env: dict[str, str] | None = None, **conf: str) -> EtcdSpec:
    return planned(env, **ETCD, rdzv_configs=conf).rendezvous.etcd


def test_etcd_has_neither_tls_nor_a_user_by_default() -> None:
    """A password variable without a user changes nothing."""
    assert etcd({"ELASTIC_AGENT_ETCD_PASSWORD": "p"}) == EtcdSpec()


def test_certificates_for_etcd_may_have_either_name() -> None:
    """torch's names for the files of etcd-v2 are accepted too; certificates mean https."""
    ours = etcd(cacert="a", cert="b", key="c")
    assert ours == EtcdSpec(tls=True, ca_file="a", cert_file="b", key_file="c")
    assert etcd(ca_cert="a", ssl_cert="b", ssl_cert_key="c") == ours
    assert etcd(protocol="https") == EtcdSpec(tls=True)
    assert planned(rdzv_backend="etcd", rdzv_endpoint="https://h").rendezvous.etcd == EtcdSpec(tls=True)


def test_etcds_password_comes_from_a_file_or_from_a_variable_that_no_worker_sees(tmp_path: Path) -> None:
    """It does not have to be typed, and `repr` does not show it."""
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    assert etcd(user="u", password_file=str(path)) == EtcdSpec(user="u", password_file=str(path))
    env = {"ELASTIC_AGENT_ETCD_PASSWORD": "s3cret", "OTHER": "1"}
    assert etcd(env, user="u") == EtcdSpec(user="u", password="s3cret")
    done = planned(env, **ETCD, rdzv_configs={"user": "u"})
    assert done.workers.base_env["OTHER"] == "1"
    assert "s3cret" not in repr(done)


# -- which rendezvous ----------------------------------------------------------------------------------------------

MODES = [
    # fields, (backend, endpoint, min, max, static, is_host, node_rank), (master_addr, master_port) of the workers
    ({}, ("memory", "", 1, 1, False, None, None), (None, None)),
    ({"standalone": True}, ("memory", "", 1, 1, False, None, None), (None, None)),
    ({"standalone": True, **C10D}, ("memory", "", 1, 1, False, None, None), (None, None)),
    ({"standalone": True, "rdzv_backend": "etcd"}, ("memory", "", 1, 1, False, None, None), (None, None)),
    ({"rdzv_backend": "static"}, ("memory", "", 1, 1, False, None, None), (None, None)),
    # torch: without a master port, a single static node is standalone, whatever its address and rank.
    ({"rdzv_backend": "static", "master_addr": "h"}, ("memory", "", 1, 1, False, None, None), (None, None)),
    ({"rdzv_backend": "static", "node_rank": 0}, ("memory", "", 1, 1, False, None, None), (None, None)),
    ({"rdzv_backend": "static", "master_port": 5}, ("memory", "", 1, 1, False, None, None), ("127.0.0.1", 5)),
    ({"master_addr": "h", "master_port": 5}, ("memory", "", 1, 1, False, None, None), ("h", 5)),
    ({"rdzv_backend": "static", "rdzv_endpoint": "h:7"}, ("memory", "", 1, 1, False, None, None), ("h", 7)),
    ({"min_nodes": 2, "max_nodes": 2}, ("c10d", "127.0.0.1:29500", 2, 2, True, True, 0), (None, None)),
    (
        {"min_nodes": 2, "max_nodes": 2, "master_addr": "h", "master_port": 6, "node_rank": 1},
        ("c10d", "h:6", 2, 2, True, False, 1),
        (None, None),
    ),
    ({"max_nodes": 3, "master_addr": "h", "node_rank": 2}, ("c10d", "h:29500", 3, 3, True, False, 2), (None, None)),
    ({"max_nodes": 3, "master_addr": "[::1]"}, ("c10d", "[::1]:29500", 3, 3, True, True, 0), (None, None)),
    (
        {"max_nodes": 3, "rdzv_backend": "static", "rdzv_configs": {"rank": 1, "timeout": 900}},
        ("c10d", "127.0.0.1:29500", 3, 3, True, False, 1),
        (None, None),
    ),
    (C10D, ("c10d", ENDPOINT, 1, 4, False, None, None), (None, None)),
    ({**C10D, "rdzv_backend": ""}, ("c10d", ENDPOINT, 1, 4, False, None, None), (None, None)),
    ({**C10D, "node_rank": 3}, ("c10d", ENDPOINT, 1, 4, False, None, 3), (None, None)),
    ({**C10D, "rdzv_endpoint": "node0"}, ("c10d", ENDPOINT, 1, 4, False, None, None), (None, None)),
    ({**C10D, "rdzv_endpoint": "[::1]:5"}, ("c10d", "[::1]:5", 1, 4, False, None, None), (None, None)),
    ({**C10D, "rdzv_endpoint": "[::1]"}, ("c10d", "[::1]:29400", 1, 4, False, None, None), (None, None)),
    ({**C10D, "rdzv_configs": {"is_host": "True"}}, ("c10d", ENDPOINT, 1, 4, False, True, None), (None, None)),
    ({**C10D, "max_nodes": 1}, ("c10d", ENDPOINT, 1, 1, False, None, None), (None, None)),
    ({"rdzv_backend": "c10d"}, ("memory", "", 1, 1, False, None, None), (None, None)),
    (ETCD, ("etcd", "h1:2379,h2:2379,[::1]:5", 1, 4, False, None, None), (None, None)),
    ({**ETCD, "node_rank": 3}, ("etcd", "h1:2379,h2:2379,[::1]:5", 1, 4, False, None, 3), (None, None)),
    (
        {"rdzv_backend": "etcd", "rdzv_endpoint": "https://h1,https://h2:7/"},
        ("etcd", "h1:2379,h2:7", 1, 1, False, None, None),
        (None, None),
    ),
    ({**C10D, "rdzv_endpoint": "localhost:0"}, ("memory", "", 1, 1, False, None, None), (None, None)),
]


@pytest.mark.parametrize(("fields", "rendezvous", "master"), MODES)
def test_mode_is_chosen_as_torchrun_chooses(
    fields: dict[str, Any], rendezvous: tuple[object, ...], master: tuple[object, ...]
) -> None:
    """Backend, endpoint, sizes and roles follow from the fields by torchrun's rules."""
    done = planned(**fields)
    spec = done.rendezvous
    chosen = (spec.backend, spec.endpoint, spec.min_nodes, spec.max_nodes, spec.static, spec.is_host, spec.node_rank)
    assert chosen == rendezvous
    assert (done.workers.master_addr, done.workers.master_port) == master


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"standalone": True, "min_nodes": 2, "max_nodes": 2}, "--standalone runs on this node alone"),
        ({"rdzv_backend": "c10d", "max_nodes": 2}, "needs --rdzv-endpoint HOST:PORT"),
        ({"rdzv_backend": "etcd"}, "etcd needs --rdzv-endpoint"),
        ({**ETCD, "rdzv_endpoint": "ftp://h:1"}, "'ftp' is neither http nor https"),
        ({**ETCD, "rdzv_endpoint": "http://a,https://b"}, "mixes http, https"),
        ({**ETCD, "rdzv_endpoint": "a:1,,b:2"}, "give HOST:PORT"),
        ({**ETCD, "rdzv_configs": {"is_host": "1"}}, "with etcd no node hosts"),
        ({**ETCD, "rdzv_configs": {"prefix": "/"}}, "--rdzv-conf prefix is '/'"),
        ({**ETCD, "rdzv_configs": {"prefix": "/a", "etcd_prefix": "/b"}}, "gives both prefix and etcd_prefix"),
        ({**ETCD, "rdzv_configs": {"record_ttl": "5"}}, "record_ttl is 5 s, less than 60"),
        ({**ETCD, "rdzv_configs": {"protocol": "grpc"}}, "protocol is 'grpc'; give http or https"),
        ({**ETCD, "rdzv_endpoint": "http://h", "rdzv_configs": {"protocol": "https"}}, "--rdzv-endpoint has http://"),
        ({**ETCD, "rdzv_configs": {"protocol": "http", "cacert": "f"}}, "http has no certificates"),
        ({**ETCD, "rdzv_configs": {"cert": "f"}}, "gives cert and no key"),
        ({**ETCD, "rdzv_configs": {"user": "u"}}, "there is no password"),
        ({**ETCD, "rdzv_configs": {"password_file": "/f"}}, "gives password_file and no user"),
        ({**ETCD, "rdzv_configs": {"user": "u", "password_file": "/not/there"}}, "No such file or directory"),
        ({**C10D, "rdzv_configs": {"cacert": "f"}}, "has no key 'cacert'"),
        ({"rdzv_backend": "etcd-v2"}, "etcd 3.6 removed"),
        ({"rdzv_backend": "c1od"}, "'c1od', which is unknown; did you mean 'c10d'?"),
        ({"rdzv_backend": "C10D"}, "did you mean 'c10d'?"),
        ({"rdzv_backend": "mine"}, "no package has a handler of that name"),
        ({"max_nodes": 2, "node_rank": 2}, "--node-rank is 2, but with --nnodes 2 it must be 0 to 1"),
        ({"master_port": 5, "node_rank": 1}, "--node-rank is 1"),
        ({**C10D, "node_rank": -1}, "--node-rank is -1"),
        ({"master_port": 70000}, "--master-port is 70000"),
        ({"max_nodes": 2, "master_port": 0}, "0, which means any"),
        ({"max_nodes": 2, "master_addr": "a b"}, "--master-addr is 'a b:29500'"),
        ({"rdzv_backend": "static", "rdzv_endpoint": "h"}, "has no port"),
        ({"rdzv_backend": "static", "rdzv_endpoint": "a:5,b:5"}, "names several nodes, and in a static rendezvous"),
        ({**C10D, "rdzv_endpoint": "h:"}, "ends in a colon"),
        ({**C10D, "rdzv_endpoint": "192.0.2.1:5:6"}, "give HOST:PORT, or [ADDRESS]:PORT for IPv6"),
        ({**C10D, "rdzv_endpoint": "2001:db8::5"}, "give HOST:PORT, or [ADDRESS]:PORT for IPv6"),
        ({"max_nodes": 2, "master_addr": "h:5"}, "--master-addr is 'h:5'; give the address alone"),
        ({**C10D, "rdzv_endpoint": "h:99999"}, "'99999'"),
        ({**C10D, "rdzv_endpoint": "h:http"}, "'http'"),
        ({**C10D, "rdzv_endpoint": "http://h:5"}, "give HOST:PORT"),
        ({**C10D, "min_nodes": 2, "rdzv_endpoint": "h:0"}, "port 0 means any, which other nodes cannot know"),
        ({"max_nodes": 2, "node_rank": 1, "rdzv_configs": {"is_host": "1"}}, "is node 1, and node 0 hosts the store"),
        ({**C10D, "max_nodes": 1, "rdzv_configs": {"survivor": "go"}}, "several nodes, but --nnodes allows 1"),
        ({**ETCD, "rdzv_configs": {"survivor": "go"}}, "but with etcd no node hosts the store"),
        ({"max_nodes": 2, "rdzv_configs": {"survivor": "go"}}, "but node 0 hosts the store of a static rendezvous"),
        (
            {**C10D, "rdzv_configs": {"survivor": "yes"}},
            "--rdzv-conf survivor is 'yes'; give one of wait, majority, go",
        ),
        (
            {**C10D, "max_nodes": 3, "rdzv_configs": {"survivor": "majority", "beat": 1, "lease": 3}},
            "needs a lease of 5 heartbeats at least, but lease is 3 s and beat 1 s; give lease=5",
        ),
    ],
)
def test_a_rendezvous_that_cannot_work_is_refused(fields: dict[str, Any], message: str) -> None:
    """Settings with which the job would hang or split are an error before anything starts."""
    assert message in refusal(**fields)


@pytest.mark.parametrize(
    ("nodes", "conf", "survivor", "outvotes"),
    [
        (3, {}, Survivor.MAJORITY, True),
        (3, {"survivor": "wait"}, Survivor.WAIT, False),
        (3, {"survivor": "go"}, Survivor.GO, True),
        (2, {}, Survivor.WAIT, False),
        (2, {"survivor": "majority"}, Survivor.WAIT, False),
        (2, {"survivor": "go"}, Survivor.GO, False),
        (3, {"beat": 1, "lease": 3}, Survivor.WAIT, False),
    ],
)
def test_a_silent_host_is_replaced_by_a_majority_where_there_can_be_one(
    nodes: int, conf: dict[str, Any], survivor: Survivor, *, outvotes: bool
) -> None:
    """By default; it takes three nodes, and a host that finds in time, by heartbeats, that it has none."""
    spec = planned(**{**C10D, "max_nodes": nodes, "rdzv_configs": conf}).rendezvous
    assert (spec.survivor, spec.outvotes) == (survivor, outvotes)


@pytest.mark.parametrize(
    ("fields", "beat_s", "lease_s"),
    [
        ({**ETCD}, 1.0, 5.0),
        ({**ETCD, "rdzv_configs": {"lease": 3, "beat": 1}}, 1.0, 3.0),
        ({**ETCD, "rdzv_configs": {"lease": 1.5, "beat": 1}}, 0.5, 1.5),
        ({**ETCD, "rdzv_configs": {"keep_alive_interval": 6, "keep_alive_max_attempt": 2}}, 4.0, 12.0),
        ({**C10D, "rdzv_configs": {"lease": 1.5, "beat": 1}}, 1.0, 1.5),
    ],
)
def test_on_etcd_a_lease_has_three_heartbeats_at_least(fields: dict[str, Any], beat_s: float, lease_s: float) -> None:
    """Of fewer none would be answered within half a lease of the last, and no lost node would be noticed."""
    spec = planned(**fields).rendezvous
    assert (spec.beat_s, spec.lease_s) == (beat_s, lease_s)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"standalone": True, "max_nodes": 2}, "no other node can join"),
        ({"standalone": True, "node_rank": 1}, "--node-rank 1 has no effect"),
        ({**C10D, "rdzv_endpoint": "localhost:0"}, "no other node can join"),
        ({"max_nodes": 2}, "--nnodes 1:2 means exactly 2"),
        ({**C10D, "rdzv_configs": {"timeout": 900}}, "timeout=900 has no effect here"),
        ({**C10D, "run_id": ""}, "give every node the same --rdzv-id"),
        ({"nproc_per_node": 2}, "OMP_NUM_THREADS=1"),
    ],
)
def test_what_has_another_effect_than_it_seems_is_a_warning(fields: dict[str, Any], message: str) -> None:
    """A setting that works, but not as a user may expect, brings one line."""
    (warning,) = planned(**fields).warnings
    assert message in warning
    assert "\n" not in warning


@pytest.mark.parametrize("fields", [{}, C10D, {"master_port": 5}, {"min_nodes": 2, "max_nodes": 2}])
def test_an_ordinary_configuration_brings_no_warning(fields: dict[str, Any]) -> None:
    """A warning that always comes would not be read."""
    assert planned(**fields).warnings == ()


# -- run id --------------------------------------------------------------------------------------------------------


def test_run_id_is_one_for_both_descriptions() -> None:
    """Rendezvous and workers have the same run id, with any characters."""
    done = planned(**C10D, run_id="job/ü 1")
    assert (done.rendezvous.run_id, done.workers.run_id) == ("job/ü 1", "job/ü 1")


def test_empty_run_id_becomes_a_random_one() -> None:
    """It is another one each time, and the same for rendezvous and workers."""
    one, two = (planned(**C10D, run_id="") for _ in range(2))
    assert one.rendezvous.run_id == one.workers.run_id != two.workers.run_id


def test_a_job_of_one_node_gets_a_uuid_as_torchrun_gives_it() -> None:
    """Without --rdzv-id, the run id of a job on one node is a random UUID, version 4."""
    from uuid import UUID

    assert UUID(planned().workers.run_id).version == 4
    assert planned(run_id="mine").workers.run_id == "mine"


def test_a_static_node_keeps_the_default_run_id() -> None:
    """torchrun keeps "none" for a static rendezvous."""
    assert planned(master_port=5).workers.run_id == "none"
