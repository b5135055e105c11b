"""How an agent asks another whether workers of a round may run on: TCP, answered to who knows the job's secret.

    question  MAGIC, round, nonce, whom it is for, HMAC-SHA256    76 bytes
    answer    MAGIC, yes or no, HMAC-SHA256 over both             37 bytes

Nothing else is read or written, and a connection lasts `LASTS_S` at most. Sent while the store does not answer, so
nothing here needs it. The keys are in the job's record, which who reads the store can read.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from _operator import _compare_digest  # hmac, which has it too, loads OpenSSL
from collections.abc import Callable, Iterable
from contextlib import suppress

from ..codec.digest import sha256
from ..endpoint import Endpoint, bound_anywhere, resolve
from ..records import Witness
from ..store import StoreUnreachable

ASKS, SAYS = b"EAq1", b"EAa1"
NONCE, NAME, MAC, BLOCK = 16, 16, 32, 64
NUMBER_AT, NONCE_AT, NAME_AT, MAC_AT = 4, 12, 28, 44
QUESTION, ANSWER = MAC_AT + MAC, 4 + 1 + MAC
CONNECTIONS = 32
"""At a time; the oldest is closed for a new one."""
LASTS_S = 2.0
NEVER = float("inf")


def mac(secret: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104) with a secret of at most `BLOCK` bytes."""
    key = secret.ljust(BLOCK, b"\0")
    inner = sha256(bytes(byte ^ 0x36 for byte in key) + b"".join(parts)).digest()
    return sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()


def question(secret: bytes, number: int, node: str) -> bytes:
    """Asks this node about this round."""
    head = ASKS + number.to_bytes(8, "big") + os.urandom(NONCE) + name_of(node)
    return head + mac(secret, head)


def read_question(secret: bytes, asked: bytes, node: str) -> int | None:
    """The round that this node is asked about; None: it is no question to it by who knows the secret."""
    right = len(asked) == QUESTION and asked[NAME_AT:MAC_AT] == name_of(node) and asked.startswith(ASKS)
    if not (right and _compare_digest(asked[MAC_AT:], mac(secret, asked[:MAC_AT]))):
        return None
    return int.from_bytes(asked[NUMBER_AT:NONCE_AT], "big")


def answer(secret: bytes, asked: bytes, yes: bool) -> bytes:
    """To this question."""
    head = SAYS + bytes((yes,))
    return head + mac(secret, asked, head)


def says_yes(secret: bytes, asked: bytes, said: bytes) -> bool:
    """Whether this is the answer yes to this question."""
    return len(said) == ANSWER and bool(_compare_digest(said, answer(secret, asked, True)))


def name_of(node: str) -> bytes:
    """For whom something is."""
    return sha256(node.encode("utf-8", "surrogateescape")).digest()[:NAME]


