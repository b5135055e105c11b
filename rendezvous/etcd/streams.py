"""A call with streams in both directions that stays open: what is sent on it, and the answers as they come.

Opening one costs client and server four to five times as much as a request on one that is open.
"""

from __future__ import annotations

import queue
import threading
from typing import Generic

from ..store import StoreError, StoreUnreachable
from .cluster import Answer, Method, Request, Server
from .errors import EtcdClosed, EtcdUnknown
from .retries import Calls


class LongStream(Generic[Request, Answer]):
    """On one server. One thread calls `send` and `receive`; any may call `close`."""

    def __init__(self, calls: Calls, server: Server, method: Method[Request, Answer], what: str) -> None:
        """Raises a kind of StoreUnreachable if the channel is closed. `what`: the stream, for messages."""
        self.server = server
        self._calls = calls
        self._what = what
        self._outbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[Answer | StoreError] = queue.SimpleQueue()
        self._closed = self.ended = False
        """`ended`: no further answer is to be waited for; those that have come can still be received."""
        try:
            self._call = server.stream(method)(iter(self._outbox.get, None), metadata=calls.metadata())
        except ValueError as why:  # raised by gRPC when the channel is closed
            raise calls.error(server, what, why) from None
        calls.register(self._call)
        calls.cluster.add_stream(server, self._call)
        threading.Thread(target=self._run, name="elastic-agent-etcd-stream", daemon=True).start()

    def send(self, request: Request) -> None:
        """Send a request, without waiting."""
        self._outbox.put(request)

    def receive(self, timeout_s: float, block: bool = True) -> Answer:
        """The next answer. Raises queue.Empty when `timeout_s` passed first, or at once if not to `block`; behind the
        last answer the reason of the end: EtcdClosed, or what `Calls.error` makes of it."""
        answer = self._inbox.get(block, timeout_s)
        if isinstance(answer, StoreError):
            self._inbox.put(answer)
            raise answer
        return answer

    def close(self) -> None:
        """End it; a blocked `receive` raises EtcdClosed. Idempotent."""
        self._closed = self.ended = True
        self._call.cancel()  # ends the receiving thread, which releases the rest

    def _run(self) -> None:
        import grpc

        end: StoreError = EtcdUnknown(f"etcd at {self.server}, {self._what}: the server ended it")
        try:
            for answer in self._call:
                self._inbox.put(answer)
        except grpc.RpcError as why:
            end = self._calls.error(self.server, self._what, why)
            if self._closed and isinstance(end, StoreUnreachable):
                end = EtcdClosed(f"etcd at {self.server}, {self._what}: this process closed it")
        finally:
            self.ended = True
            self._outbox.put(None)
            self._calls.cluster.remove_stream(self.server, self._call)
            self._calls.finish(self._call)
            self._inbox.put(end)
