"""Connections between nodes that may vote for the next host of a c10d store: for votes, and their end is evidence.

    hello     HELLO, nonce, whom it is for, HMAC-SHA256        68 bytes
    answer    THERE, nonce, HMAC-SHA256                        52 bytes
    message   length, text, HMAC-SHA256 over number and text   each way; numbers count from 0

Keys are made of the job's secret and both nonces, so nothing that was sent on one connection is worth anything on
another. A node whose kernel closed such a connection, and refuses new ones, has ended: its agent, and the nursery,
which holds the listening socket as long as a worker may run below it.
"""

from __future__ import annotations

import os
import socket
import threading
from _operator import _compare_digest  # as in channel.py
from collections.abc import Callable
from contextlib import closing, suppress

from ..endpoint import for_resolver, probe_peer
from ..records import Witness
from .channel import MAC, NAME, NONCE, listener, mac, name_of

HELLO, THERE = b"EAl1", b"EAt1"
ANSWER_S = 2.0
"""How long the other node may take to answer a hello, or to take a message."""
AGAIN_S, AGAIN_MOST_S = 0.02, 1.0
"""From one attempt to connect to the next, while a node is not connected; doubles from the first to the most."""
MAX_TEXT = 4096
GOODBYE_S = 1.0
"""How long others get to read what was announced last, and close their connections, once this node says goodbye."""
LINKS = 32
"""Connections of others at a time; more are closed."""
IDLE_S, PROBE_S, PROBES = 5, 2, 3
"""As in `c10d/server.py`: a node without power is not connected for ever."""

Reply = Callable[[str], None]
Heard = Callable[[str, str], None]


class Ended(OSError):
    """The other side's kernel closed the connection."""


class Link:
    """One connection that is open. `send` for any thread, `receive` for one."""

    def __init__(self, connected: socket.socket, key: bytes, *, dialled: bool) -> None:
        self._socket, self._key, self._dialled = connected, key, dialled
        self._lock = threading.Lock()
        self._sent = self._received = 0

    def send(self, text: str) -> None:
        """Raises OSError."""
        body = text.encode("ascii")
        with self._lock:
            seal = self._seal(body, self._sent, self._dialled)
            self._sent += 1
            self._socket.sendall(len(body).to_bytes(2, "big") + body + seal)

    def receive(self) -> str:
        """The next message. Raises Ended, OSError."""
        size = int.from_bytes(read_exactly(self._socket, 2), "big")
        if size > MAX_TEXT:
            raise OSError(f"a message of {size} bytes")
        body, seal = read_exactly(self._socket, size), read_exactly(self._socket, MAC)
        if not _compare_digest(seal, self._seal(body, self._received, not self._dialled)):
            raise OSError("a message by who does not know the secret")
        self._received += 1
        return body.decode("ascii", "replace")

    def _seal(self, body: bytes, number: int, dialled: bool) -> bytes:
        return mac(self._key, bytes((dialled,)) + number.to_bytes(8, "big") + body)


def read_exactly(connected: socket.socket, size: int) -> bytes:
    """Raises Ended if the other side closes the connection first."""
    found = b""
    while len(found) < size:
        try:
            piece = connected.recv(size - len(found))
        except ConnectionResetError as error:
            raise Ended(error.errno, error.strerror) from error
        if not piece:
            raise Ended("closed")
        found += piece
    return found


def dial(secret: bytes, peer: Witness) -> tuple[socket.socket, Link]:
    """Connect to this node. Raises ConnectionRefusedError, OSError."""
    where = for_resolver(peer.addr), peer.port
    connected = socket.create_connection(where, ANSWER_S)  # type: ignore[arg-type]  # which getaddrinfo takes
    try:
        _watch(connected)
        head = HELLO + os.urandom(NONCE) + name_of(peer.node)
        connected.sendall(head + mac(secret, head))
        said = read_exactly(connected, 4 + NONCE + MAC)
        if not _compare_digest(said[-MAC:], mac(secret, head, said[:-MAC])):
            raise OSError("no node of this job")
        connected.settimeout(None)
    except BaseException:
        connected.close()
        raise
    return connected, Link(connected, mac(secret, head, said[:-MAC], b"key"), dialled=True)


def accept(secret: bytes, node: str, connected: socket.socket) -> Link | None:
    """The link that another node has begun; None if that does not know the secret. Raises OSError."""
    connected.settimeout(ANSWER_S)
    head = read_exactly(connected, 4 + NONCE + NAME)
    seal = read_exactly(connected, MAC)
    if not (head.startswith(HELLO) and head.endswith(name_of(node)) and _compare_digest(seal, mac(secret, head))):
        return None
    said = THERE + os.urandom(NONCE)
    connected.sendall(said + mac(secret, head, said))
    _watch(connected)
    connected.settimeout(None)
    return Link(connected, mac(secret, head, said, b"key"), dialled=False)


def _watch(connected: socket.socket) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    probe_peer(connected, IDLE_S, PROBE_S, PROBES)


