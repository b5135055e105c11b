"""What befalls the servers of etcd. Each function blocks until it is over, and leaves a cluster that works."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from elastic_agent.rendezvous.etcd_cluster import Login
from elastic_agent.rendezvous.etcd_errors import EtcdCompacted, EtcdNoSpace, EtcdRefused
from elastic_agent.rendezvous.etcd_ops import Delete, Put
from elastic_agent.rendezvous.store import StoreError
from etcd_servers import Server, Servers

ROOT, USER = Login("root", "the-root-of-it-all"), Login("trainer", "the-trainers-own")
PREFIX = "/chaos"
QUOTA = 1 << 20
"""Bytes: what the servers may hold, so that they are soon full."""
FILLER = b"/filler"
COMPACT_EVERY_S = 1.0


class Servants:
    """The servers of one run, and what one does to them. `wait` is how time passes; `seen` is the newest revision up to
    which the history has been read, and may be compacted."""

    def __init__(self, servers: Servers, seed: int, seen: Callable[[], int]) -> None:
        self._servers = servers
        self._rng = random.Random(seed)
        self._seen = seen
        self.over = threading.Event()
        """Set when the run ends: every fault passes at once."""

    def befall(self, kind: str, for_s: float) -> None:
        """Do it, wait `for_s`, undo it."""
        with getattr(self, "_" + kind.replace(" ", "_"))(for_s):
            self.over.wait(for_s)

    @contextmanager
    def _leader_killed(self, for_s: float) -> Iterator[None]:
        with self._dead(self._leader()):
            yield

    @contextmanager
    def _leader_stopped(self, for_s: float) -> Iterator[None]:
        leader = self._leader()
        leader.freeze()
        try:
            yield
        finally:
            leader.thaw()
            self._servers.wait()

    @contextmanager
    def _quorum_lost(self, for_s: float) -> Iterator[None]:
        with self._dead(*self._rng.sample(self._servers.members, 2)):
            yield

    @contextmanager
    def _all_restarted(self, for_s: float) -> Iterator[None]:
        with self._dead(*self._servers.members):
            yield

    @contextmanager
    def _member_replaced(self, for_s: float) -> Iterator[None]:
        self._servers.replace(self._rng.choice(self._servers.members))
        yield

    @contextmanager
    def _compaction(self, for_s: float) -> Iterator[None]:
        """Every second, of all that there is; agents' watches are cut off meanwhile, and must find their way back."""
        until = time.monotonic() + for_s
        with closing(self._servers.client()) as client:
            while time.monotonic() < until and not self.over.wait(COMPACT_EVERY_S):
                seen = self._seen()
                if seen > 1:
                    try:
                        self._servers.ctl("compact", str(seen))
                    except AssertionError as error:
                        if "compacted" not in str(error):  # nothing was written since the last one
                            raise
        self.over.wait(0.0)
        yield

    @contextmanager
    def _no_space(self, for_s: float) -> Iterator[None]:
        with closing(self._servers.client()) as client:
            while True:
                try:
                    client.put(Put(FILLER, self._rng.randbytes(64 * 1024)))
                except EtcdNoSpace:
                    break
            try:
                yield
            finally:
                client.delete(Delete(FILLER))
                self._make_room()

    def _make_room(self) -> None:
        self._servers.ctl("compact", "--physical=true", str(self._seen()))
        self._servers.defragment()
        self._servers.ctl("alarm", "disarm")

    @contextmanager
    def _auth_revoked(self, for_s: float) -> Iterator[None]:
        self._servers.ctl("role", "revoke-permission", "limited", "--prefix=true", PREFIX + "/")
        try:
            yield
        finally:
            self._servers.ctl("role", "grant-permission", "limited", "--prefix=true", "readwrite", PREFIX + "/")

    @contextmanager
    def _dead(self, *members: Server) -> Iterator[None]:
        with ExitStack() as undo:
            undo.callback(self._servers.wait)
            for member in members:
                undo.callback(member.start)
                member.kill()
            yield

    def _leader(self) -> Server:
        deadline = time.monotonic() + 10.0
        while True:
            try:
                return self._servers.leader()
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
