"""LaunchConfig: what its fields mean, which rendezvous they choose, and which values are refused."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.agent.spec import EtcdSpec, RendezvousSpec, Rotation
from elastic_agent.launcher.config import devices, values
from elastic_agent.launcher.config.config import LaunchConfig, Plan, plan
from elastic_agent.launcher.config.devices import count_local_workers
from elastic_agent.launcher.config.rdzv_conf import KEYS
from elastic_agent.rendezvous.codec import limits

ENDPOINT = "node0:29400"
C10D = {"max_nodes": 4, "rdzv_backend": "c10d", "rdzv_endpoint": ENDPOINT}
ETCD: dict[str, Any] = {
    "rdzv_backend": "etcd",
    "rdzv_endpoint": "h1, h2:2379,[::1]:5,h1:2379",
    "min_nodes": 1,
    "max_nodes": 4,
}


def planned(around: Mapping[str, str] | None = None, /, **fields: Any) -> Plan:
    return plan(LaunchConfig(**fields), ("python", "train.py"), "train.py", around or {})


def met(**fields: Any) -> RendezvousSpec:
    return planned(**fields).rendezvous


def refusal(around: Mapping[str, str] | None = None, /, **fields: Any) -> str:
    with pytest.raises(UsageError) as caught:
        planned(around, **fields)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


# -- what must be the same on all nodes of a job -------------------------------------------------------------------


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
        ({**C10D, "rdzv_endpoint": "h:"}, "ends in a colon"),
        ({**C10D, "rdzv_endpoint": "h:99999"}, "'99999'"),
        ({**C10D, "rdzv_endpoint": "h:http"}, "'http'"),
        ({**C10D, "rdzv_endpoint": "http://h:5"}, "give HOST:PORT"),
        ({**C10D, "min_nodes": 2, "rdzv_endpoint": "h:0"}, "port 0 means any, which other nodes cannot know"),
        ({"max_nodes": 2, "node_rank": 1, "rdzv_configs": {"is_host": "1"}}, "is node 1, and node 0 hosts the store"),
    ],
)
def test_a_rendezvous_that_cannot_work_is_refused(fields: dict[str, Any], message: str) -> None:
    """Settings with which the job would hang or split are an error before anything starts."""
    assert message in refusal(**fields)


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


# -- rendezvous configuration --------------------------------------------------------------------------------------

DEFAULTS = RendezvousSpec()
CONF = [
    ({}, {}),
    ({"join_timeout": "60"}, {"join_timeout_s": 60.0}),
    ({"last_call_timeout": "10"}, {"last_call_timeout_s": 10.0}),
    ({"last_call_timeout": "2"}, {"last_call_timeout_s": 2.0, "quiet_s": 2.0}),
    ({"last_call_timeout": "0"}, {"last_call_timeout_s": 0.0, "quiet_s": 0.0}),
    ({"quiet": "0.5"}, {"quiet_s": 0.5}),
    ({"last_call_quiet": "0.5"}, {"quiet_s": 0.5}),
    ({"quiet": "60", "last_call_timeout": "60"}, {"quiet_s": 60.0, "last_call_timeout_s": 60.0}),
    ({"beat": "0.2", "lease": "1"}, {"beat_s": 0.2, "lease_s": 1.0}),
    ({"lease": "20"}, {"lease_s": 20.0}),
    ({"keep_alive_interval": "2"}, {"beat_s": 2.0, "lease_s": 6.0}),
    ({"keep_alive_max_attempt": "4"}, {"beat_s": 5.0, "lease_s": 20.0}),
    ({"keep_alive_interval": 2, "keep_alive_max_attempt": 5}, {"beat_s": 2.0, "lease_s": 10.0}),
    ({"store_grace": "5"}, {"store_grace_s": 5.0}),
    ({"read_timeout": "5"}, {"connect_timeout_s": 5.0}),
    ({"is_host": "yes"}, {"is_host": True}),
    ({"is_host": False}, {"is_host": False}),
    ({"store_type": "tcp"}, {}),
    ({"timeout": "900"}, {}),
    ({"close_timeout": "1", "heartbeat_timeout": "1"}, {}),
]


@pytest.mark.parametrize(("configs", "changed"), CONF)
def test_each_key_of_rdzv_conf_sets_one_time(configs: dict[str, Any], changed: dict[str, Any]) -> None:
    """All others stay at their defaults, except those that are bounded by it."""
    spec = met(**C10D, rdzv_configs=configs)
    names = "join_timeout_s last_call_timeout_s quiet_s beat_s lease_s store_grace_s connect_timeout_s is_host"
    expected = {name: getattr(DEFAULTS, name) for name in names.split()} | changed
    assert {name: getattr(spec, name) for name in names.split()} == expected


@pytest.mark.parametrize(
    ("configs", "connect_s", "join_s"),
    [
        ({}, 900.0, 900.0),
        ({"timeout": "30"}, 30.0, 30.0),
        ({"timeout": "30", "read_timeout": "20", "join_timeout": "25"}, 20.0, 25.0),
    ],
)
def test_static_rendezvous_waits_as_torchs_does(configs: dict[str, str], connect_s: float, join_s: float) -> None:
    """`timeout` limits how long a static node tries to reach node 0, and sets `join_timeout` if that is not given."""
    spec = met(max_nodes=2, rdzv_configs=configs)
    assert (spec.connect_timeout_s, spec.join_timeout_s) == (connect_s, join_s)


@pytest.mark.parametrize("fields", [C10D, ETCD, {"max_nodes": 2}], ids=["c10d", "etcd", "static"])
@pytest.mark.parametrize(
    ("configs", "patience_s"),
    [
        ({"join_timeout": "8"}, 8.0),
        ({"join_timeout": "8", "read_timeout": "5"}, 5.0),
        ({"join_timeout": "5", "read_timeout": "8"}, 5.0),
    ],
)
def test_no_store_is_waited_for_longer_than_the_nodes(
    fields: dict[str, Any], configs: dict[str, str], patience_s: float
) -> None:
    """One rule for all stores: the shortest of `join_timeout` and the connection's own patience."""
    assert met(**fields, rdzv_configs=configs).connect_timeout_s == patience_s


