"""Watches on keys of etcd: every change from a revision on, in order, each once.

A watch exists on one server. When it ends, `wait` raises the reason, and the reader watches again from `next_revision`,
on the server in use by then: no change is missed, none is delivered twice. Only if the servers have compacted that
revision (EtcdCompacted) must the reader read the keys anew.
"""

from __future__ import annotations

import queue
import time

from ...proto import etcd_pb2 as pb
from ..store import StoreError, StoreUnreachable
from . import ops
from .cluster import Method, Server
from .errors import EtcdClosed, EtcdCompacted, EtcdPermissionDenied, EtcdTokenRefused, EtcdWatchLost, error_of
from .retries import Calls
from .streams import LongStream

WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse.FromString, read_only=True)


class Watch:
    """The changes of one key or prefix. One thread calls `wait`; any may call `close`."""

    def __init__(self, calls: Calls, server: Server, request: pb.WatchRequest, what: str) -> None:
        """Use `open_watch`."""
        self._calls = calls
        self._server = server
        self._what = what
        self._end: StoreError | None = None
        self.next_revision = request.create_request.start_revision
        """All changes before this revision have been returned by `wait`."""
        self._stream = LongStream(calls, server, WATCH, what)
        self._stream.send(request)

    def wait(self, timeout_s: float) -> tuple[ops.Change, ...]:
        """Block until there is a change; returns all since the last call, in order. Empty if `timeout_s` passed first.

        Raises EtcdCompacted, EtcdWatchLost, EtcdRefused (the permission was revoked) or EtcdClosed, then and at every
        later call.
        """
        changes: list[ops.Change] = []
        deadline = time.monotonic() + timeout_s
        while self._end is None:
            left_s = max(0.0, deadline - time.monotonic())  # servers also send responses without a change
            try:
                changes += self._changes_in(self._stream.receive(left_s, block=not changes))
            except queue.Empty:
                return tuple(changes)
            except StoreError as end:
                self._end = _as_end(end)
                self.close()
        if changes:
            return tuple(changes)
        raise self._end

    def close(self) -> None:
        """End the watch; a blocked `wait` raises EtcdClosed. Idempotent."""
        self._stream.close()

    def wait_created(self, timeout_s: float) -> None:
        """Block until the server has created the watch. Raises as `wait`, and EtcdWatchLost after `timeout_s`."""
        try:
            self._changes_in(self._stream.receive(timeout_s))
        except queue.Empty:
            raise EtcdWatchLost(f"etcd at {self._server}, {self._what}: no answer for {timeout_s:.2g} s") from None
        except StoreUnreachable as end:
            raise _as_end(end) from None

    def _changes_in(self, response: pb.WatchResponse) -> tuple[ops.Change, ...]:
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


def _as_end(error: StoreError) -> StoreError:
    """Why a watch ended."""
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
