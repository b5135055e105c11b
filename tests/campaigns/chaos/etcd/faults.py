"""Faults of etcd servers. Each function blocks until its fault is over, and leaves a cluster that works."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.credentials import Login
from elastic_agent.rendezvous.etcd.errors import EtcdNoSpace
from elastic_agent.rendezvous.etcd.ops import Delete, Put
from support.etcd_servers import Server, Servers

ROOT, USER = Login("root", "the-root-of-it-all"), Login("trainer", "the-trainers-own")
PREFIX = "/chaos"
QUOTA = 1 << 20
"""Bytes that the servers may hold: little, so that they are soon full."""
QUICK_LOGINS = ["--bcrypt-cost", "4"]
"""Flags of servers: without them each login of a client takes a tenth of a second of a busy CPU."""
FILLER, FILLER_BYTES = b"/chaos/filler", 64 * 1024
ROOM_S = 30.0
"""Bound on making room, which takes a second."""
COMPACT_EVERY_S = 1.0


class EtcdFaults:
    """The etcd servers of one run, and the faults that they can be given."""

    def __init__(self, servers: Servers, seed: int, read_up_to: Callable[[], int]) -> None:
        """`read_up_to`: the revision up to which the history has been read, and may be compacted."""
        self._servers = servers
        self._rng = random.Random(seed)
        self._read_up_to = read_up_to
        self.ending = threading.Event()
        """Set when the run ends: every fault is undone at once."""

    def inject(self, kind: str, for_s: float) -> None:
        """Give the servers a fault, wait `for_s`, undo it. Raises KeyError for an unknown kind."""
        {
            "leader killed": self._leader_killed,
            "leader stopped": self._leader_stopped,
            "quorum lost": self._quorum_lost,
            "all restarted": self._all_restarted,
            "member replaced": self._member_replaced,
            "compaction": self._compaction,
            "no space": self._no_space,
            "auth revoked": self._auth_revoked,
        }[kind](for_s)

    def _leader_killed(self, for_s: float) -> None:
        self._killed_for(for_s, self._leader())

    def _leader_stopped(self, for_s: float) -> None:
        leader = self._leader()
        leader.freeze()
        try:
            self.ending.wait(for_s)
        finally:
            leader.thaw()
            self._servers.wait()

    def _quorum_lost(self, for_s: float) -> None:
        self._killed_for(for_s, *self._rng.sample(self._servers.members, 2))

    def _all_restarted(self, for_s: float) -> None:
        self._killed_for(for_s, *self._servers.members)

    def _member_replaced(self, for_s: float) -> None:
        self._servers.replace(self._rng.choice(self._servers.members))

    def _compaction(self, for_s: float) -> None:
        """Compact everything, every second."""
        until = time.monotonic() + for_s
        while time.monotonic() < until and not self.ending.wait(COMPACT_EVERY_S):
            try:
                self._compact()
            except AssertionError as error:
                # The servers are down because of another fault.
                known = ("DeadlineExceeded", "deadline exceeded", "timed out", "no available endpoints", "no leader")
                if not any(why in str(error) for why in known):
                    raise

    def _no_space(self, for_s: float) -> None:
        with closing(self._servers.client()) as client:
            with suppress(EtcdNoSpace):
                while True:
                    client.put(Put(FILLER, self._rng.randbytes(FILLER_BYTES)))
            self.ending.wait(for_s)
            client.delete(Delete(FILLER))
            self._make_room()

    def _make_room(self) -> None:
        until = time.monotonic() + ROOM_S
        while self._largest() > QUOTA // 2:  # the other members compact with a delay
            assert time.monotonic() < until, "compaction and defragmentation make no room"
            self._compact("--physical=true")
            self._servers.defragment()
        self._servers.ctl("alarm", "disarm")

    def _compact(self, *flags: str) -> None:
        """Compact all of the history that has been read."""
        try:
            self._servers.ctl("compact", *flags, str(self._read_up_to()))
        except AssertionError as error:
            if "has been compacted" not in str(error):  # nothing was read since the last one
                raise

    def _largest(self) -> int:
        """Bytes that the fullest server holds."""
        sizes = []
        for member in self._servers.members:
            with closing(EtcdClient([member.endpoint], self._servers.tls, self._servers.login)) as client:
                sizes.append(client.health().db_bytes)
        return max(sizes)

    def _auth_revoked(self, for_s: float) -> None:
        self._servers.ctl("role", "revoke-permission", "limited", "--prefix=true", PREFIX + "/")
        self.ending.wait(for_s)
        self._servers.ctl("role", "grant-permission", "limited", "--prefix=true", "readwrite", PREFIX + "/")

    def _killed_for(self, for_s: float, *members: Server) -> None:
        for member in members:
            member.kill()
        self.ending.wait(for_s)
        for member in members:
            member.start()
        self._servers.wait()

    def _leader(self) -> Server:
        """The leader, after an election if there is none."""
        self._servers.wait()
        return self._servers.leader()