def test_more_nodes_than_a_job_can_have_are_refused_before_anything_starts() -> None:
    """The error has the number of nodes and the limit."""
    assert met(**C10D | {"max_nodes": limits.MAX_NODES}).max_nodes == limits.MAX_NODES
    for fields in (C10D, ETCD, {"node_rank": 1}):
        text = refusal(**fields | {"max_nodes": 200000})
        assert f"allows 200000 nodes, but a job has at most {limits.MAX_NODES}; lower the maximum" in text


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"join_timout": "5"}, "'join_timout'; did you mean 'join_timeout'?"),
        ({"'join_timeout": "5"}, "did you mean 'join_timeout'?"),
        ({"qwerty": "5"}, "its keys are "),
        ({"join_timeout": "0"}, "must be more than 0"),
        ({"join_timeout": "-1"}, "outside 0 to"),
        ({"join_timeout": "nan"}, "outside 0 to"),
        ({"join_timeout": "inf"}, "outside 0 to"),
        ({"join_timeout": "1e300"}, "outside 0 to"),
        ({"join_timeout": "ten"}, "'ten', which is not a number"),
        ({"close_timeout": "ten"}, "close_timeout is 'ten'"),
        ({"timeout": "ten"}, "timeout is 'ten'"),
        ({"is_host": "maybe"}, "neither true nor false"),
        ({"store_type": "file"}, "only tcp is supported"),
        ({"beat": "5"}, "beat is 5 s, not less than lease (5 s)"),
        ({"lease": "1"}, "not less than lease (1 s)"),
        ({"lease": "50", "join_timeout": "20"}, "lease is 50 s, not less than join_timeout (20 s)"),
        ({"keep_alive_max_attempt": "1"}, "keep_alive_max_attempt is '1', outside 2 to"),
        ({"keep_alive_interval": "0"}, "keep_alive_interval is '0'"),
        ({"beat": "1", "keep_alive_interval": "1"}, "both beat and keep_alive_interval"),
        ({"lease": "1", "keep_alive_max_attempt": "3"}, "both lease and keep_alive_max_attempt"),
        ({"quiet": "1", "last_call_quiet": "3"}, "both quiet and last_call_quiet"),
        ({"quiet": "40"}, "give last_call_timeout=40 as well"),
        ({"rank": "1.5"}, "rank is '1.5'"),
    ],
)
def test_wrong_keys_and_values_of_rdzv_conf_are_refused(configs: dict[str, Any], message: str) -> None:
    """So are times that contradict each other."""
    assert message in refusal(**C10D, rdzv_configs=configs)


