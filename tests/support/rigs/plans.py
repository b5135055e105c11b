"""What a LaunchConfig comes to: planned, what meets whom, and with which sentence it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.agent.spec import RendezvousSpec
from elastic_agent.launcher.config.config import LaunchConfig, Plan, plan

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
