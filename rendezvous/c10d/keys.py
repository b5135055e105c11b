"""The keys of a job in a TCPStore, and the checks of values read from them.

Below `elastic_agent/<run id, percent-encoded>/`:

    job              the job's record, create-only
    life             random token of this server, so that clients recognise a restarted, empty server
    host             where several nodes may host the store: who does, in which epoch, and where (`listed.py`)
    list             there also: the endpoints, in the order in which this node was given them
    gone             never written; who waits for it waits for the end of the connection

and, below that, in a folder for each incarnation of the job, 1/, 2/ and so on; counters are decimal text:

    node/<id>        the node's record
    beat/<id>        its heartbeat counter
    host_beat        that of the node that serves the store, which all others read
    log/<n>          the n-th notification: the id of a node that published, or VOID; deleted once it is compacted
    log/head         number of notifications begun
    log/compacted    number of notifications that were compacted: all up to this one
    log/nodes/<n>    ids of nodes that compacted notifications name, each node in one of these keys, `SEPARATOR` between
    round/<version>  an announcement, create-only
    round/head       the newest announced version
    value/<name>     what nodes share beside that (`shared_values.py`)

and `elastic_agent/served`, the run id that this server serves, written last: once it exists, all other keys do; and
`elastic_agent/over`, once the job is over, so that who comes for the next job waits for the end of this server.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ..endpoint import Address
from ..store import NO_BEAT, SPOILED, StoreForeign, StoreReplaced, StoreSpoiled, StoreUnreachable
from ..text import percent_encoded
from .client import TcpStoreClient, connect

SERVED, OVER = "elastic_agent/served", "elastic_agent/over"
VOID = b"\xff"
"""Entry of a notification that a reader gave up waiting for. Not a valid id, and not empty, because compare_set takes
empty for absent."""
MAX_COUNT = 2**53
"""No count of elastic-agent reaches this; a larger number was written by another program."""
SEPARATOR = b"\xff"
"""Between node ids in one value; no id in UTF-8 holds this byte."""
MAX_UNCOMPACTED = 100_000
"""Notifications that are not compacted: 10 MB at the host. It compacts what it has read, some thousands at a time, so
no job comes near, however long it runs."""
MAX_NODE_ID_BYTES = 512
"""A longer id in a notification was written by another program."""


class Keys:
    """The keys of one incarnation of one job."""

    def __init__(self, run_id: str, incarnation: int = 1) -> None:
        self._run_id = run_id
        self.incarnation = incarnation
        self.served = run_id.encode("utf-8", "surrogateescape")
        """The value of the key `SERVED`. A run id from the command line may be any bytes."""
        job = f"elastic_agent/{percent_encoded(self.served)}/"
        self.job = job + "job"
        self.life = job + "life"
        self.pointer = job + "host"
        self.list = job + "list"
        self.gone = job + "gone"
        self.under = f"{job}{incarnation}/"
        self.log_head = self.under + "log/head"
        self.log_compacted = self.under + "log/compacted"
        self.round_head = self.under + "round/head"
        self.host_beat = self.under + "host_beat"
        self.counters = (self.log_head, self.log_compacted, self.round_head)
        self.of_server = (SERVED, *self.counters, self.life)
        """What says whether a server is still the same, and serves this job."""

    def for_incarnation(self, incarnation: int) -> Keys:
        """The keys of another incarnation of the same job."""
        return Keys(self._run_id, incarnation)

    def node(self, node: str) -> str:
        return f"{self.under}node/{node}"

    def beat(self, node: str) -> str:
        return f"{self.under}beat/{node}"

    def notification(self, number: int) -> str:
        return f"{self.under}log/{number}"

    def compacted_nodes(self, number: int) -> str:
        return f"{self.under}log/nodes/{number}"

    def round(self, version: int) -> str:
        return f"{self.under}round/{version}"

    def value(self, name: str) -> str:
        return f"{self.under}value/{name}"


def parse_count(value: bytes) -> int | None:
    """The count that these bytes hold in decimal; None if they hold something else."""
    if not 0 < len(value) <= 16 or not value.isdigit():
        return None
    number = int(value)
    return number if number <= MAX_COUNT else None


def checked_count(where: str, key: str, found: Mapping[str, bytes], most: int, least: int = 0) -> int:
    """The count at `key` among the values `found` at the endpoint `where`. Raises StoreForeign unless it is a count
    from `least` to `most`."""
    value = found.get(key)
    number = None if value is None else parse_count(value)
    if number is None or not least <= number <= most:
        raise foreign_count(where, key, value, most, least)
    return number


def checked_log(
    where: str, keys: Keys, found: Mapping[str, bytes], least_head: int = 0, least_compacted: int = 0
) -> tuple[int, int]:
    """The counts at `log_head` and `log_compacted` among the values `found`, which one request has read. Raises
    StoreForeign unless both are counts that fit together and have not gone back, or if the host does not read."""
    compacted = checked_count(where, keys.log_compacted, found, MAX_COUNT, least_compacted)
    least, most = max(least_head, compacted), compacted + MAX_UNCOMPACTED
    head = parse_count(found.get(keys.log_head, b""))
    if head is not None and most < head <= most + MAX_UNCOMPACTED:
        raise StoreForeign(
            f"{where}: the host has read none of the last {head - compacted} notifications (key {keys.log_head} counts "
            f"{head}); its agent hangs or is far too slow: restart the job with another host"
        )
    return checked_count(where, keys.log_head, found, most, least), compacted


def foreign_count(where: str, key: str, value: bytes | None, most: int, least: int = 0) -> StoreSpoiled:
    """The error for a counter that does not hold a count from `least` to `most`."""
    return StoreSpoiled(
        f"{where}: key {key} holds {excerpt(value)} instead of a count from {least} to {most}; "
        "another program writes to this store: restart the job on another port"
    )


def node_ids(notifications: Iterable[bytes]) -> list[str]:
    """The nodes that these bytes name, each once. Void notifications, and bytes that are no node id, are left out."""
    found: dict[str, None] = {}
    for notification in notifications:
        if 0 < len(notification) <= MAX_NODE_ID_BYTES:
            try:
                found[notification.decode("utf-8")] = None
            except UnicodeDecodeError:
                continue  # written by another program: any host on the network may write to the store
    return list(found)


def excerpt(value: bytes | None) -> str:
    """The value for a message: on one line, at most 40 bytes of it; None is a key that does not exist."""
    if value is None:
        return "nothing"
    return repr(value[:40].decode("utf-8", "replace")) + ("..." if len(value) > 40 else "")


def create_keys(client: TcpStoreClient, keys: Keys) -> bytes:
    """On the host: create the keys that clients expect, except `SERVED`. Returns the server's token."""
    token = os.urandom(8).hex().encode("ascii")
    for key in keys.counters:
        client.put_later(key, b"0")
    client.put(keys.life, token)
    return token


