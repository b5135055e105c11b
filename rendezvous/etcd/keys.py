"""How a job's records are named in etcd. Below `<prefix>/<run id, percent-encoded>/`:

    job                  the job's record

and, below that, in a folder for each incarnation of the job, 1/, 2/ and so on:

    node/<id>            the node's record
    node-live/<id>       nothing; it goes with the node's lease
    leader               the coordinator's id, on its node's lease; the revision that created it is the term's epoch
    round/<version>      what was announced, create-only
    round-newest         the newest version, decimal

All but what hangs on a node's lease hangs on the job's, which every agent renews, so that what is left of a job whose
agents were all killed goes in the end, and the record of one that has ended.

A job of torchrun's, which comes by the plug-in, has these instead, all on one lease that every agent renews:

    torchrun/state                what torch keeps of the rendezvous, pickled by torch
    torchrun/store/<key>          what agents tell each other of a round; the key is torch's, percent-encoded
    torchrun/adders/<agent>       the agent's last addition to a count, so that none is made twice
"""

from __future__ import annotations

from ..c10d.keys import percent_encoded
from ..codec.digest import sha256

PREFIX = "/elastic-agent"
"""Where jobs lie unless told otherwise."""


class EtcdKeys:
    """The keys of one incarnation of one job."""

    def __init__(self, prefix: str, run_id: str, incarnation: int = 1) -> None:
        self._prefix, self._run_id = prefix, run_id
        folder = _folder(prefix, run_id)
        self.job = folder + b"job"
        self.job_lease = _lease_of(folder)
        """Number of the job's lease: the same on every node, as nobody is there first to choose one."""
        self.under = folder + b"%d/" % incarnation
        self.leader = self.under + b"leader"
        self.nodes = self.under + b"node"
        """Begins the records and what says who lives."""
        self.lives = self.under + b"node-live/"
        self._records = self.under + b"node/"
        self.rounds = self.under + b"round/"
        self.newest = self.under + b"round-newest"

    def of(self, incarnation: int) -> EtcdKeys:
        """The keys of another incarnation of the job."""
        return EtcdKeys(self._prefix, self._run_id, incarnation)

    def record(self, node: str) -> bytes:
        return self._records + _word(node)

    def live(self, node: str) -> bytes:
        return self.lives + _word(node)

    def round(self, version: int) -> bytes:
        return self.rounds + b"%d" % version

    def node_of(self, key: bytes) -> tuple[str, bool] | None:
        """Whose key this is, and whether it is the node's record (not what says that it lives); None: not ours."""
        for begins, is_record in ((self._records, True), (self.lives, False)):
            if key.startswith(begins):
                try:
                    return _name(key[len(begins) :]), is_record
                except ValueError:
                    return None
        return None

    def version_of(self, key: bytes) -> int | None:
        """The version whose key this is; None: not ours."""
        number = key.removeprefix(self.rounds)
        return int(number) if number.isdigit() and len(number) <= 16 else None


class TorchrunKeys:
    """The keys of one job of torchrun's."""

    def __init__(self, prefix: str, run_id: str) -> None:
        self.under = _folder(prefix, run_id) + b"torchrun/"
        self.lease = _lease_of(self.under)
        self.state = self.under + b"state"
        self.stored = self.under + b"store/"
        """Begins the keys of the store."""
        self._adders = self.under + b"adders/"

    def of(self, key: str) -> bytes:
        """What the store's `key` is called here."""
        return self.stored + _word(key)

    def adder(self, agent: str) -> bytes:
        return self._adders + _word(agent)


def _folder(prefix: str, run_id: str) -> bytes:
    return f"{prefix.rstrip('/')}/{_word(run_id).decode()}/".encode()


def _lease_of(folder: bytes) -> int:
    return int.from_bytes(sha256(folder).digest()[:8], "big") >> 1 or 1


def _word(node: str) -> bytes:
    return percent_encoded(node.encode("utf-8", "surrogateescape")).encode("ascii")


def _name(word: bytes) -> str:
    """Raises ValueError for what is no word of ours."""
    head, *rest = word.split(b"%")
    raw = head + b"".join(bytes([int(part[:2], 16)]) + part[2:] for part in rest)
    name = raw.decode("utf-8", "surrogateescape")
    if _word(name) != word:
        raise ValueError(word)
    return name