def test_every_key_that_torch_reads_is_known() -> None:
    """All keys that torch 2.13 reads for static and c10d are accepted."""
    torchs = "join_timeout last_call_timeout close_timeout heartbeat_timeout keep_alive_interval keep_alive_max_attempt"
    assert {*torchs.split(), "store_type", "read_timeout", "is_host", "timeout", "rank"} <= KEYS.keys()


# -- the workers ---------------------------------------------------------------------------------------------------


def test_defaults_are_torchruns() -> None:
    """LaunchConfig() is a torchrun command line without flags, except for three restarts, as in torch's
    LaunchConfig."""
    spec = planned().workers
    assert (spec.role, spec.restarts.max_restarts, spec.grace_s, spec.signals) == ("default", 3, 30.0, (15, 2, 1, 3))
    assert (spec.count_workers(), spec.logs.base_dir, spec.logs.redirects, spec.logs.tee) == (1, None, {0: 0}, {0: 0})


@pytest.mark.parametrize(
    ("field", "variable", "read"),
    [
        ("shutdown_timeout", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", lambda done: done.workers.grace_s),
        ("exit_barrier_timeout", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", lambda done: done.rendezvous.exit_barrier_s),
    ],
)
def test_timeouts_come_from_the_field_then_the_variable(field: str, variable: str, read: Any) -> None:
    """The field counts before torch's variable, and that before the default; 0 is a value; an error names its
    source."""
    assert read(planned({variable: "7"})) == 7.0
    assert read(planned({variable: "7"}, **{field: 0})) == 0.0
    assert f"{variable} is 'soon'" in refusal({variable: "soon"})
    assert f"{field} is -1" in refusal(**{field: -1})


@pytest.mark.parametrize(
    ("env", "fields", "threads"),
    [
        ({}, {"nproc_per_node": 2}, "1"),
        ({}, {"nproc_per_node": 1}, None),
        ({"OMP_NUM_THREADS": "4"}, {"nproc_per_node": 2}, "4"),
        ({}, {"nproc_per_node": 2, "env": {"OMP_NUM_THREADS": "3"}}, "3"),
    ],
)
def test_several_workers_get_one_thread_each_by_default(
    env: dict[str, str], fields: dict[str, Any], threads: str | None
) -> None:
    """As with torchrun, OMP_NUM_THREADS is 1 if several workers share the CPUs and it is not set."""
    assert planned(env, **fields).workers.base_env.get("OMP_NUM_THREADS") == threads


def test_env_adds_to_the_agents_environment() -> None:
    """A variable that is in both has the value of `env`."""
    spec = planned({"A": "1", "B": "1"}, env={"B": "2", "C": "3"}).workers
    assert spec.base_env == {"A": "1", "B": "2", "C": "3"}


@pytest.mark.parametrize(
    ("value", "nproc", "chosen"),
    [
        ("3", 2, {0: 3, 1: 3}),
        (1, 1, {0: 1}),
        ("0:1,1:2", 2, {0: 1, 1: 2}),
        ("11:3", 12, {11: 3}),
        ({0: 2}, 2, {0: 2}),
        ("0:1,0:1", 1, {0: 1}),
    ],
)
def test_streams_are_chosen_in_torchs_grammar(value: Any, nproc: int, chosen: dict[int, int]) -> None:
    """Redirects and tee are a number for all ranks or a mapping for some."""
    logs = planned(nproc_per_node=nproc, redirects=value, tee=value).workers.logs
    assert (logs.redirects, logs.tee) == (chosen, chosen)


@pytest.mark.parametrize("value", ["0", "1", "2", "3", "0:3", "0:3,1:0,2:1,3:2"])
def test_streams_mean_what_they_mean_to_torch(value: str) -> None:
    """torch's own reader gives the same."""
    from torch.distributed.elastic.multiprocessing.api import Std, to_map

    theirs = {rank: int(bits) for rank, bits in to_map(Std.from_str(value), 4).items()}
    ours = values.streams("tee", value, 4)
    assert {rank: ours.get(rank, 0) for rank in range(4)} == theirs


def test_streams_hold_for_workers_that_come_later() -> None:
    """If devices are counted before each round, a number for all ranks holds for every rank that may appear."""
    logs = planned(nproc_per_node="cpu", tee="3").workers.logs
    assert logs.tee[values.MAX_NPROC - 1] == 3


def test_log_dir_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a worker that changes its directory has the same files. /dev/null means none, empty the default."""
    monkeypatch.chdir(tmp_path)
    assert planned(log_dir="logs").workers.logs.base_dir == str(tmp_path / "logs")
    assert planned(log_dir="/dev/null").workers.logs.base_dir == "/dev/null"
    assert planned(log_dir="").workers.logs.base_dir is None


def test_filters_and_signals_are_read() -> None:
    """Text is split as on the command line; the items of lists are not split."""
    spec = planned(
        local_ranks_filter="0,2",
        duplicate_stdout_filters="apple,or,,ange,",
        duplicate_stderr_filters=["pear"],
        signals_to_handle="SIGTERM, SIGUSR1,SIGTERM",
        log_line_prefix_template="<${rank}>",
    ).workers
    assert spec.logs.local_ranks_filter == {0, 2}
    assert (spec.logs.stdout_filters, spec.logs.stderr_filters) == (("apple", "or,ange"), ("pear",))
    assert spec.signals == (15, 10)
    assert planned(forward_signals="").workers.forward_signals == ()
    assert planned(forward_signals=[10, 12]).workers.forward_signals == (10, 12)
    assert planned(forward_signals="USR1,SIGUSR2, usr1,28").workers.forward_signals == (10, 12, 28)
    assert spec.logs.prefix_template == "<${rank}>"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_nodes": 0}, "min_nodes is 0, outside 1 to"),
        ({"min_nodes": 3, "max_nodes": 2}, "max_nodes is 2, less than min_nodes (3)"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"max_restarts": 1.5}, "max_restarts is 1.5"),
        ({"restart_window": -1}, "restart_window is -1"),
        ({"restart_backoff": "5:1"}, "restart_backoff is '5:1', whose MIN is more than its MAX"),
        ({"restart_backoff": "1:2:3"}, "give MIN or MIN:MAX seconds"),
        ({"restart_backoff": "soon"}, "restart_backoff is 'soon', which is not a number"),
        ({"restart_backoff": (1, -2)}, "restart_backoff is -2"),
        ({"no_restart_codes": "93,x"}, "no_restart_codes is 'x', which is not a whole number"),
        ({"no_restart_codes": (0,)}, "no_restart_codes is 0, outside 1 to 255"),
        ({"no_restart_codes": "256"}, "no_restart_codes is '256', outside 1 to 255"),
        ({"startup_window": "x"}, "startup_window is 'x'"),
        ({"monitor_interval": math.nan}, "monitor_interval is nan"),
        ({"start_method": "fork"}, "start_method is 'fork'"),
        ({"run_id": "x" * 201}, "run id has 201 characters; the limit is 200"),
        ({"role": "x" * 201}, "role has 201 characters"),
        ({"local_addr": "a b"}, "local_addr is 'a b'"),
        ({"local_addr": ""}, "local_addr is ''"),
        ({"redirects": "4"}, "redirects is '4'"),
        ({"tee": "0:3,"}, "tee is '0:3,'"),
        ({"tee": {0: 9}}, "local rank 0 the value 9"),
        ({"tee": "0:1,0:2"}, "two values for local rank 0"),
        ({"log_rotate": "1k:x"}, "log_rotate is '1k:x'"),
        ({"local_ranks_filter": "0,a"}, "local_ranks_filter is '0,a'"),
        ({"local_ranks_filter": [-1]}, "local_ranks_filter is [-1]"),
        (
            {"signals_to_handle": "SIGTRM"},
            "'SIGTRM', which is no signal of this system; give, for example, SIGTERM,SIGINT; did",
        ),
        ({"signals_to_handle": "sigusr3"}, "did you mean 'SIGUSR"),
        ({"forward_signals": "USR1,TERM"}, "'TERM', which stops the job"),
        ({"forward_signals": "10", "signals_to_handle": "USR1"}, "'10', which stops the job"),
        ({"forward_signals": "KILL"}, "'KILL', which the agent cannot pass on"),
        ({"forward_signals": "SEGV"}, "'SEGV', which the agent cannot pass on"),
        ({"forward_signals": "USR3"}, "'USR3', which is no signal of this system; give, for example, USR1,USR2; did"),
        ({"forward_signals": "USR1,"}, "has ''"),
        ({"kill_signal": "USR1,USR2"}, "give one signal, such as USR2"),
        ({"save_signal": "TERM"}, "save_signal is signal 15, which signals_to_handle or forward_signals has too"),
        ({"save_signal": "USR1", "forward_signals": "USR1"}, "which signals_to_handle or forward_signals has too"),
        ({"save_signal": "USR1", "kill_signal": 10}, "save_signal is signal 10, which kill_signal has too"),
        ({"kill_switch": "/"}, "which is no path of a file"),
        ({"kill_switch": "a", "save_switch": "./a"}, "kill_switch and save_switch are both"),
        ({"orphan_grace": -1}, "orphan_grace is -1"),
        ({"leftovers": "leave"}, "leftovers is 'leave'; give stop, stop:SECONDS, wait or keep"),
        ({"leftovers": "keep:5"}, "leftovers is 'keep:5'"),
        ({"leftovers": "stop:soon"}, "leftovers is 'soon'"),
        ({"signals_to_handle": "SIGKILL"}, "no program can handle"),
        ({"signals_to_handle": ()}, "is empty"),
        ({"signals_to_handle": (12345,)}, "has 12345"),
        ({"log_dir": __file__}, "is no directory"),
        ({"env": {"A=B": "1"}}, "no environment variable"),
        ({"env": {"A": "\0"}}, "no environment variable"),
        ({"nproc_per_node": 0}, "--nproc-per-node is '0', outside 1 to 4096"),
        ({"nproc_per_node": 10**6}, "outside 1 to 4096"),
        ({"nproc_per_node": "gpus"}, "did you mean 'gpu'?"),
        ({"nproc_per_node": "1.5"}, "--nproc-per-node is '1.5'"),
        (
            {"virtual_local_rank": True, "nproc_per_node": 3, "env": {"CUDA_VISIBLE_DEVICES": "0,1"}},
            "each of 3 workers",
        ),
    ],
)
def test_wrong_values_are_refused(fields: dict[str, Any], message: str) -> None:
    """Each brings one line with the value and its limit."""
    assert message in refusal(**fields)


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        (0, (0.0, 60.0)),
        (5, (5.0, 60.0)),
        ("5", (5.0, 60.0)),
        (90.0, (90.0, 90.0)),
        ("1:7", (1.0, 7.0)),
        ((1, 7), (1.0, 7.0)),
    ],
)
def test_pauses_are_given_as_one_number_or_two(backoff: Any, pauses: tuple[float, float]) -> None:
    """The longest is by default 60 s, or the shortest if that is more."""
    restarts = planned(restart_backoff=backoff).workers.restarts
    assert (restarts.pause_min_s, restarts.pause_max_s) == pauses


def test_exit_codes_that_forbid_a_restart_are_text_or_numbers() -> None:
    """There may be none of them."""
    for given, codes in (("", set()), ("none", set()), ("7, 9", {7, 9}), ([93], {93}), ((), set())):
        assert planned(no_restart_codes=given).workers.restarts.no_restart_codes == codes


def test_validate_raises_the_errors_of_plan() -> None:
    """`LaunchConfig.validate` checks and returns nothing."""
    LaunchConfig().validate({})
    with pytest.raises(UsageError, match="max_restarts"):
        LaunchConfig(max_restarts=-1).validate({})


# -- devices -------------------------------------------------------------------------------------------------------


@pytest.fixture
def four_gpus(tmp_path: Path) -> str:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / "dev" / name).touch()
    return str(tmp_path)


@pytest.mark.parametrize(
    ("listed", "count"),
    [(None, 4), ("0,1", 2), ("3", 1), (" 2 , 3 ", 2), ("0,9,1", 1), ("0,-1,1", 1)],
)
def test_gpu_counts_the_devices_that_workers_can_use(four_gpus: str, listed: str | None, count: int) -> None:
    """`gpu` and `auto` are the NVIDIA devices that CUDA_VISIBLE_DEVICES does not hide, by CUDA's rules."""
    env = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert count_local_workers("gpu", env, four_gpus) == count
    assert count_local_workers("auto", env, four_gpus) == count


@pytest.mark.parametrize("listed", ["", "-1", "0,0", "none"])
def test_gpu_without_a_visible_gpu_is_an_error(four_gpus: str, listed: str) -> None:
    """If all GPUs are hidden, `gpu` is refused, and `auto` counts CPUs."""
    env = {"CUDA_VISIBLE_DEVICES": listed}
    with pytest.raises(UsageError, match="this host shows no such device"):
        count_local_workers("gpu", env, four_gpus)
    assert count_local_workers("auto", env, four_gpus) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("doubt", ["wsl2", "forbidden", "hidden driver"])
def test_torch_counts_the_gpus_where_the_device_files_leave_a_doubt(
    doubt: str, four_gpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WSL2 has one file for all devices; a container may show files that it forbids to open, or hide the driver's."""
    monkeypatch.setattr(devices, "_count_with_torch", {"cuda": 3}.__getitem__)
    if doubt == "wsl2":
        shutil.rmtree(f"{four_gpus}/proc")
        for name in range(4):
            os.unlink(f"{four_gpus}/dev/nvidia{name}")
        Path(f"{four_gpus}/dev/dxg").touch()
    elif doubt == "forbidden":
        monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("nvidia2"))
    else:
        shutil.rmtree(f"{four_gpus}/proc")
    assert count_local_workers("gpu", {}, four_gpus) == 3
    assert count_local_workers("auto", {}, four_gpus) == 3


@pytest.mark.parametrize("name", ["gpu", "xpu"])
def test_a_host_without_the_device_refuses_its_name(tmp_path: Path, name: str) -> None:
    """torch is not imported to find that out."""
    with pytest.raises(UsageError, match=f"--nproc-per-node is '{name}', but this host shows no such device"):
        count_local_workers(name, {}, str(tmp_path))


def test_cpu_and_auto_count_usable_cpus_as_torch_does(tmp_path: Path) -> None:
    """Without accelerators `auto` is `cpu`, and both are the number that torch gives."""
    from torch.distributed.run import determine_local_world_size

    assert count_local_workers("auto", {}, str(tmp_path)) == count_local_workers("cpu", {})
    assert count_local_workers("cpu", {}) == determine_local_world_size("cpu")


def test_workers_are_counted_before_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent calls `count_workers` before every round, which counts the devices of that moment."""
    count = planned(nproc_per_node="cpu").workers.count_workers
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    assert count() == 5


def test_a_function_is_asked_before_each_round_for_the_number_of_workers() -> None:
    """It counts as a number for the other nodes; what is no number of workers is refused."""
    numbers = iter([2, 3, 1, 0])
    plan = planned(nproc_per_node=lambda: next(numbers))
    assert plan.rendezvous.nproc == "number"
    assert [plan.workers.count_workers(), plan.workers.count_workers()] == [3, 1]
    with pytest.raises(UsageError, match=r"nproc_per_node\(\) is 0, outside 1 to"):
        plan.workers.count_workers()


@pytest.mark.parametrize(
    ("text", "limit", "keep"),
    [("1024", 1024, None), ("1k", 1024, None), ("5M:3", 5 << 20, 3), ("2GiB:0", 2 << 30, 0), ("1MB", 1 << 20, None)],
)
def test_sizes_of_log_files_are_read(text: str, limit: int, keep: int | None) -> None:
    """A size in bytes or with a unit, and how many full files are kept."""
    assert values.rotation("log_rotate", text) == Rotation(limit, keep)
