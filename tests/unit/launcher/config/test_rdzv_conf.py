"""LaunchConfig: the keys of --rdzv-conf and the times they set."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_agent.agent.spec import RendezvousSpec
from elastic_agent.launcher.config.rdzv_conf import KEYS
from elastic_agent.rendezvous.codec import limits
from support.rigs.plans import C10D, ETCD, met, refusal

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
    ({"lease": "3"}, {"lease_s": 3.0, "beat_s": 0.6}),
    ({"lease": "20"}, {"lease_s": 20.0, "beat_s": 2.0}),
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
        ({"lease": "1", "beat": "1"}, "not less than lease (1 s)"),
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
