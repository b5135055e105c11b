"""The TCPStore server in this process: the only module of the agent that imports torch."""

from __future__ import annotations

import gc
import os
import re
import socket
import sys
import threading

from ..endpoint import Address, Endpoint, probe_peer
from ..store import StoreError
from .claim import bind_wildcard, port_taken
from .descriptors import check_for_server
from .turn import Turn, take_turn

BACKLOG = 4096
"""All nodes may connect at once; the kernel limits it to net.core.somaxconn."""
START_TIMEOUT_S = 60.0
"""The server's own first connection may take one reverse look-up of 10 s where `_disable_reverse_lookups` has no
effect."""
PEER_IDLE_S, PEER_PROBE_S, PEER_PROBES = 30, 10, 3
"""A connection whose peer is silent for the first of these is probed by the kernel, and closed when so many probes were
not answered: a host that lost its power must not hold descriptors for ever (tcp(7), SO_KEEPALIVE)."""
TAKES_LISTENER_FROM = (2, 8)
"""torch's libuv server takes a listening socket from this version on (pytorch pull request 150215)."""

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


IMPORT, START = "torch-import", "tcpstore-start"
"""Threads that are within torch for a while."""


def is_within_torch() -> bool:
    """Whether a thread of this process is within torch's import, or starts a server. Python must not be finalized then:
    it ends such a thread in the middle of C++, which aborts the process ("terminate called without an active
    exception", status 134)."""
    return any(thread.name in (IMPORT, START) for thread in threading.enumerate())


class TorchServer:
    """A running TCPStore server, on a thread that torch starts. Runs until `close`."""

    def __init__(self, store: object, address: Address) -> None:
        self._store: object | None = store
        self.address = address
        """The address at which this process connects to it."""

    def close(self) -> None:
        """Stop serving: connections close, all keys are lost, the port is free. Idempotent."""
        self._store = None  # torch stops the server with the last reference


def serve(bound: socket.socket, endpoint: Endpoint, *, forced: bool) -> TorchServer | None:
    """Serve on this bound socket, and close it in any case. None if another process listens on the port by now.

    Raises StoreError if torch cannot be imported or cannot serve, PortTaken instead of None if `forced`, OSError if
    this process has too few descriptors left.
    """
    turn = None
    try:
        turn = Turn(bound) if forced else take_turn(bound)
        if turn is None:
            return None
        _import_torch(endpoint)
        check_for_server()
        host, port = bound.getsockname()[:2]
        # An IPv6 socket on the wildcard address accepts IPv4 too.
        family, host = (socket.AF_INET, "127.0.0.1") if host in _WILDCARDS else (bound.family, host)
        try:
            return TorchServer(_start(bound, host, port, listens=_takes_listener()), (family, (host, port)))
        except OSError as why:
            if forced:
                raise port_taken(endpoint) from why
            return None
    finally:
        bound.close()
        if turn is not None:
            turn.close()


def _import_torch(endpoint: Endpoint) -> None:
    """Import torch with its log level at "error": the agent reports connection problems itself, in one line.

    The hundreds of thousands of objects that torch consists of are no garbage, and are not searched for any, neither
    while they are made nor later: that takes 75 ms of a coordinator's time each time. On a thread of its own, as errors
    that torch keeps from its import hold the frames of whoever called for it, and all that these hold.
    """
    import ctypes

    collects, fresh, failed = gc.isenabled(), "torch" not in sys.modules, list[Exception]()
    gc.disable()
    libc = ctypes.CDLL(None)
    # torch reads it once, at import. Set in the C environment only, so that os.environ and the workers do not have it.
    quiet = "TORCH_CPP_LOG_LEVEL" not in os.environ
    if quiet:
        libc.setenv(b"TORCH_CPP_LOG_LEVEL", b"ERROR", 0)
    thread = threading.Thread(target=_import_distributed, args=(failed,), name=IMPORT, daemon=True)
    try:
        thread.start()
        thread.join()
    finally:
        if quiet:
            libc.unsetenv(b"TORCH_CPP_LOG_LEVEL")
        if fresh:
            gc.freeze()
        if collects:
            gc.enable()
    if failed:
        raise StoreError(
            f"this node hosts the store at {endpoint}, which needs torch, but `import torch` failed ({failed[0]}); "
            "install torch here, or name another node as the endpoint"
        ) from failed[0]
    import torch.distributed as dist

    if not dist.is_available():
        raise StoreError(
            f"this node hosts the store at {endpoint}, but its torch was built without torch.distributed; "
            "install a torch with it here, or name another node as the endpoint"
        )