class TcpChannel:
    """As `fencing.Channel`. One thread answers; it waits in poll(2) until somebody asks."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._secret = b""
        self._found: dict[str, str] = {}
        """Addresses of witnesses, by what they publish."""
        self._answering: Answering | None = None

    def open(self, node: str, secret: bytes, permits: Callable[[int], bool]) -> int:
        self._secret = secret
        try:
            self._answering = Answering(node, secret, permits)
        except OSError as error:
            why = f"this node cannot answer other nodes that ask while the store is away ({error.strerror or error})"
            self._warn(f"{why}, so an outage of the store may stop the workers of its rounds")
            return 0
        return self._answering.port

    def close(self) -> None:
        if self._answering is not None:
            self._answering.close()

    def prepare(self, witnesses: tuple[Witness, ...]) -> None:
        """Resolve names while that is likely to work."""
        for addr in {witness.addr for witness in witnesses} - self._found.keys():
            with suppress(StoreUnreachable):  # as good as no answer; the next time may find it
                self._found[addr] = resolve(Endpoint(addr, 0))[0][1][0]

    def ask(self, number: int, witnesses: tuple[Witness, ...], timeout_s: float) -> bool:
        self.prepare(witnesses)
        ends_s = time.monotonic() + timeout_s
        asking = [_Asking(self._secret, number, witness, self._found.get(witness.addr, "")) for witness in witnesses]
        try:
            return _all_say_yes(asking, ends_s)
        finally:
            for each in asking:
                each.close()


class _Asking:
    """One question on its way."""

    def __init__(self, secret: bytes, number: int, witness: Witness, addr: str) -> None:
        self._secret = secret
        self._asked = question(secret, number, witness.node)
        self._said = b""
        self.failed = not (addr and witness.port)
        self.yes = self._sent = False
        self.link = socket.socket(socket.AF_INET6 if ":" in addr else socket.AF_INET, socket.SOCK_STREAM)
        self.link.setblocking(False)
        if not self.failed:
            self.failed = self.link.connect_ex((addr, witness.port)) not in (0, 115)  # EINPROGRESS

    @property
    def waits_for(self) -> int:
        return select.POLLIN if self._sent else select.POLLOUT

    def go_on(self) -> None:
        """The socket is ready."""
        try:
            if not self._sent:
                self._sent = self.link.send(self._asked) == QUESTION
                self.failed = not self._sent
                return
            piece = self.link.recv(ANSWER)
        except OSError:
            self.failed = True
            return
        self._said += piece
        if len(self._said) >= ANSWER or not piece:
            self.yes = says_yes(self._secret, self._asked, self._said)
            self.failed = not self.yes

    def close(self) -> None:
        self.link.close()


def _all_say_yes(asking: list[_Asking], ends_s: float) -> bool:
    while not any(each.failed for each in asking):
        waiting = {each.link.fileno(): each for each in asking if not each.yes}
        left_s = ends_s - time.monotonic()
        if not waiting or left_s <= 0:
            return not waiting
        poll = select.poll()
        for fd, each in waiting.items():
            poll.register(fd, each.waits_for)
        for fd, _ in poll.poll(left_s * 1000):
            waiting[fd].go_on()
    return False


class Answering:
    """The port of this node, and the thread that answers there."""

    def __init__(self, node: str, secret: bytes, permits: Callable[[int], bool]) -> None:
        """Raises OSError."""
        self._node, self._secret, self._permits = node, secret, permits
        self._listener = listener()
        self.port = int(self._listener.getsockname()[1])
        self._asleep, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._listens_s = NEVER
        """When to accept connections again, if this host refused one."""
        self._open: dict[int, tuple[socket.socket, float, bytearray]] = {}
        """Connections, the oldest first: when each ends, and what it has sent."""
        threading.Thread(target=self._run, name="elastic-agent-witness", daemon=True).start()

    def close(self) -> None:
        """Let the thread exit. Idempotent."""
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._asleep, select.POLLIN)
        while True:
            happened = poll.poll(self._next_ms())
            for fd, _ in happened:
                if fd == self._asleep:
                    self._end()
                    return
                if fd == self._listener.fileno():
                    self._accept(poll)
                elif fd in self._open:
                    self._receive(poll, fd)
            now = time.monotonic()
            if now >= self._listens_s:
                self._listens_s = NEVER
                poll.register(self._listener, select.POLLIN)
            self._drop(poll, [fd for fd, (_, ends_s, _) in self._open.items() if now >= ends_s])

    def _next_ms(self) -> float | None:
        first_s = min((ends_s for _, ends_s, _ in self._open.values()), default=NEVER)
        first_s = min(first_s, self._listens_s)
        return None if first_s == NEVER else max(0.0, first_s - time.monotonic()) * 1000 + 1

    def _accept(self, poll: select.poll) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            poll.unregister(self._listener)  # no descriptor is left; who asks stays in the kernel's queue
            self._listens_s = time.monotonic() + LASTS_S / CONNECTIONS
            return
        link.setblocking(False)
        self._drop(poll, list(self._open)[: len(self._open) - CONNECTIONS + 1])
        self._open[link.fileno()] = link, time.monotonic() + LASTS_S, bytearray()
        poll.register(link, select.POLLIN)

    def _receive(self, poll: select.poll, fd: int) -> None:
        link, _, received = self._open[fd]
        try:
            piece = link.recv(QUESTION - len(received))
            received += piece
            if piece and len(received) < QUESTION:
                return
            number = read_question(self._secret, bytes(received), self._node)
            if number is not None:
                link.send(answer(self._secret, bytes(received), self._permits(number)))
        except OSError:
            pass  # who asked is gone
        self._drop(poll, [fd])

    def _drop(self, poll: select.poll, fds: Iterable[int]) -> None:
        for fd in fds:
            poll.unregister(fd)
            self._open.pop(fd)[0].close()

    def _end(self) -> None:
        for link, _, _ in self._open.values():
            link.close()
        self._listener.close()
        os.close(self._asleep)


def listener(*, blocking: bool = False) -> socket.socket:
    """On all addresses of this host, of both families where it has both. Raises OSError."""
    made = bound_anywhere()
    made.listen(CONNECTIONS)
    made.setblocking(blocking)
    return made
