"""Serves the workers' store on a listening socket: one thread, one epoll, no torch."""

from __future__ import annotations

# The C module: nothing that `socket` adds is used, and the process starts while workers wait for it.
import _socket
import errno
import resource
import select

from .requests import Requests
from .table import Client, Table

READ_BYTES = 1 << 16


class Connection(Client):
    """One client's connection."""

    __slots__ = ("blocked", "needed", "received", "socket")

    def __init__(self, connected: _socket.socket) -> None:
        super().__init__(connected.fileno())
        self.socket = connected
        self.received = bytearray()
        """The beginning of a request whose end has not been received."""
        self.needed = 0
        """How long that must become before it is looked at again."""
        self.blocked = False
        """Whether answers wait for room in the socket."""


class Server:
    """Serves one table to all that connect. Ends only with its process."""

    def __init__(self, listener: int) -> None:
        """`listener`: a TCP socket that listens."""
        self.table = Table()
        self.requests = Requests(self.table)
        self.connections: dict[int, Connection] = {}
        self.listener = _socket.socket(fileno=listener)
        self.listener.setblocking(False)
        # Connections inherit both (tcp(7), socket(7)): answers go out at once, and peers that died are noticed.
        self.listener.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self.listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
        self.limit_s: float | None = None
        """How long a turn waits at the longest."""
        self.poll = select.epoll()
        self.poll.register(listener, select.EPOLLIN)

    def run(self) -> None:
        """Serve for ever. Raises OSError where the host allows no more connections."""
        while True:
            self.turn()

    def turn(self, closing: int = -1) -> bool:
        """Wait until something happens and handle it. Whether it happened to the descriptor `closing`."""
        listener = self.listener.fileno()
        connections = self.connections
        for fd, happened in self.poll.poll(self.limit_s):
            connection = connections.get(fd)
            if fd == listener:
                self.accept()
            elif fd == closing:
                return True
            elif connection is None:
                continue  # closed a moment ago, because an answer could not be sent
            elif happened & select.EPOLLOUT:
                self.send(connection)
            else:
                self.receive(connection)
        for client in self.table.woken:
            connection = connections.get(client.fd)
            if connection is not None:
                self.send(connection)
        self.table.woken.clear()
        return False

    def accept(self) -> None:
        """Accept all connections that are pending."""
        while True:
            try:
                fd, _ = self.listener._accept()  # type: ignore[attr-defined]  # what socket.accept calls
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                count = len(self.connections)
                raise OSError(
                    error.errno,
                    f"it has {count} connections, as many as this host lets one process open; raise ulimit -n",
                ) from error
            family, kind = self.listener.family, _socket.SOCK_STREAM
            self.connections[fd] = Connection(_socket.socket(family, kind, 0, fd))
            self.poll.register(fd, select.EPOLLIN)

    def receive(self, connection: Connection) -> None:
        """Read once, carry out the requests that are complete, and send the answers."""
        try:
            data = connection.socket.recv(READ_BYTES, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.forget(connection)
            return
        if connection.received:
            connection.received += data
            if len(connection.received) < connection.needed:
                return
            data = bytes(connection.received)
        try:
            used, connection.needed = self.requests.carry_out(connection, data)
        except ValueError:
            self.forget(connection)  # no client of TCPStore, or one that asks for what has no answer
            return
        connection.received = bytearray(data[used:])
        if connection.answers:
            self.send(connection)

    def send(self, connection: Connection) -> None:
        """Send what the socket has room for; read no more requests until the rest is sent."""
        try:
            sent = connection.socket.send(connection.answers, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.forget(connection)
            return
        del connection.answers[:sent]
        if connection.blocked != bool(connection.answers):
            connection.blocked = not connection.blocked
            self.poll.modify(connection.fd, select.EPOLLOUT if connection.blocked else select.EPOLLIN)

    def forget(self, connection: Connection) -> None:
        """Forget the connection and what it waited for."""
        del self.connections[connection.fd]
        connection.fd = -1
        self.table.cancel(connection)
        connection.socket.close()


def serve(listener: int) -> None:
    """Serve an empty store on this socket, which listens, for as long as the process lives. Raises OSError where the
    host allows no more connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each worker has a connection
    Server(listener).run()
