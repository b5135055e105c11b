"""What the workers' store holds: values, queues, and which clients wait for which keys. No input and output."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

STOP_WAITING, WAIT_CANCELED = b"\0", b"\1"
"""Answers to WAIT, BARRIER and CANCEL_WAIT (torch 2.13, `TCPStoreBackend.hpp`, `enum class WaitResponseType`)."""


class Client:
    """What the store knows of one connection."""

    __slots__ = ("answers", "awaited", "fd", "valid")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        """Its descriptor; -1 once it is closed."""
        self.answers = bytearray()
        """Bytes for the client that have not been sent."""
        self.awaited: set[bytes] = set()
        """Keys that its wait still needs; empty if it does not wait."""
        self.valid = False
        """Whether it has opened the protocol."""


class Table:
    """Keys and values of one round, with the meaning that torch's server gives each request (torch 2.13,
    `TCPStoreLibUvBackend.cpp`)."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.queues: dict[bytes, deque[bytes]] = {}
        self.waiting: dict[bytes, dict[Client, None]] = {}
        """Clients that wait for a key, in the order of their requests."""
        self.woken: list[Client] = []
        """Clients whose wait has ended, and that have an answer to be sent. The caller clears it."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key, and end the waits for it."""
        self.values[key] = value
        if key in self.waiting:
            self.wake(key)

    def compare_set(self, key: bytes, expected: bytes, value: bytes) -> bytes:
        """Set a key if it holds `expected` or, with `expected` empty, if it does not exist. Returns the value
        afterwards, or `expected` if the key does not exist."""
        held = self.values.get(key)
        if held is None and expected:
            return expected
        if held is None or held == expected:
            self.put(key, value)
            return value
        return held

    def add(self, key: bytes, amount: int) -> int:
        """Add to a counter kept as decimal text. Raises ValueError if the key holds no number, or the sum takes more
        than 64 bits."""
        total = int(self.values.get(key, b"0")) + amount
        if not -(2**63) <= total < 2**63:
            raise ValueError(f"the sum {total} takes more than 64 bits")
        self.put(key, b"%d" % total)
        return total

    def append(self, key: bytes, value: bytes) -> None:
        """Append to a key's value; one that does not exist is empty."""
        self.put(key, self.values.get(key, b"") + value)

    def delete(self, key: bytes) -> int:
        """Delete a key. Returns 1 if it existed, else 0."""
        return 0 if self.values.pop(key, None) is None else 1

    def has(self, key: bytes) -> bool:
        """Whether a wait for this key ends at once: it has a value, or is a queue that is not empty."""
        return key in self.values or bool(self.queues.get(key))

    def push(self, key: bytes, value: bytes) -> None:
        """Add to the end of a queue, and end the oldest wait for it."""
        self.queues.setdefault(key, deque()).append(value)
        if key in self.waiting:
            self._satisfy(key, next(iter(self.waiting[key])))

    def pop(self, key: bytes) -> tuple[int, bytes]:
        """The length of a queue, and its first entry, which is taken out; 0 and nothing if it is empty."""
        queue = self.queues.get(key)
        if not queue:
            return 0, b""
        size, first = len(queue), queue.popleft()
        if not queue:
            del self.queues[key]
        return size, first

    # -- waits ---------------------------------------------------------------------------------------------------
    def wait(self, client: Client, keys: Sequence[bytes]) -> None:
        """Answer the client when all keys exist, now or later."""
        missing = {key for key in keys if not self.has(key)}
        if missing:
            self._await(client, missing)
        else:
            client.answers += STOP_WAITING

    def barrier(self, client: Client, key: bytes, size: int) -> None:
        """Count the client, and answer all that wait for the key once `size` have been counted. Raises ValueError if
        the key holds no number."""
        count = int(self.values.get(key, b"0")) + 1
        self.values[key] = b"%d" % count
        if count < size:
            self._await(client, {key})
            return
        self.wake(key)
        client.answers += STOP_WAITING

    def wake(self, key: bytes) -> None:
        """The key has a value: end the waits that lacked only this."""
        for client in list(self.waiting.get(key, ())):
            self._satisfy(key, client)

    def cancel(self, client: Client) -> None:
        """End the client's wait without an answer."""
        for key in client.awaited:
            self._leave(key, client)
        client.awaited = set()

    def _await(self, client: Client, keys: set[bytes]) -> None:
        client.awaited = keys
        for key in keys:
            self.waiting.setdefault(key, {})[client] = None

    def _satisfy(self, key: bytes, client: Client) -> None:
        self._leave(key, client)
        client.awaited.discard(key)
        if not client.awaited:
            client.answers += STOP_WAITING
            self.woken.append(client)

    def _leave(self, key: bytes, client: Client) -> None:
        waiting = self.waiting[key]
        del waiting[client]
        if not waiting:
            del self.waiting[key]
