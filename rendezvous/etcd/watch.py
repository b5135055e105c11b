"""Watching keys of etcd: every change from a revision on, in order, each once.

A watch lives on one server. When it ends, for whatever reason, the reader learns why by an exception, and takes up
again from `next_revision` at whichever server is in use then; so nothing is missed and nothing comes twice. Only where
the servers have compacted that revision away (EtcdCompacted) must it read anew.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from ...proto import etcd_pb2 as pb
from ..store import StoreError, StoreUnreachable
from . import ops
from .cluster import Method, Server
from .errors import EtcdClosed, EtcdCompacted, EtcdPermissionDenied, EtcdTokenRefused, EtcdWatchLost, error_of
from .retries import Calls

WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse.FromString, reads=True, streams=True)


class Watch:
    """Changes of one key or prefix. One thread waits; `close` may come from any."""

    def __init__(self, calls: Calls, server: Server, request: pb.WatchRequest, asked: str) -> None:
        """Made by `open_watch`."""
        self._calls = calls
        self._server = server
        self._asked = asked
        self._held = threading.Event()
        self._inbox: queue.SimpleQueue[pb.WatchResponse | StoreError] = queue.SimpleQueue()
        self._end: StoreError | None = None
        self._closed = False
        self.next_revision = request.create_request.start_revision
        """Changes before this one have been returned by `wait`."""
        self._call = server.stream(WATCH)(self._requests(request), metadata=calls.metadata())
        calls.begun(self._call)
        calls.cluster.hold(server, self._call)
        threading.Thread(target=self._receive, name="elastic-agent-etcd-watch", daemon=True).start()

    def wait(self, timeout_s: float) -> tuple[ops.Change, ...]:
        """All changes since the last call, in order; blocks until there is one. Empty when `timeout_s` passed first.

        Raises EtcdCompacted, EtcdWatchLost, EtcdRefused (the permission was taken away) or EtcdClosed, then and at
        every later call.
        """
        changes: list[ops.Change] = []
        while self._end is None:
            try:
                word = self._inbox.get(not changes, timeout_s)
            except queue.Empty:
                return tuple(changes)
            try:
                changes += self._take_in(word)
            except StoreError as end:
                self._end = end
                self.close()
        if changes:
            return tuple(changes)
        raise self._end

    def close(self) -> None:
        """End it, and a `wait` that blocks, with EtcdClosed. Idempotent."""
        self._closed = True
        self._call.cancel()  # so the receiver ends, which frees all else

    def created(self, timeout_s: float) -> None:
        """Wait until the server watches. Raises as `wait`, also EtcdWatchLost when `timeout_s` has passed."""
        try:
            word = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise EtcdWatchLost(f"etcd at {self._server}, {self._asked}: no answer for {timeout_s:g} s") from None
        self._take_in(word)

    def _take_in(self, word: pb.WatchResponse | StoreError) -> tuple[ops.Change, ...]:
        if isinstance(word, StoreError):
            raise word
        self._calls.cluster.take_in(self._server, word.header, 0, settles=False)
        if word.canceled:
            raise self._cancelled(word)
        if not word.created or not self.next_revision:
            self.next_revision = max(self.next_revision, word.header.revision + 1)
        return tuple(ops.change_of(event) for event in word.events)

    def _cancelled(self, word: pb.WatchResponse) -> StoreError:
        begin = f"etcd at {self._server}, {self._asked}:"
        if word.compact_revision:
            return EtcdCompacted(
                f"{begin} revision {self.next_revision} has been compacted away (kept: {word.compact_revision} on); "
                "read anew, and watch from there",
                word.compact_revision,
            )
        error = error_of(str(self._server), self._asked, "UNKNOWN", word.cancel_reason)
        if isinstance(error, StoreUnreachable):
            return EtcdWatchLost(f"{begin} the server cancelled it ({word.cancel_reason or 'no reason given'})")
        return error

    def _requests(self, request: pb.WatchRequest) -> Iterator[pb.WatchRequest]:
        yield request
        self._held.wait()

    def _receive(self) -> None:
        import grpc

        end: StoreError = EtcdWatchLost(f"etcd at {self._server}, {self._asked}: the server ended it")
        try:
            for response in self._call:
                self._inbox.put(response)
        except grpc.RpcError as why:
            end = self._ended(why)
        finally:
            self._held.set()
            self._calls.cluster.drop(self._server, self._call)
            self._calls.ended(self._call)
            self._inbox.put(end)

    def _ended(self, why: Exception) -> StoreError:
        if self._closed:
            return EtcdClosed(f"etcd at {self._server}, {self._asked}: this watch was closed here")
        error = self._calls.error(self._server, self._asked, why)
        if isinstance(error, StoreUnreachable) and not isinstance(error, EtcdClosed):
            return EtcdWatchLost(str(error))
        return error


def open_watch(calls: Calls, key: bytes, prefix: bool, start_revision: int) -> Watch:
    """A watch that a server has acknowledged. Raises as `Calls.ask`."""
    asked = f"watch of {key!r}"
    request = pb.WatchRequest(
        create_request=pb.WatchCreateRequest(
            key=ops.start(key, prefix),
            range_end=ops.range_end(key, prefix),
            start_revision=start_revision,
            progress_notify=True,  # so that the revision of a watch in which nothing happens is not compacted away
        )
    )

    doubted: list[str | None] = []

    def attempt(server: Server, timeout_s: float) -> Watch:
        token = calls.cluster.token
        watch = Watch(calls, server, request, asked)
        try:
            watch.created(timeout_s)
        except EtcdPermissionDenied as error:
            watch.close()
            if not token or doubted:
                raise
            doubted.append(token)  # etcd 3.5 says so of a token that it has forgotten, too
            raise EtcdTokenRefused(str(error)) from error
        except StoreError:
            watch.close()
            raise
        return watch

    return calls.rotate(attempt, asked)
