"""Opens the store of a job, and finds the address at which other nodes reach this one."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ..agent.link import Link, MakeLink
from ..agent.rules import alone_s
from ..agent.spec import EtcdSpec, RendezvousSpec
from ..rendezvous.driver.driver import Driver, OpenStore
from ..rendezvous.driver.events import Post
from ..rendezvous.endpoint import is_loopback, local_address, outward_address, parse_endpoint
from ..rendezvous.records import JobSpec, Survivor
from ..rendezvous.store import Join, Store, StoreUnreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..agent.worker_store.in_thread import ServerThread
    from ..rendezvous.driver.fencing import Fencing
    from ..rendezvous.driver.succession import Succession
    from ..rendezvous.etcd.client import EtcdClient
    from ..rendezvous.etcd.credentials import Login, Tls
    from .as_torchrun.foreign_rendezvous import Meeting

Tell = Callable[[str, bool], None]


def link_to(
    spec: RendezvousSpec, given: Store | None, tell: Tell | None, *, as_program: bool, grace_s: float
) -> MakeLink:
    """The function with which an agent makes its link to the store: `given`, or the one that `spec` names. `tell` is
    called with sentences for people. `as_program`: nothing but the agent runs in this process. `grace_s`: of its
    workers. Raises UsageError if a handler refuses its parameters."""
    meeting = _meeting(spec) if spec.handler is not None and given is None else None

    def warn(text: str) -> None:
        if tell:
            tell(text, False)

    told: list[Any] = []
    """Kept while the agent opens its store more than once: where its job goes on (`c10d/addressed.py`)."""

    def make(node: str, name: str, post: Post) -> Link:
        lease_s = spec.lease_s if spec.fences or spec.succeeds else 0.0
        nodes = spec.min_nodes, spec.max_nodes
        job = JobSpec(spec.run_id, spec.command, *nodes, spec.nproc, lease_s, spec.survivor)
        if meeting is not None:
            return _MetDriver(meeting, node, name, job, post, spec.beat_s, spec.lease_s, warn)
        opener = _opener(spec, given, warn, as_program, node, told)
        where = partial(address, spec, tell)
        fencing = _fencing(node, name, spec, grace_s, warn) if spec.fences else None
        return Driver(
            node,
            name,
            job,
            opener,
            post,
            spec.beat_s,
            spec.lease_s,
            find_addr=where,
            warn=warn,
            fencing=fencing,
            succession=_succession(node, spec, warn, tell) if spec.succeeds and given is None else None,
        )

    return make


def _succession(node: str, spec: RendezvousSpec, warn: Callable[[str], None], tell: Tell | None) -> Succession:
    from ..rendezvous.driver.links import Links
    from ..rendezvous.driver.succession import Succession
    from ..rendezvous.election.state import Rules

    def expect(text: str) -> None:
        """Routine: nearly every job has one endpoint, and most of their hosts live."""
        if tell:
            tell(text, True)

    goes = spec.survivor is Survivor.GO
    mention = warn if spec.listed or goes else expect
    rules = Rules(node, spec.lease_s, outvotes=spec.outvotes, survivor_goes=goes)
    return Succession(rules, Links(warn), warn, mention)


def _fencing(node: str, name: str, spec: RendezvousSpec, grace_s: float, warn: Callable[[str], None]) -> Fencing:
    from ..agent.processes.fence_page import FencePage
    from ..agent.processes.neighbours import Neighbours
    from ..rendezvous.driver.channel import TcpChannel
    from ..rendezvous.driver.fencing import Fencing

    return Fencing(
        node,
        spec.lease_s,
        alone_s(grace_s, spec),
        FencePage(),
        TcpChannel(warn),
        Neighbours(spec.run_id, name),
        hosted=not spec.elects,
    )


class _MetDriver(Driver):
    """A driver whose nodes a handler of another package brings together."""

    def __init__(
        self,
        meeting: Meeting,
        node: str,
        name: str,
        job: JobSpec,
        post: Post,
        beat_s: float,
        lease_s: float,
        warn: Callable[[str], None],
    ) -> None:
        """As `Driver`, which opens the store where the nodes have met."""
        super().__init__(node, name, job, meeting.open, post, beat_s, lease_s, find_addr=meeting.address, warn=warn)
        self._meeting = meeting

    def close(self) -> None:
        super().close()
        self._meeting.close()


def _meeting(spec: RendezvousSpec) -> Meeting:
    from .as_torchrun.foreign_rendezvous import Meeting, create_handler

    return Meeting(spec, create_handler(spec))


def address(spec: RendezvousSpec, tell: Tell | None = None) -> str:
    """The address at which other nodes reach this one: `spec.local_addr`, else the local address of the route to the
    store. Where that is a loopback address, because the store is on this host, or behind a port forwarder or a proxy
    beside this agent, and other nodes may join: the address of the default route. Without one the loopback address
    stays, and `tell` is called with a warning: several agents on one host without a network go on working, as under
    torchrun, and no other host could reach this one by any address. `tell`: as in `link_to`."""
    if spec.local_addr:
        return spec.local_addr
    found = "127.0.0.1"
    for endpoint in spec.endpoint.split(",") if spec.endpoint else ():
        try:
            found = local_address(endpoint)
        except StoreUnreachable:  # one of several endpoints; the store was reached at another one
            continue
        if not is_loopback(found):
            return found
    if spec.max_nodes == 1:
        return found
    outward = outward_address()
    if outward is None and tell is not None:
        tell(
            f"this host has no route to others, so its address for them is {found}, which only nodes on this host "
            "reach; if others join, give the address with --local-addr",
            False,
        )
    return outward or found


def _opener(
    spec: RendezvousSpec, given: Store | None, say: Callable[[str], None], as_program: bool, node: str, told: list[Any]
) -> OpenStore:
    def open_c10d(closing: threading.Event, join: Join) -> Store:
        from ..rendezvous.c10d import opening as c10d

        return c10d.open_c10d(
            spec.endpoint,
            spec.run_id,
            is_host=spec.is_host,
            connect_timeout_s=spec.connect_timeout_s,
            on_wait=say,
            cancelled=closing,
            join=join,
            hosting=c10d.Hosting(shared=spec.max_nodes > 1, warn=say),
        )

    def open_etcd(closing: threading.Event, join: Join) -> Store:
        from ..rendezvous.etcd import store as etcd

        if as_program:
            _need_only_grpc()
        return etcd.open_etcd(
            [parse_endpoint(one) for one in spec.endpoint.split(",")],
            etcd.Location(spec.run_id, spec.etcd.prefix, spec.lease_s, spec.etcd.record_ttl_s),
            tls=_tls(spec.etcd),
            login=_login(spec.etcd),
            connect_timeout_s=spec.connect_timeout_s,
            on_wait=say,
            cancelled=closing,
            join=join,
        )

    if given is not None:
        return partial(_join, given)
    if spec.succeeds:
        return (
            partial(_open_listed, spec, node, say) if spec.listed else partial(_open_addressed, spec, node, say, told)
        )
    return open_etcd if spec.backend == "etcd" else open_c10d


def _open_listed(
    spec: RendezvousSpec, node: str, say: Callable[[str], None], closing: threading.Event, join: Join
) -> Store:
    from ..agent.worker_store.in_thread import ServerThread
    from ..rendezvous.c10d import listed, moving
    from ..rendezvous.c10d.keys import Keys

    return moving.open_listed(
        listed.Listed([parse_endpoint(one) for one in spec.endpoint.split(",")], Keys(spec.run_id)),
        node,
        ServerThread,
        connect_timeout_s=spec.connect_timeout_s,
        silence_s=spec.lease_s,
        on_wait=say,
        cancelled=closing,
        join=join,
        warn=say,
    )


def _open_addressed(
    spec: RendezvousSpec,
    node: str,
    say: Callable[[str], None],
    told: list[Any],
    closing: threading.Event,
    join: Join,
) -> Store:
    from ..rendezvous.c10d import addressed, one_endpoint
    from ..rendezvous.c10d.keys import Keys
    from ..rendezvous.c10d.opening import Hosting

    return addressed.open_addressed(
        one_endpoint.OneEndpoint(parse_endpoint(spec.endpoint), Keys(spec.run_id), spec.lease_s),
        spec.run_id,
        addressed.Opening(
            node=node,
            start=_small_server,
            told=told,
            is_host=spec.is_host,
            connect_timeout_s=spec.connect_timeout_s,
            cancelled=closing,
            join=join,
            on_wait=say,
            hosting=Hosting(shared=True, warn=say),
        ),
    )


def _small_server(bound: socket.socket) -> ServerThread:
    from ..agent.worker_store.in_thread import ServerThread

    return ServerThread(bound)


def _need_only_grpc() -> None:
    """Import grpc, but hide ssl from asyncio, which grpc imports and which works without ssl. This saves 5 MiB for
    OpenSSL, which no agent uses, because grpc has its own TLS. Afterwards ssl can be imported, but asyncio cannot use
    it, so this is not for a process in which other code runs."""
    from ..rendezvous.etcd.cluster import need_grpc

    modules: dict[str, Any] = sys.modules
    hidden = "ssl" not in modules
    if hidden:
        modules["ssl"] = None  # makes `import ssl` fail, as the language reference defines it
    try:
        need_grpc()
    finally:
        if hidden:
            del modules["ssl"]


def etcd_client(endpoints: str, etcd: EtcdSpec) -> EtcdClient:
    """A client for the cluster at `HOST:PORT,...`. Raises EtcdTlsRefused for certificates that cannot be read, and
    StoreError if grpcio is not installed."""
    from ..rendezvous.etcd.client import EtcdClient

    return EtcdClient([parse_endpoint(one) for one in endpoints.split(",")], _tls(etcd), _login(etcd))


def _join(given: Store, closing: threading.Event, join: Join) -> Store:
    join(given)
    return given


def _tls(etcd: EtcdSpec) -> Tls | None:
    from ..rendezvous.etcd.credentials import Tls

    return Tls(etcd.ca_file, etcd.cert_file, etcd.key_file) if etcd.tls else None


def _login(etcd: EtcdSpec) -> Login | None:
    from ..rendezvous.etcd.credentials import Login

    return Login(etcd.user, etcd.password, etcd.password_file) if etcd.user else None
