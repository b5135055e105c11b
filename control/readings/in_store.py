"""Whether a job runs, by its run id in the store in which its nodes meet: c10d or etcd."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from ...rendezvous.endpoint import parse_endpoint
from ...rendezvous.store import StoreError, StoreUnreachable
from ..commands import NoReading

ANSWER_S = 10.0


def runs(store: str, run_id: str) -> bool:
    """Whether a node of the job is there. `store`: `c10d://HOST:PORT` or `etcd://HOST:PORT,...[/PREFIX]`. Raises
    NoReading where that cannot be read: a c10d store that refuses connections has no nodes, because one of them serves
    it."""
    where = urlsplit(store)
    try:
        return _in_etcd(where.netloc, where.path, run_id) if where.scheme == "etcd" else _in_c10d(where.netloc, run_id)
    except (StoreError, ValueError, OSError) as error:
        raise NoReading(f"{where.scheme}://{where.netloc}: {error}") from None


def _in_c10d(endpoint: str, run_id: str) -> bool:
    from ...rendezvous.c10d.client import connect
    from ...rendezvous.c10d.keys import SERVED, Keys

    found = parse_endpoint(endpoint)
    family, _, _, _, address = socket.getaddrinfo(found.host, found.port, type=socket.SOCK_STREAM)[0]
    where = (family, (str(address[0]), int(address[1])))
    try:
        client = connect(where, endpoint, ANSWER_S, ANSWER_S)
    except StoreUnreachable as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            return False
        raise
    try:
        return client.get([SERVED]).get(SERVED) == Keys(run_id).served
    finally:
        client.close()


def _in_etcd(endpoints: str, prefix: str, run_id: str) -> bool:
    from ...rendezvous.etcd.client import EtcdClient
    from ...rendezvous.etcd.keys import PREFIX, EtcdKeys
    from ...rendezvous.etcd.ops import Read

    client = EtcdClient([parse_endpoint(each, 2379) for each in endpoints.split(",")], call_s=ANSWER_S)
    try:
        folder = EtcdKeys(prefix or PREFIX, run_id).job.removesuffix(b"job")
        # Each incarnation of the job has a folder of its own; those of nodes that are gone go with their leases.
        return any(b"/node-live/" in item.key for item in client.read(Read(folder, prefix=True, keys_only=True)).items)
    finally:
        client.close()
