"""Opening the store that a job's nodes meet in, and finding the address at which they meet this one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from ..agent.agent import Link, MakeLink
from ..agent.spec import EtcdSpec, RendezvousSpec
from ..rendezvous.driver import Driver, OpenStore
from ..rendezvous.endpoint import local_address, parse_endpoint
from ..rendezvous.listener import Listener
from ..rendezvous.records import JobSpec
from ..rendezvous.store import Join, Store, StoreUnreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rendezvous.etcd_client import EtcdClient
    from ..rendezvous.etcd_cluster import Login, Tls

Tell = Callable[[str, bool], None]


def link_to(spec: RendezvousSpec, given: Store | None, tell: Tell | None) -> MakeLink:
    """What gives an agent its link to the store: `given`, or the one that `spec` names."""

    def make(node: str, name: str, listener: Listener) -> Link:
        job = JobSpec(spec.run_id, spec.command, spec.min_nodes, spec.max_nodes, spec.nproc)
        return Driver(node, name, job, _opener(spec, given, tell), listener, spec.beat_s, spec.lease_s)

    return make


def address(spec: RendezvousSpec) -> str:
    """How other nodes reach this one: as told, else the local address of the route to the store."""
    if spec.local_addr:
        return spec.local_addr
    found = "127.0.0.1"
    for endpoint in spec.endpoint.split(",") if spec.endpoint else ():
        try:
            found = local_address(endpoint)
        except StoreUnreachable:  # one of several; the store was reached by another
            continue
        if not found.startswith("127.") and found not in ("::1", "localhost"):
            break
    return found


def _opener(spec: RendezvousSpec, given: Store | None, tell: Tell | None) -> OpenStore:
    def say(line: str) -> None:
        if tell:
            tell(line, False)

    def open_c10d(closing: threading.Event, join: Join) -> Store:
        from ..rendezvous import c10d

        return c10d.open_c10d(
            spec.endpoint,
            spec.run_id,
            is_host=spec.is_host,
            connect_timeout_s=spec.connect_timeout_s,
            on_wait=say,
            cancelled=closing,
            join=join,
        )

    def open_etcd(closing: threading.Event, join: Join) -> Store:
        from ..rendezvous import etcd

        return etcd.open_etcd(
            [parse_endpoint(one) for one in spec.endpoint.split(",")],
            etcd.Place(spec.run_id, spec.etcd.prefix, spec.lease_s, spec.etcd.record_ttl_s),
            tls=_tls(spec.etcd),
            login=_login(spec.etcd),
            connect_timeout_s=spec.connect_timeout_s,
            on_wait=say,
            cancelled=closing,
            join=join,
        )

    if given is not None:
        return partial(_join, given)
    return open_etcd if spec.backend == "etcd" else open_c10d


def etcd_client(endpoints: str, etcd: EtcdSpec) -> EtcdClient:
    """A client of the cluster at `HOST:PORT,...`. Raises EtcdTlsRefused for certificates that cannot be read, and
    StoreError if grpcio is not installed."""
    from ..rendezvous.etcd_client import EtcdClient

    return EtcdClient([parse_endpoint(one) for one in endpoints.split(",")], _tls(etcd), _login(etcd))


def _join(given: Store, closing: threading.Event, join: Join) -> Store:
    join(given)
    return given


def _tls(etcd: EtcdSpec) -> Tls | None:
    from ..rendezvous.etcd_cluster import Tls

    return Tls(etcd.ca_file, etcd.cert_file, etcd.key_file) if etcd.tls else None


def _login(etcd: EtcdSpec) -> Login | None:
    from ..rendezvous.etcd_cluster import Login

    return Login(etcd.user, etcd.password) if etcd.user else None
