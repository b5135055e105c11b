"""Which rendezvous a job gets, by torchrun's rules (torch 2.13, `torch.distributed.run.run`). What cannot work is an
error.

* One node without rendezvous flags, or `--standalone`: this node alone, in memory. No store, no torch.
* static with one node: the same; its workers get `--master-addr` and `--master-port` as typed.
* static with several nodes: a c10d store on node 0 at that address; group ranks are the nodes' `--node-rank`.
* c10d: a store at the endpoint; at several, a store that another of these nodes hosts should its host be killed.
* the name of a handler of another package: a c10d store on one of the nodes that meet there.
* etcd: the cluster at the endpoints; if it does not answer, nothing else is used instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...agent.errors import UsageError
from ...agent.spec import HandlerSpec, RendezvousSpec
from ...proto.frozen import dataclass, replace
from ...rendezvous.records import OUTVOTING_BEATS, Survivor
from .rdzv_conf import KEYS, Conf, RdzvConf, read_rdzv_conf
from .values import endpoint as parse_endpoint
from .values import is_ipv6, joined, suggest, whole

C10D_PORT = 29400
"""Port of a c10d endpoint that names none (torch's `DEFAULT_PORT`)."""
STATIC_PORT = 29500
"""Port of a static rendezvous without --master-port."""
ETCD_BEATS = 3
"""Heartbeats within a lease, at least, on etcd. There a node's lease is half as long, and would be over before it is
renewed; and the coordinator, which believes that another's is over only while its own heartbeats are answered within
half a lease of each other, would never believe it."""

_BACKENDS = ("static", "c10d", "etcd")
_OLD = ("etcd-v2", "elastic-etcd")


@dataclass(frozen=True, slots=True)
class Choice:
    """The rendezvous chosen. Its run id, command, local address and barrier do not depend on the choice and are not set
    yet."""

    spec: RendezvousSpec
    fixed: tuple[str, int] | None = None
    """MASTER_ADDR and MASTER_PORT of the workers in every round; only for a single static node."""
    warnings: tuple[str, ...] = ()


def choose_rendezvous(
    *,
    backend: str,
    endpoint: str,
    configs: Conf,
    nodes: tuple[int, int],
    standalone: bool,
    node_rank: int | None,
    master: tuple[str, int | None],
    env: Mapping[str, str],
) -> Choice:
    """Choose by torchrun's rules. `nodes`: (minimum, maximum); `master`: (--master-addr, --master-port); `env`: this
    process's environment.

    Raises UsageError, in one line, if the arguments lead to no rendezvous.
    """
    endpoint = endpoint.strip()
    if node_rank is not None and node_rank < 0:
        raise UsageError(f"--node-rank is {node_rank}, but node ranks start at 0; correct it")
    if master[1] is not None:
        whole("--master-port", master[1], most=65535)
    if standalone:
        return _alone("--standalone", configs, nodes, node_rank)
    if (other := _other(backend.strip())) is not None:
        return _handler(other, endpoint, configs, nodes, node_rank)
    backend = _known(backend)
    if not backend:
        backend = "c10d" if endpoint else "static"
    if backend == "etcd":
        return _etcd(endpoint, configs, nodes, node_rank, env)
    if backend == "c10d":
        return _c10d(endpoint, configs, nodes, node_rank)
    if not endpoint and master[1] is None and nodes[1] == 1:
        return _alone("a job of one node", configs, nodes, node_rank)
    return _static(endpoint, configs, nodes, node_rank, master)


def _known(backend: str) -> str:
    name = backend.strip()
    if name == "elastic-etcd":
        return "etcd"  # what this package is called where torchrun loads it
    if not name or name in _BACKENDS:
        return name
    if name == "etcd-v2":
        raise UsageError(
            "--rdzv-backend etcd-v2 needs a protocol that etcd 3.6 removed; use etcd, which is v3, and the same "
            "--rdzv-endpoint"
        )
    raise UsageError(
        f"--rdzv-backend is {name!r}, which is unknown{suggest(name.lower(), _BACKENDS)}; give c10d, etcd or static; "
        "no package has a handler of that name (torchrun.handlers)"
    )


def _other(name: str) -> str | None:
    """`name` if it is a handler of another package; None if it is a backend of ours, or nobody's."""
    if not name or name in _BACKENDS or name in _OLD:
        return None
    from ..as_torchrun.foreign_rendezvous import is_registered

    return name if is_registered(name) else None


def _handler(name: str, endpoint: str, configs: Conf, nodes: tuple[int, int], node_rank: int | None) -> Choice:
    """Of --rdzv-conf we read the keys that are ours; the handler gets all."""
    conf = read_rdzv_conf({key: value for key, value in configs.items() if key in KEYS}, static=False)
    handler = HandlerSpec(name, dict(configs))
    return Choice(replace(_base(conf, "handler", *nodes), endpoint=endpoint, node_rank=node_rank, handler=handler))


def _base(conf: RdzvConf, backend: str, low: int, high: int) -> RendezvousSpec:
    return RendezvousSpec(
        backend=backend,
        min_nodes=low,
        max_nodes=high,
        join_timeout_s=conf.join_timeout_s,
        last_call_timeout_s=conf.last_call_timeout_s,
        quiet_s=conf.quiet_s,
        beat_s=conf.beat_s,
        lease_s=conf.lease_s,
        store_grace_s=conf.store_grace_s,
        connect_timeout_s=conf.connect_timeout_s,
    )


def _without_survivor(conf: RdzvConf, why: str) -> None:
    """Raises UsageError if a survivor was given that has no meaning here."""
    if conf.survivor not in (None, Survivor.WAIT):
        raise UsageError(
            f"--rdzv-conf survivor={conf.survivor.value} is for c10d and several nodes, but {why}; leave survivor out"
        )


def _survivor(conf: RdzvConf, most: int) -> Survivor:
    """Of a job of so many nodes at most. Half of two is no majority. The host of the store has to find in time that it
    has none, by heartbeats. Raises UsageError."""
    if most < 3:
        return Survivor.GO if conf.survivor is Survivor.GO else Survivor.WAIT
    if conf.beat_s <= conf.lease_s / OUTVOTING_BEATS or conf.survivor is Survivor.WAIT:
        return conf.survivor or Survivor.MAJORITY
    if conf.survivor is None:
        return Survivor.WAIT
    raise UsageError(
        f"--rdzv-conf survivor={conf.survivor.value} needs a lease of {OUTVOTING_BEATS} heartbeats at least, but "
        f"lease is {conf.lease_s:g} s and beat {conf.beat_s:g} s; give lease={OUTVOTING_BEATS * conf.beat_s:g}, or "
        "leave survivor out"
    )


def _alone(what: str, configs: Conf, nodes: tuple[int, int], node_rank: int | None) -> Choice:
    """This node alone; `what`: the setting that leads here, for messages."""
    if nodes[0] > 1:
        raise UsageError(f"{what} runs on this node alone, but --nnodes asks for at least {nodes[0]}; leave one out")
    conf = read_rdzv_conf(configs, static=False)
    warnings = list(conf.warnings)
    if nodes[1] > 1:
        warnings.append(f"{what} runs on this node alone; no other node can join, though --nnodes allows {nodes[1]}")
    if node_rank:
        warnings.append(f"--node-rank {node_rank} has no effect, because {what} runs on this node alone")
    return Choice(_base(conf, "memory", 1, 1), warnings=tuple(warnings))


def _c10d(endpoint: str, configs: Conf, nodes: tuple[int, int], node_rank: int | None) -> Choice:
    if not endpoint:
        if nodes[1] > 1:
            raise UsageError(
                "--rdzv-backend c10d with more than one node needs --rdzv-endpoint HOST:PORT, the same on every node; "
                "HOST is the node that hosts the store"
            )
        return _alone("a job of one node", configs, nodes, node_rank)
    if "," in endpoint:
        return _listed(endpoint, configs, nodes, node_rank)
    host, port = parse_endpoint("--rdzv-endpoint", endpoint, C10D_PORT)
    if port == 0:
        # torchrun documents port 0, "any free port", for several jobs of one node on the same host.
        if nodes[0] > 1:
            raise UsageError(
                f"--rdzv-endpoint is {endpoint!r}, and port 0 means any, which other nodes cannot know, but --nnodes "
                f"asks for at least {nodes[0]}; give the port"
            )
        return _alone(f"--rdzv-endpoint {endpoint}", configs, nodes, node_rank)
    conf = read_rdzv_conf(configs, static=False)
    if nodes[1] < 2:
        _without_survivor(conf, f"--nnodes allows {nodes[1]}")
    spec = replace(_base(conf, "c10d", *nodes), endpoint=joined(host, port), node_rank=node_rank, is_host=conf.is_host)
    return Choice(replace(spec, survivor=_survivor(conf, nodes[1])), warnings=conf.warnings)


def _listed(endpoint: str, configs: Conf, nodes: tuple[int, int], node_rank: int | None) -> Choice:
    """Several nodes that may host the store; the first one begins the job."""
    if not all(one.strip() for one in endpoint.split(",")):
        raise UsageError(f"--rdzv-endpoint is {endpoint!r}, which has a comma with no node beside it; leave it out")
    named = [joined(*parse_endpoint("--rdzv-endpoint", one, C10D_PORT)) for one in endpoint.split(",")]
    conf = read_rdzv_conf(configs, static=False)
    if len(set(named)) < len(named):
        raise UsageError(f"--rdzv-endpoint is {endpoint!r}, which names one endpoint twice; leave one of them out")
    if any(one.endswith(":0") for one in named):
        raise UsageError(f"--rdzv-endpoint is {endpoint!r}, and port 0 means any, which other nodes cannot know")
    if conf.is_host is not None:
        raise UsageError(
            f"--rdzv-conf is_host is {conf.is_host}, but of the nodes that --rdzv-endpoint lists the first one hosts "
            "the store, and another one after it; leave is_host out"
        )
    spec = replace(_base(conf, "c10d", *nodes), endpoint=",".join(named), node_rank=node_rank)
    return Choice(replace(spec, survivor=_survivor(conf, nodes[1])), warnings=conf.warnings)


def _etcd(
    endpoint: str, configs: Conf, nodes: tuple[int, int], node_rank: int | None, env: Mapping[str, str]
) -> Choice:
    from . import etcd_conf

    if not endpoint:
        raise UsageError("--rdzv-backend etcd needs --rdzv-endpoint HOST:PORT, or several separated by commas")
    endpoints, tls = etcd_conf.read_endpoints(endpoint)
    conf = read_rdzv_conf(configs, static=False, also=etcd_conf.KEYS)
    if conf.is_host is not None:
        raise UsageError("--rdzv-conf is_host is for c10d; with etcd no node hosts the store; leave is_host out")
    _without_survivor(conf, "with etcd no node hosts the store")
    etcd = etcd_conf.read_etcd_conf(configs, tls, env)
    beat_s = min(conf.beat_s, conf.lease_s / ETCD_BEATS)
    spec = replace(_base(conf, "etcd", *nodes), endpoint=endpoints, node_rank=node_rank, etcd=etcd, beat_s=beat_s)
    return Choice(spec, warnings=conf.warnings)


def _static(
    endpoint: str,
    configs: Conf,
    nodes: tuple[int, int],
    node_rank: int | None,
    master: tuple[str, int | None],
) -> Choice:
    low, high = nodes
    conf = read_rdzv_conf(configs, static=True)
    if "," in endpoint:
        raise UsageError(
            f"--rdzv-endpoint {endpoint} names several nodes, and in a static rendezvous node 0 alone hosts the store; "
            "add --rdzv-backend c10d"
        )
    if endpoint:
        host, port = parse_endpoint("--rdzv-endpoint", endpoint, None)
    else:
        port = STATIC_PORT if master[1] is None else master[1]
        if ":" in master[0] and not is_ipv6(master[0].strip("[] ")):
            raise UsageError(f"--master-addr is {master[0]!r}; give the address alone, and its port as --master-port")
        host, port = parse_endpoint("--master-addr", f"{master[0]}:{port}", None)
    rank = next((value for value in (node_rank, conf.rank) if value is not None), 0)
    if rank >= high:
        raise UsageError(f"--node-rank is {rank}, but with --nnodes {high} it must be 0 to {high - 1}; correct one")
    if port == 0:
        raise UsageError("the port of node 0 is 0, which means any; give --master-port, the same on every node")
    if conf.is_host is not None and conf.is_host is not (rank == 0):
        raise UsageError(
            f"--rdzv-conf is_host is {conf.is_host}, but this is node {rank}, and node 0 hosts the store of a static "
            "rendezvous; leave is_host out"
        )
    _without_survivor(conf, "node 0 hosts the store of a static rendezvous")
    warnings = list(conf.warnings)
    if low != high:
        warnings.append(f"--nnodes {low}:{high} means exactly {high} in a static rendezvous; use c10d to be elastic")
    if high == 1:
        return Choice(_base(conf, "memory", 1, 1), fixed=(host, port), warnings=tuple(warnings))
    spec = replace(
        _base(conf, "c10d", high, high), endpoint=joined(host, port), node_rank=rank, static=True, is_host=rank == 0
    )
    return Choice(spec, warnings=tuple(warnings))