def _import_distributed(failed: list[Exception]) -> None:
    try:
        import torch.distributed  # noqa: F401 - to be imported
    except Exception as why:  # noqa: BLE001 - a broken installation may raise anything; handed to the caller
        failed.append(why)


def takes_listener(version: str) -> bool:
    """Whether torch's libuv server of this version takes a socket that listens already, as ours does."""
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= TAKES_LISTENER_FROM


def _takes_listener() -> bool:
    import torch

    return takes_listener(torch.__version__)


def _start(bound: socket.socket, host: str, port: int, *, listens: bool) -> object:
    """The server, and its own first connection. Raises OSError if another process has the port, else StoreError."""
    if listens:
        probe_peer(bound, PEER_IDLE_S, PEER_PROBE_S, PEER_PROBES)
        bound.listen(BACKLOG)  # only now: a client that connects before the server runs would get no answer
        return _run(bound, host, port)
    # torch listens on every address of this host, of which `bound` may have one. Another may be that of a connection
    # with this port, or of a listener.
    wide = bind_wildcard(port)
    if not isinstance(wide, socket.socket):
        raise OSError(wide, os.strerror(wide))
    with wide:
        try:
            return _run(None, host, port)
        except StoreError:
            wide.listen()  # fails if another process does
            raise


def _run(listener: socket.socket | None, host: str, port: int) -> object:
    made: list[object] = []
    failed: list[BaseException] = []

    def start() -> None:
        try:
            _disable_reverse_lookups()
            made.append(_make(listener, host, port))
        except BaseException as why:  # noqa: BLE001 - handed to the caller, on its own thread
            failed.append(why)

    # A thread of its own, because its resolver is disabled.
    thread = threading.Thread(target=start, name=START, daemon=True)
    thread.start()
    thread.join()
    if failed:
        reason = (str(failed[0]) or type(failed[0]).__name__).splitlines()[0]
        raise StoreError(
            f"torch could not serve a store on port {port}: {reason}; name another node as the endpoint, or install "
            "another build of torch here"
        ) from failed[0]
    return made[0]


def _make(listener: socket.socket | None, host: str, port: int) -> object:
    """Always torch's libuv server: its older one, which USE_LIBUV=0 chooses and which serves by default before torch
    2.4, reads one request to its end before it looks at another connection. So it stands still, for all nodes, while
    any host on the network has sent one byte and waits."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without saying so

    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=START_TIMEOUT_S),
        wait_for_workers=False,
        # torch closes this descriptor, so it gets a duplicate. Without one it listens on every address of this host.
        master_listen_fd=None if listener is None else os.dup(listener.fileno()),
        use_libuv=True,
    )


def _disable_reverse_lookups() -> None:
    """Remove this thread's name servers, which ends all reverse look-ups by TCPStore servers in this process.

    torch's server looks up the host name of each client, for its log, on the one thread that serves: with a name server
    that drops packets, every node stalls for 5 to 10 s at a time. From torch 2.9 on, the first look-up that fails
    disables all later ones, process-wide. This thread makes the first connection, and without name servers its look-up
    fails at once (measured: of 120 connections 2 took 5 s before, none after). The state changed is glibc's
    `struct __res_state` of this thread only, which begins with `int retrans, retry; unsigned long options; int nscount`
    (resolv.h). Other C libraries do not have it, and other threads do not use it.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    try:
        init, state = libc.__res_init, libc.__res_state
    except AttributeError:  # not glibc
        return
    state.restype = ctypes.c_void_p
    if init() == 0:
        ctypes.c_int.from_address(state() + 8 + ctypes.sizeof(ctypes.c_ulong)).value = 0