class Peer:
    """The connection of this node to one other, which is begun again as long as that lives."""

    def __init__(self, secret: bytes, peer: Witness, died: Callable[[str], None], heard: Heard) -> None:
        self._secret, self._peer, self._died, self._heard = secret, peer, died, heard
        self._link: Link | None = None
        self._socket: socket.socket | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="elastic-agent-peer", daemon=True).start()

    def send(self, text: str) -> None:
        """Nothing happens where there is no connection."""
        if (link := self._link) is not None:
            with suppress(OSError):  # the thread that receives finds out
                link.send(text)

    def close(self) -> None:
        self._ended.set()
        if (connected := self._socket) is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        closed, pause_s = False, AGAIN_S
        while not self._ended.is_set():
            try:
                connected, link = dial(self._secret, self._peer)
            except ConnectionRefusedError:
                if closed and not self._ended.is_set():
                    self._died(self._peer.node)
                    return
            except OSError:
                pass  # silence, or a reset of what nobody had accepted, says nothing; the next attempt may
            else:
                closed, pause_s = self._receive(connected, link), AGAIN_S
            self._ended.wait(pause_s)
            pause_s = min(2 * pause_s, AGAIN_MOST_S)

    def _receive(self, connected: socket.socket, link: Link) -> bool:
        """Return once the connection is over: whether the other side's kernel has closed it."""
        with closing(connected):
            self._socket, self._link = connected, link
            if self._ended.is_set():
                return False
            try:
                while True:
                    self._heard(self._peer.node, link.receive())
            except Ended:
                return True
            except OSError:
                return False
            finally:
                self._socket = self._link = None


class Links:
    """This node's connections to others that may vote, and theirs to it."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """Listens from now on; who connects is answered from `open` on."""
        self._warn = warn
        self._secret = b""
        self._peers: dict[str, Peer] = {}
        self._accepted: dict[socket.socket, Link | None] = {}
        """With the link, once who connected has shown that it knows the secret."""
        self._goodbye = ""
        self._lock = threading.Condition()
        self._closed = threading.Event()
        self._listener: socket.socket | None = None
        try:
            self._listener = listener(blocking=True)
        except OSError as error:
            warn(f"this node cannot vote for another host of the store: {error.strerror or error}")

    @property
    def fd(self) -> int:
        """Of the listening socket, which whoever owns the workers holds; -1: there is none."""
        return self._listener.fileno() if self._listener is not None else -1

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1]) if self._listener is not None else 0

    def open(
        self,
        node: str,
        secret: bytes,
        died: Callable[[str], None],
        heard: Callable[[str, str], None],
        asked: Callable[[str, Reply], None],
    ) -> None:
        """Answer from now on. `died` gets nodes that have ended; `heard`: a node, and its answer; `asked`: what another
        node says, and how to answer that."""
        self._secret, self._died, self._heard, self._asked, self._node = secret, died, heard, asked, node
        if self._listener is not None:
            threading.Thread(target=self._accept, name="elastic-agent-witness", daemon=True).start()

    def keep(self, peers: tuple[Witness, ...]) -> None:
        """Be connected to these, and to no others."""
        wanted = {peer.node: peer for peer in peers if peer.port and peer.addr}
        for node in self._peers.keys() - wanted.keys():
            self.drop(node)
        if self._secret:
            for node in wanted.keys() - self._peers.keys():
                self._peers[node] = Peer(self._secret, wanted[node], self._died, self._heard)

    def drop(self, node: str) -> None:
        """Be connected to this one no more. For any thread."""
        if (peer := self._peers.pop(node, None)) is not None:
            peer.close()

    def say_goodbye(self, text: str) -> None:
        """Send this to all that are connected, and to who connects from now on. Return once they have closed their
        connections, or after GOODBYE_S."""
        with self._lock:
            self._goodbye = text
            links = [link for link in self._accepted.values() if link is not None]
        for link in links:
            with suppress(OSError):  # it is gone
                link.send(text)
        with self._lock:
            self._lock.wait_for(lambda: not any(self._accepted.values()), GOODBYE_S)

    def send(self, node: str, text: str) -> None:
        """Nothing happens where there is no connection to this node."""
        if (peer := self._peers.get(node)) is not None:
            peer.send(text)

    def close(self) -> None:
        """Idempotent."""
        self._closed.set()
        self.keep(())
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            for connected in self._accepted:
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        if self._listener is None:
            return
        while not self._closed.is_set():
            try:
                connected, _ = self._listener.accept()
            except OSError:
                self._closed.wait(ANSWER_S)  # no descriptor is left; who connects stays in the kernel's queue
                continue
            with self._lock:
                if self._closed.is_set() or len(self._accepted) >= LINKS:
                    connected.close()
                    continue
                self._accepted[connected] = None
            threading.Thread(target=self._serve, args=(connected,), name="elastic-agent-peer", daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        try:
            link = accept(self._secret, self._node, connected)
            with self._lock:
                self._accepted[connected], goodbye = link, self._goodbye
            if link is not None and goodbye:
                link.send(goodbye)
            while link is not None:
                self._asked(link.receive(), link.send)
        except OSError:
            pass  # it is over
        finally:
            with self._lock:
                self._accepted.pop(connected, None)
                self._lock.notify_all()
            connected.close()
