"""torchrun's rendezvous in etcd v3: its state, and the store through which agents exchange ranks and addresses.

Written for torch 2.13, `torch.distributed.elastic.rendezvous.dynamic_rendezvous`. torch pickles its state and unpickles
what it reads, so a user who may write below the prefix may run code in every agent.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

from torch.distributed import DistStoreError, Store  # type: ignore[attr-defined]  # re-exported without saying so
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
)

from ...agent.spec import EtcdSpec
from ...rendezvous.etcd.client import EtcdClient
from ...rendezvous.etcd.errors import EtcdCompacted, EtcdWatchLost
from ...rendezvous.etcd.keys import TorchrunKeys
from ...rendezvous.etcd.ops import Item, Outcome, Put, Read, holds, is_absent, is_unchanged
from ...rendezvous.store import StoreError
from .folder import Folder, RetryLimits

STATE_BYTES = 1 << 20
"""Largest state or value; a node takes about 100 bytes of the state. A server accepts requests of 1.5 MiB."""

TXN_READS = 100
"""Reads in one transaction; servers accept 128 requests (`--max-txn-ops`), which are fewer than the nodes of a job."""

T = TypeVar("T")


class EtcdRendezvousBackend(RendezvousBackend):
    """torch's state of the rendezvous, in one key. The fencing token is the revision that wrote the state."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        return "elastic-etcd"

    def get_state(self) -> tuple[bytes, int] | None:
        """The state and its token. Raises RendezvousConnectionError, RendezvousStateError."""
        key = self._folder.keys.state
        return _state(self._ask(lambda lease: self._folder.client.read(Read(key)).items))

    def set_state(self, state: bytes, token: object = None) -> tuple[bytes, int, bool] | None:
        """Write `state`, if none was written after `token`, or, without a token, if there is none. Returns the state
        that is there afterwards, its token, and whether it is the one given; None if there is none. Raises
        RendezvousConnectionError, RendezvousStateError."""
        if len(state) > STATE_BYTES:
            raise RendezvousStateError(f"the state has {len(state)} bytes, more than {STATE_BYTES}; use fewer nodes")
        if token is not None and not isinstance(token, int):
            there = self.get_state()
            return (*there, False) if there else None
        key, client = self._folder.keys.state, self._folder.client
        unchanged = is_unchanged(key, token) if token else is_absent(key)
        done = self._ask(lambda lease: client.txn([unchanged], [Put(key, state, lease)], [Read(key)], repeatable=True))
        if done.succeeded:
            return state, done.revision, True
        there = _state(done.found[0].items)
        # The same state is there if an earlier attempt was applied and only its answer was lost.
        return (*there, there[0] == state) if there else None

    def _ask(self, do: Callable[[int], T]) -> T:
        try:
            return self._folder.ask(do)
        except StoreError as error:
            raise RendezvousConnectionError(str(error)) from error


def _state(items: Sequence[Item]) -> tuple[bytes, int] | None:
    if not items:
        return None
    [item] = items
    if len(item.value) > STATE_BYTES:
        raise RendezvousStateError(
            f"{item.key.decode()} in etcd has {len(item.value)} bytes, more than {STATE_BYTES}; another program writes "
            "there; choose another --rdzv-id or prefix"
        )
    return item.value, item.mod_revision