def mark_served(client: TcpStoreClient, keys: Keys) -> None:
    """On the host: create `SERVED`, which other nodes wait for."""
    client.put(SERVED, keys.served)


def mark_over(client: TcpStoreClient) -> None:
    """On the host: create `OVER`. The server ends as soon as the nodes of its job have ended."""
    client.put(OVER, b"1")


def verify(client: TcpStoreClient, where: str, keys: Keys, timeout_s: float, token: bytes = b"") -> bytes:
    """On a client of the endpoint `where`, whose handshake asked for `SERVED`, read `Keys.of_server`, or neither: wait
    for that key, and check that the server serves this job and, if `token` is given, is still the same server. Returns
    the server's token; what it has read is in `client.said`.

    Raises StoreForeign if it serves no job, another job, or if a counter holds no count; StoreUnreachable if that other
    job is over, so that the server is about to end; with a token StoreReplaced if it serves a job anew, or is about to.
    """
    names = [*keys.of_server, *(() if token else (keys.job, keys.pointer))]
    # A server of another kind than ours, which has no token here, may break the connection where a key is missing.
    found = client.said or (client.get(names) if token or client.has_asked else {})
    if SERVED not in found:
        if not client.wait(SERVED, timeout_s):
            raise (StoreReplaced if token else StoreForeign)(
                f"{where} is a TCPStore, but no elastic-agent hosts a job there; "
                "choose another port, or start elastic-agent on the node that the endpoint names"
            )
        found = client.get(names)
    served = found.get(SERVED, b"")
    if served != keys.served:
        if client.get([OVER]):
            raise StoreUnreachable(f"{where} still serves job {excerpt(served)}, which is over and about to leave")
        raise StoreForeign(
            f"{where} serves job {excerpt(served)}, not {excerpt(keys.served)}: "
            "choose another port or the same --rdzv-id"
        )
    checked_log(where, keys, found)
    checked_count(where, keys.round_head, found, MAX_COUNT)
    life = found.get(keys.life, b"")
    if token and life != token:
        raise StoreReplaced(
            f"{where} was restarted and has lost the records of job {excerpt(served)}; restart all agents"
        )
    client.said = found
    return life


def connect_again(
    address: Address, where: str, keys: Keys, token: bytes, limit_s: float, newest: int = 0
) -> TcpStoreClient:
    """A further client of the server with this token, in one request, which also reads the announcement of this
    version, if that is not 0. Raises as `client.connect` and `verify`."""
    reads = [*keys.of_server, *([keys.round(newest)] if newest else [])]
    client = connect(address, where, limit_s, limit_s, reads=reads)
    try:
        verify(client, where, keys, 0.0, token)
    except BaseException:
        client.close()
        raise
    return client


def host_count(found: bytes | None) -> int:
    """What the counter of the host's heartbeats says: a number, `NO_BEAT` or `SPOILED`."""
    if found is None:
        return NO_BEAT
    count = parse_count(found)
    return SPOILED if count is None else count
