"""The production election on the simulated etcd: what it asks of a client, put to the model of the servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from elastic_agent.rendezvous.etcd.election import Election
from elastic_agent.rendezvous.etcd.keys import EtcdKeys
from elastic_agent.rendezvous.etcd.ops import Change, Found, Item, Outcome, Put

from .threads import current

LEASE = 1
"""Every node's. A node whose lease has ended gets another, but leads on in the model."""
WAIT_S = 0.97
"""Longest wait for a hint, of which some never arrive. It ends at no moment at which others' waits of whole seconds do:
which of the two is first would depend on the rounding of a clock."""


def candidate(ask: Callable[..., Any]) -> Election:
    """For one session; `ask` puts a request to the servers."""
    return Election(cast("Any", _Client(ask)), cast("Any", _Leases()), EtcdKeys("", "job", 1))


class _Leases:
    """In the place of `etcd.leases.Leases`."""

    def node(self, client: object, node: str) -> int:
        return LEASE

    def with_leases(self, node: str, attach: Callable[[], Any]) -> Any:
        return attach()


class _Client:
    """In the place of `etcd.client.EtcdClient`: of all keys, the one of the leader."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self.ask = ask

    def read(self, read: object) -> Found:
        return found(*self.ask("coordinator", current().process.node.ident))

    def txn(self, compares: object, puts: Sequence[Put], reads: object, *, repeatable: bool) -> Outcome:
        node = puts[0].value.decode()
        revision, leader, epoch = self.ask("claim", node)
        return Outcome(leader == node, epoch, (found(revision, leader, epoch),))

    def watch(self, key: bytes, *, start_revision: int) -> _Watch:
        return _Watch(self, start_revision)


class _Watch:
    """Until the term ends that there was. A hint may get lost, so it reads again and again."""

    def __init__(self, client: _Client, start_revision: int) -> None:
        self._client = client
        self._start_revision = start_revision

    def wait(self, timeout_s: float) -> tuple[Change, ...]:
        world = current().process.world
        ends = world.now + timeout_s
        while (left_s := ends - world.now) > 0:
            self._client.ask("watch", "leader", timeout_s=min(WAIT_S, left_s))
            now = self._client.read(None)
            if not now.items or now.items[0].create_revision >= self._start_revision:
                return (Change(Item(b"", b"", 0, now.revision, 0, 0), True),)
        return ()

    def close(self) -> None:
        """Nothing is open."""


def found(revision: int, leader: str, epoch: int) -> Found:
    """The key of the leader, as a read at this revision has it."""
    item = Item(b"", leader.encode(), epoch, epoch, 1, LEASE)
    return Found(revision, (item,) if leader else (), False)