class EtcdAgentStore(Store):
    """The store through which torchrun's agents exchange counts, ranks and the address of rank 0 in a round.

    Workers do not use it: they meet in a TCPStore at that address. Its methods raise DistStoreError, also for a key
    that was not written within the store's time-out.
    """

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self._folder = folder
        self._adder = folder.keys.adder(uuid.uuid4().hex)
        self._additions = 0
        self._lock = threading.Lock()

    def set(self, key: str, value: str | bytes) -> None:
        name, held = self._folder.keys.stored(key), _bounded(key, value)
        self._ask(lambda lease: self._folder.client.put(Put(name, held, lease)))

    def get(self, key: str) -> bytes:
        """The value; waits for the key."""
        [item] = self._wait([key], self._limit())
        return item.value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values; waits for all of the keys."""
        return [item.value for item in self._wait(keys, self._limit())]

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, value: int) -> int:
        """Add to a count, which is 0 if the key does not exist; returns the sum. Adds once, even if answers are lost
        and the request is repeated."""
        name = self._folder.keys.stored(key)
        with self._lock:
            self._additions += 1
            mark = b"%d" % self._additions
            items = self._ask(lambda lease: self._folder.client.read(Read(name)).items)
            while True:
                total = (int(items[0].value) if items else 0) + value
                done = self._ask(partial(self._count, name, items, total, mark))
                if done.succeeded or [item.value for item in done.found[1].items] == [mark]:
                    return total
                items = done.found[0].items

    def _count(self, name: bytes, items: Sequence[Item], total: int, mark: bytes, lease: int) -> Outcome:
        """Write the sum if the count is still `items`, and with it a mark. If the answer is lost, the mark shows that
        the sum was written."""
        same = is_unchanged(name, items[0].mod_revision) if items else is_absent(name)
        puts = [Put(name, b"%d" % total, lease), Put(self._adder, mark, lease)]
        return self._folder.client.txn([same], puts, [Read(name), Read(self._adder)], repeatable=True)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` if the value is `expected`, or, if `expected` is empty, if the key does not exist. Returns
        the value afterwards, and `expected` if there is none, as TCPStore does."""
        name, client = self._folder.keys.stored(key), self._folder.client
        old, new = _bounded(key, expected), _bounded(key, desired)
        same = holds(name, old) if old else is_absent(name)
        done = self._ask(lambda lease: client.txn([same], [Put(name, new, lease)], [Read(name)], repeatable=True))
        if done.succeeded:
            return new
        return bytes(done.found[0].items[0].value) if done.found[0].items else old

    def check(self, keys: list[str]) -> bool:
        """Whether all of the keys exist now."""
        return all(self._read(keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._wait(keys, self._limit() if timeout is None else timeout)

    def _limit(self) -> timedelta:
        limit: timedelta = self.timeout  # type: ignore[attr-defined]  # not in torch's stubs
        return limit

    def _read(self, keys: Sequence[str]) -> list[Sequence[Item]]:
        reads = [Read(self._folder.keys.stored(key)) for key in keys]
        parts = [self._read_part(reads[at : at + TXN_READS]) for at in range(0, len(reads), TXN_READS)]
        self._revision = parts[0].revision  # a watch from the first on misses nothing
        return [found.items for part in parts for found in part.found]

    def _read_part(self, reads: Sequence[Read]) -> Outcome:
        return self._ask(lambda lease: self._folder.client.txn([], reads, repeatable=True))

    def _wait(self, keys: Sequence[str], timeout: timedelta) -> list[Item]:
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            found = self._read(keys)
            missing = [key for key, items in zip(keys, found, strict=True) if not items]
            if not missing:
                return [items[0] for items in found]
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise DistStoreError(
                    f"no agent wrote {missing[0]!r} ({len(missing)} of {len(keys)} keys) in etcd within "
                    f"{timeout.total_seconds():g} s"
                )
            self._watch(missing[0], left_s)

    def _watch(self, key: str, left_s: float) -> None:
        """Wait until the key changes after it was read, the watch is lost, or `left_s` is over."""

        def watch(lease: int) -> None:
            name, after = self._folder.keys.stored(key), self._revision + 1
            try:
                watching = self._folder.client.watch(name, start_revision=after)
                try:
                    watching.wait(left_s)
                finally:
                    watching.close()
            except (EtcdWatchLost, EtcdCompacted):
                return

        self._ask(watch)

    def _ask(self, do: Callable[[int], T]) -> T:
        try:
            return self._folder.ask(do)
        except StoreError as error:
            raise DistStoreError(str(error)) from error


def _bounded(key: str, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else bytes(value)
    if len(raw) > STATE_BYTES:
        raise DistStoreError(f"the value of {key!r} has {len(raw)} bytes, more than {STATE_BYTES}; write less")
    return raw


class EtcdRendezvousHandler(DynamicRendezvousHandler):
    """torch's handler, but with a new store for the workers of each round."""

    folder: Folder

    def next_rendezvous(self) -> RendezvousInfo:
        """Begin each round as torch begins the first.

        torch 2.13 keeps the store of the first round, and its address, for the life of the agent: a surviving rank 0
        never publishes its address to a new node, other survivors connect to the address of a lost node, and restarted
        workers read keys of the workers before them."""
        last = self._shared_tcp_store_server  # kept until all nodes have joined: other nodes' workers may still use it
        self._bootstrap_store_info = None
        self._shared_tcp_store_server = None
        try:
            return super().next_rendezvous()
        finally:
            del last

    def shutdown(self) -> bool:
        """Close the rendezvous and the client; returns whether the rendezvous could be closed."""
        try:
            return super().shutdown()
        finally:
            self.folder.close()


def make_handler(
    params: RendezvousParameters, connect: Callable[[], EtcdClient], spec: EtcdSpec, limits: RetryLimits
) -> EtcdRendezvousHandler:
    """The handler of a job, made once the cluster has answered. Raises RendezvousConnectionError."""
    try:
        folder = Folder(connect(), TorchrunKeys(spec.prefix, params.run_id), spec.record_ttl_s, limits)
    except StoreError as error:
        raise RendezvousConnectionError(str(error)) from error
    try:
        backend, store = EtcdRendezvousBackend(folder), EtcdAgentStore(folder)
        store.set_timeout(timedelta(seconds=limits.first_s))
        backend.get_state()
        handler: EtcdRendezvousHandler = EtcdRendezvousHandler.from_backend(
            params.run_id,
            store,
            backend,
            params.min_nodes,
            params.max_nodes,
            params.local_addr,
            RendezvousTimeout(
                *(_time(params, f"{what}_timeout") for what in ("join", "last_call", "close", "heartbeat"))
            ),
            keep_alive_interval=params.get_as_int("keep_alive_interval", 5) or 0,
            keep_alive_max_attempt=params.get_as_int("keep_alive_max_attempt", 3) or 0,
        )
    except BaseException:
        folder.close()
        raise
    handler.folder = folder
    return handler


def _time(params: RendezvousParameters, key: str) -> timedelta | None:
    value = params.get_as_int(key)
    return None if value is None else timedelta(seconds=value)
