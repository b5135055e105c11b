"""Serving a TCPStore from this process: the only place of the agent that imports torch."""

from __future__ import annotations

import os
import socket
import threading

from ..endpoint import Address, Endpoint
from ..store import StoreError
from .claim import taken

BACKLOG = 4096
"""Nodes may all come at once; the kernel caps it at net.core.somaxconn."""
START_TIMEOUT_S = 60.0
"""The server's own first connection may meet one reverse look-up of 10 s where its cure does not take."""

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


class TorchServer:
    """A running TCPStore server. Serves from a thread of torch's own until `close`."""

    def __init__(self, store: object, address: Address) -> None:
        self._store: object | None = store
        self.address = address
        """Where this process itself reaches it."""

    def close(self) -> None:
        """Stop serving; clients see the connection closed, all keys are gone, the port is free. Idempotent."""
        self._store = None  # torch stops the server when the last reference goes


def serve(bound: socket.socket, endpoint: Endpoint, *, forced: bool) -> TorchServer | None:
    """Serve on this bound socket, which is taken over. None if another process began to listen there meanwhile.

    Raises StoreError if torch is missing, or, when forced, if the port is taken.
    """
    try:
        _import_torch(endpoint)
        try:
            bound.listen(BACKLOG)  # only now: whoever connects before the server runs would wait in silence
        except OSError as why:
            if forced:
                raise taken(endpoint) from why
            return None
        host, port = bound.getsockname()[:2]
        # An IPv6 socket on the wildcard takes IPv4 too.
        family, host = (socket.AF_INET, "127.0.0.1") if host in _WILDCARDS else (bound.family, host)
        return TorchServer(_start(bound, host, port), (family, (host, port)))
    finally:
        bound.close()


def _import_torch(endpoint: Endpoint) -> None:
    """Import torch with its own remarks on connections below "error" off: what matters, we say in one line."""
    import ctypes

    libc = ctypes.CDLL(None)
    # Read once, when torch is loaded. Set in the C environment only: os.environ, and so the workers', never has it.
    quiet = "TORCH_CPP_LOG_LEVEL" not in os.environ
    if quiet:
        libc.setenv(b"TORCH_CPP_LOG_LEVEL", b"ERROR", 0)
    try:
        import torch.distributed as dist
    except Exception as why:  # whatever a broken installation raises, it is not our mistake
        raise StoreError(
            f"this node hosts the store at {endpoint}, which takes torch, and `import torch` failed ({why}); "
            "install torch here, or name another node as the endpoint"
        ) from why
    finally:
        if quiet:
            libc.unsetenv(b"TORCH_CPP_LOG_LEVEL")
    if not dist.is_available():
        raise StoreError(f"this node hosts the store at {endpoint}, and its torch is built without torch.distributed")


def _start(bound: socket.socket, host: str, port: int) -> object:
    made: list[object] = []
    failed: list[BaseException] = []

    def start() -> None:
        try:
            _forget_name_servers()
            made.append(_make(bound, host, port))
        except BaseException as why:  # noqa: BLE001 - handed to the caller, on its own thread
            failed.append(why)

    # Its own thread, as that thread's resolver is disabled.
    thread = threading.Thread(target=start, name="tcpstore-start", daemon=True)
    thread.start()
    thread.join()
    if failed:
        reason = (str(failed[0]) or type(failed[0]).__name__).splitlines()[0]
        raise StoreError(f"torch could not serve a store on port {port}: {reason}") from failed[0]
    return made[0]


def _make(bound: socket.socket, host: str, port: int) -> object:
    from datetime import timedelta

    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without saying so

    # Before 2.8 torch's server on libuv takes no socket that listens (pytorch pull request 150215); the older one does.
    # Else the variable decides that torch's own rendezvous obeys.
    libuv = torch.__version__ >= "2.8" and os.environ.get("USE_LIBUV", "1") == "1"
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=START_TIMEOUT_S),
        wait_for_workers=False,
        master_listen_fd=os.dup(bound.fileno()),  # torch closes it by number, so it gets one of its own
        use_libuv=libuv,
    )


def _forget_name_servers() -> None:
    """Take this thread's name servers away, and thereby all reverse look-ups from this process's TCPStores.

    torch's server looks up the name of everybody who connects, for its log, on the one thread that serves: with a
    name server that drops packets all nodes stand still for 5 to 10 s at a time. From torch 2.9 on, its first look-up
    that fails switches the others off, process-wide. This thread makes the first connection, so with no name server to
    ask, that look-up fails at once (measured: of 120 connections 2 took 5 s before, none after). The state changed is
    glibc's `struct __res_state` of this thread alone, whose head is `int retrans, retry; unsigned long options;
    int nscount` (resolv.h); other C libraries do not have it, and other threads do not see it.
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
