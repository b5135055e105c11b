"""`torchrun --rdzv-backend elastic-etcd`: etcd v3 for people who stay on torchrun.

torchrun loads `etcd` from the entry-point group `torchrun.handlers` (torch 2.13,
`torch.distributed.elastic.rendezvous.registry`) whenever it starts, with any backend. So this module imports neither
torch nor grpc before a handler is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...agent.errors import UsageError
from ...agent.spec import PASSWORD_VARIABLE, EtcdSpec, RendezvousSpec
from ...proto.frozen import replace
from ...rendezvous.endpoint import is_loopback
from ..config.etcd_conf import KEYS, read_endpoints, read_etcd_conf
from ..config.rdzv_conf import refuse_unknown
from ..config.values import seconds
from ..secret_variable import take
from ..store_link import address, etcd_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

RECORD_TTL_S = 60.0
"""How long a job's keys stay after its last agent has ended; then the run id is free again. torch never reports which
agent is the last, so only a lease can remove the keys."""
PATIENCE_S = {"read_timeout": 60.0, "join_timeout": 600.0}
"""What limits how long the first answer of the cluster may take, the shorter of both, with torch's defaults."""
STORE_GRACE_S = 30.0
"""Default of `store_grace`, as the agent has it."""

TORCH_KEYS = {
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "timeout",
}
"""Keys of `--rdzv-conf` that torch's DynamicRendezvousHandler reads, and those that torchrun adds."""

_password: dict[str, str] = {}
"""The password's variable, taken out of the environment, because torchrun passes that on to its workers."""


def etcd() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The entry point: returns the function that makes a handler from a job's parameters."""
    return make_handler


def make_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler of a job, made once the cluster has answered. Raises UsageError for wrong parameters, and
    RendezvousConnectionError if the cluster does not answer within `read_timeout` or refuses the request."""
    from . import store as torchrun_etcd
    from .folder import RetryLimits

    conf = {key: value for key, value in params.config.items() if value is not None}
    refuse_unknown(conf, {*KEYS, *TORCH_KEYS, "read_timeout", "store_grace"})
    if not params.endpoint:
        raise UsageError("--rdzv-backend elastic-etcd needs servers; give --rdzv-endpoint HOST:PORT,...")
    endpoints, tls = read_endpoints(params.endpoint)
    spec = _spec(conf, tls)
    limits = RetryLimits(
        first_s=min(_seconds(conf, key, default) for key, default in PATIENCE_S.items()),
        later_s=seconds("--rdzv-conf store_grace", conf.get("store_grace", STORE_GRACE_S)),
    )
    # torch's default, the name of this host, may not resolve on other hosts.
    params.local_addr = params.local_addr or _address(endpoints, params.max_nodes)
    return torchrun_etcd.make_handler(params, lambda: etcd_client(endpoints, spec), spec, limits)


def _seconds(conf: Mapping[str, str], key: str, default: float) -> float:
    return seconds(f"--rdzv-conf {key}", conf.get(key, default), above_zero=True)


def _spec(conf: Mapping[str, str], tls: bool | None) -> EtcdSpec:
    found, _ = take(PASSWORD_VARIABLE)
    if found is not None:
        _password[PASSWORD_VARIABLE] = found
    spec = read_etcd_conf(conf, tls, _password)
    return spec if "record_ttl" in conf else replace(spec, record_ttl_s=RECORD_TTL_S)


def _address(endpoints: str, max_nodes: int) -> str | None:
    found = address(RendezvousSpec(endpoint=endpoints, max_nodes=max_nodes))
    return None if is_loopback(found) else found
