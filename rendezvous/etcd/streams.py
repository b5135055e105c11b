"""A call with streams in both directions that stays open: what is sent on it, and the answers as they come.

Opening one costs client and server four to five times as much as a request on one that is open.
"""

from __future__ import annotations

import queue
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, cast

from ..store import StoreError, StoreUnreachable
from .cluster import Answer, Method, Request, Server, call_soon, run
from .errors import EtcdClosed, EtcdUnknown
from .retries import Calls

if TYPE_CHECKING:
    import asyncio

    import grpc


class LongStream(Generic[Request, Answer]):
    """On one server. One thread calls `send` and `receive`; any may call `close`."""

    def __init__(self, calls: Calls, server: Server, method: Method[Request, Answer], what: str) -> None:
        """`what`: the stream, for messages."""
        import asyncio

        self.server = server
        self._calls = calls
        self._method = method
        self._what = what
        self._outbox: asyncio.Queue[Request] = asyncio.Queue()
        self._inbox: queue.SimpleQueue[Answer | StoreError] = queue.SimpleQueue()
        self._closed = self.ended = False
        """`ended`: no further answer is to be waited for; those that have come can still be received."""
        self._call = run(self._exchange())
        calls.register(self._call)
        calls.cluster.add_stream(server, self._call)
        self._call.add_done_callback(self._end)

    def send(self, request: Request) -> None:
        """Send a request, without waiting."""
        call_soon(self._outbox.put_nowait, request)

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
        self._call.cancel()

    async def _exchange(self) -> StoreError:
        """Returns why it ended. An exception would keep gRPC's call, and so its connection, for as long as this."""
        import asyncio

        import grpc

        try:
            call = self.server.stream(self._method)(metadata=self._calls.metadata())
        except grpc.aio.UsageError as why:
            return self._calls.error(self.server, self._what, why)
        sender = asyncio.create_task(self._send_all(call))
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                self._inbox.put(cast("Answer", answer))
        except grpc.RpcError as why:
            return self._calls.error(self.server, self._what, why)
        finally:
            sender.cancel()
            call.cancel()
        return EtcdUnknown(f"etcd at {self.server}, {self._what}: the server ended it")

    async def _send_all(self, call: grpc.aio.StreamStreamCall[Request, Answer]) -> None:
        import asyncio

        import grpc

        with suppress(grpc.RpcError, asyncio.InvalidStateError):  # of a call that has ended; who receives finds why
            while True:
                await call.write(await self._outbox.get())

    def _end(self, call: Future[StoreError]) -> None:
        self.ended = True
        self._calls.cluster.remove_stream(self.server, call)
        self._calls.finish(call)
        try:
            end = call.result()
        except CancelledError as why:
            end = self._calls.error(self.server, self._what, why)
        except StoreError as why:
            end = why
        if self._closed and isinstance(end, StoreUnreachable):
            end = EtcdClosed(f"etcd at {self.server}, {self._what}: this process closed it")
        self._inbox.put(end)
