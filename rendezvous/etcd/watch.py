"""Watches on keys of etcd: every change from a revision on, in order, each once.

A watch exists on one server. When it ends, `wait` raises the reason, and the reader watches again from `next_revision`,
on the server in use by then: no change is missed, none is delivered twice. Only if the servers have compacted that
revision (EtcdCompacted) must the reader read the keys anew.
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

WATCH = Method(
    "/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse.FromString, read_only=True, streaming=True
)


class Watch:
    """The changes of one key or prefix. One thread calls `wait`; any may call `close`."""

    def __init__(self, calls: Calls, server: Server, request: pb.WatchRequest, what: str) -> None:
        """Use `open_watch`."""
        self._calls = calls
        self._server = server
        self._what = what
        self._stream_ended = threading.Event()
        self._inbox: queue.SimpleQueue[pb.WatchResponse | StoreError] = queue.SimpleQueue()
        self._end: StoreError | None = None
        self._closed = False
        self.next_revision = request.create_request.start_revision
        """All changes before this revision have been returned by `wait`."""
        try:
            self._call = server.stream(WATCH)(self._requests(request), metadata=calls.metadata())
        except ValueError as why:  # raised by gRPC when the channel is closed
            raise calls.error(server, what, why) from None
        calls.register(self._call)
        calls.cluster.add_stream(server, self._call)
        threading.Thread(target=self._receive, name="elastic-agent-etcd-watch", daemon=True).start()

    def wait(self, timeout_s: float) -> tuple[ops.Change, ...]:
        """Block until there is a change; returns all since the last call, in order. Empty if `timeout_s` passed first.

        Raises EtcdCompacted, EtcdWatchLost, EtcdRefused (the permission was revoked) or EtcdClosed, then and at every
        later call.
        """
        changes: list[ops.Change] = []
        while self._end is None:
            try:
                response = self._inbox.get(not changes, timeout_s)
            except queue.Empty:
                return tuple(changes)
            try:
                changes += self._changes_in(response)
            except StoreError as end:
                self._end = end
                self.close()
        if changes:
            return tuple(changes)
        raise self._end

    def close(self) -> None:
        """End the watch; a blocked `wait` raises EtcdClosed. Idempotent."""
        self._closed = True
        self._call.cancel()  # ends the receiving thread, which releases the rest

    def wait_created(self, timeout_s: float) -> None:
        """Block until the server has created the watch. Raises as `wait`, and EtcdWatchLost after `timeout_s`."""
        try:
            response = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise EtcdWatchLost(f"etcd at {self._server}, {self._what}: no answer for {timeout_s:g} s") from None
        self._changes_in(response)

    def _changes_in(self, response: pb.WatchResponse | StoreError) -> tuple[ops.Change, ...]:
        if isinstance(response, StoreError):
            raise response
        self._calls.cluster.check_header(self._server, response.header, 0, linearizable=False)
        if response.canceled:
            raise self._cancelled(response)
        if not response.created or not self.next_revision:
            self.next_revision = max(self.next_revision, response.header.revision + 1)
        return tuple(ops.change_of(event) for event in response.events)

    def _cancelled(self, response: pb.WatchResponse) -> StoreError:
        begin = f"etcd at {self._server}, {self._what}:"
        if response.compact_revision:
            return EtcdCompacted(
                f"{begin} revision {self.next_revision} has been compacted (kept: {response.compact_revision} on); "
                "read anew, and watch from there",
                response.compact_revision,
            )
        error = error_of(str(self._server), self._what, "UNKNOWN", response.cancel_reason)
        if isinstance(error, StoreUnreachable):
            return EtcdWatchLost(f"{begin} the server cancelled it ({response.cancel_reason or 'no reason given'})")
        return error

    def _requests(self, request: pb.WatchRequest) -> Iterator[pb.WatchRequest]:
        yield request
        self._stream_ended.wait()

    def _receive(self) -> None:
        import grpc

        end: StoreError = EtcdWatchLost(f"etcd at {self._server}, {self._what}: the server ended it")
        try:
            for response in self._call:
                self._inbox.put(response)
        except grpc.RpcError as why:
            end = self._ended(why)
        finally:
            self._stream_ended.set()
            self._calls.cluster.remove_stream(self._server, self._call)
            self._calls.finish(self._call)
            self._inbox.put(end)

    def _ended(self, why: Exception) -> StoreError:
        if self._closed:
            return EtcdClosed(f"etcd at {self._server}, {self._what}: this process closed the watch")
        error = self._calls.error(self._server, self._what, why)
        if isinstance(error, StoreUnreachable) and not isinstance(error, EtcdClosed):
            return EtcdWatchLost(str(error))
        return error


def open_watch(calls: Calls, key: bytes, prefix: bool, start_revision: int) -> Watch:
    """A watch that a server has created. Raises as `Calls.call`."""
    what = f"watch of {key!r}"
    request = pb.WatchRequest(
        create_request=pb.WatchCreateRequest(
            key=ops.range_start(key, prefix),
            range_end=ops.range_end(key, prefix),
            start_revision=start_revision,
            progress_notify=True,  # advances `next_revision` while nothing changes, so it is not compacted
        )
    )

    denied_tokens: list[str | None] = []

    def attempt(server: Server, timeout_s: float) -> Watch:
        token = calls.cluster.token.value
        watch = Watch(calls, server, request, what)
        try:
            watch.wait_created(timeout_s)
        except EtcdPermissionDenied as error:
            watch.close()
            if not token or denied_tokens:
                raise
            denied_tokens.append(token)  # etcd 3.5 reports an expired token as permission denied, too
            raise EtcdTokenRefused(str(error)) from error
        except StoreError:
            watch.close()
            raise
        return watch

    return calls.retry(attempt, what)
