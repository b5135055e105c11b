"""The names of a job's keys in etcd. Below `<prefix>/<run id, percent-encoded>/`:

    job                  the job's record

and below that, a folder for each incarnation of the job, 1/, 2/ and so on:

    node/<id>            the node's record
    node-live/<id>       empty; exists while the node's lease does
    leader               the coordinator's id, on its node's lease; the revision that created it is the term's epoch
    round/<version>      an announcement, create-only
    round-newest         the newest announced version, decimal
    value/<name>         what nodes share beside that (`shared_values.py`)

node-live/ and leader are attached to a node's lease. All other keys are attached to the job's lease, which every agent
renews. So nothing stays forever: the keys of a job whose agents were all killed expire, as does an ended job's record.

A job of torchrun's (through the plug-in) has these keys instead, all on one lease that every agent renews:

    torchrun/state                torch's rendezvous state, pickled by torch
    torchrun/store/<key>          what the agents of a round exchange; the key is torch's, percent-encoded
    torchrun/adders/<agent>       the number of the agent's last addition to a count, so that none is made twice
"""

from __future__ import annotations

from functools import lru_cache

from ..codec.digest import sha256
from ..text import percent_encoded

PREFIX = "/elastic-agent"
"""Default prefix of all jobs."""
_KEPT = 1 << 14
"""Names that are kept with their spelling in keys: a coordinator needs those of all nodes at each reading of leases."""


class EtcdKeys:
    """The keys of one incarnation of one job."""

    def __init__(self, prefix: str, run_id: str, incarnation: int = 1) -> None:
        self._prefix, self._run_id = prefix, run_id
        folder = _folder(prefix, run_id)
        self.job = folder + b"job"
        self.job_lease = _lease_of(folder)
        """Id of the job's lease: computed from its name, so that all nodes agree on it without exchanging it."""
        self.folder = folder + b"%d/" % incarnation
        """Prefix of all keys of this incarnation."""
        self.leader = self.folder + b"leader"
        self.nodes_prefix = self.folder + b"node"
        """Prefix of both node/ and node-live/."""
        self._live_prefix = self.folder + b"node-live/"
        self._records_prefix = self.folder + b"node/"
        self.rounds_prefix = self.folder + b"round/"
        self.newest_round = self.folder + b"round-newest"

    def for_incarnation(self, incarnation: int) -> EtcdKeys:
        """The keys of another incarnation of the job."""
        return EtcdKeys(self._prefix, self._run_id, incarnation)

    def record(self, node: str) -> bytes:
        return self._records_prefix + _encoded(node)

    def live(self, node: str) -> bytes:
        return self._live_prefix + _encoded(node)

    def round(self, version: int) -> bytes:
        return self.rounds_prefix + b"%d" % version

    def value(self, name: str) -> bytes:
        return self.folder + b"value/" + name.encode("ascii")

    def node_of(self, key: bytes) -> tuple[str, bool] | None:
        """The node that this key belongs to, and whether the key is its record (True) or its node-live/ key (False);
        None: neither."""
        for prefix, is_record in ((self._records_prefix, True), (self._live_prefix, False)):
            if key.startswith(prefix):
                try:
                    return _decoded(key[len(prefix) :]), is_record
                except ValueError:
                    return None
        return None

    def version_of(self, key: bytes) -> int | None:
        """The version that this key announces; None: it is no round/ key."""
        number = key.removeprefix(self.rounds_prefix)
        return int(number) if number.isdigit() and len(number) <= 16 else None


class TorchrunKeys:
    """The keys of one job of torchrun's."""

    def __init__(self, prefix: str, run_id: str) -> None:
        self.folder = _folder(prefix, run_id) + b"torchrun/"
        self.lease = _lease_of(self.folder)
        """Id of the job's lease, as `EtcdKeys.job_lease`."""
        self.state = self.folder + b"state"
        self.store_prefix = self.folder + b"store/"
        self._adders_prefix = self.folder + b"adders/"

    def stored(self, key: str) -> bytes:
        """The etcd key that holds the store's `key`."""
        return self.store_prefix + _encoded(key)

    def adder(self, agent: str) -> bytes:
        return self._adders_prefix + _encoded(agent)


def _folder(prefix: str, run_id: str) -> bytes:
    return f"{prefix.rstrip('/')}/{_encoded(run_id).decode()}/".encode()


def _lease_of(folder: bytes) -> int:
    return int.from_bytes(sha256(folder).digest()[:8], "big") >> 1 or 1


@lru_cache(maxsize=_KEPT)
def _encoded(name: str) -> bytes:
    return percent_encoded(name.encode("utf-8", "surrogateescape")).encode("ascii")


@lru_cache(maxsize=_KEPT)
def _decoded(segment: bytes) -> str:
    """Raises ValueError if `_encoded` never produces this segment."""
    head, *rest = segment.split(b"%")
    raw = head + b"".join(bytes([int(part[:2], 16)]) + part[2:] for part in rest)
    name = raw.decode("utf-8", "surrogateescape")
    if _encoded(name) != segment:
        raise ValueError(segment)
    return name
