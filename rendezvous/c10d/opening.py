"""Opens a job's store at an endpoint: served by this process if it can bind that, else by another one, which is waited
for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from ...proto.frozen import dataclass
from ..endpoint import Endpoint, parse_endpoint
from ..store import Join, StoreForeign, StoreUnreachable
from .claim import Claim, PortTaken, claim, gave_up, several_hosts, taken_here
from .client import HandshakeTimeout, connect, connect_any
from .keys import SERVED, Keys, create_keys, mark_served, verify
from .server import TorchServer, serve
from .store import CALL_TIMEOUT_S, C10dStore

ATTEMPT_S = 5.0
"""How long one attempt to connect may take; more than `client.HANDSHAKE_S`."""
RETRY_FIRST_S = 0.05
RETRY_MOST_S = 0.5
"""Pause between attempts to connect; grows by half each time, from the first to the most."""
FREE_PORTS = 8
"""How many ports of the kernel's choice are tried where the endpoint has port 0."""


@dataclass(frozen=True, slots=True)
class Hosting:
    """What the process that serves a store needs beside its endpoint."""

    shared: bool = False
    """Nodes on other hosts may join: a loopback endpoint is served on all addresses of this host."""
    warn: Callable[[str], None] = lambda _: None
    """Called with lines about what endangers the server."""


DEFAULT_HOSTING = Hosting()
Reach = Callable[[Endpoint, str, float, float, Join | None], C10dStore]
"""As `_reach`."""


def open_c10d(
    endpoint: str,
    run_id: str,
    *,
    is_host: bool | None = None,
    connect_timeout_s: float = 60.0,
    call_timeout_s: float = CALL_TIMEOUT_S,
    on_wait: Callable[[str], None] | None = None,
    cancelled: threading.Event | None = None,
    join: Join | None = None,
    hosting: Hosting = DEFAULT_HOSTING,
    reach: Reach | None = None,
) -> C10dStore:
    """The store of job `run_id` at `endpoint` (HOST:PORT; port 29400 if none), hosted here if HOST is this node.

    is_host: True hosts whatever HOST resolves to, False never hosts, None hosts if the endpoint can be bound.
    connect_timeout_s: how long to wait for another node to serve the store. on_wait: called once, with one line, when
    the first attempt has failed. cancelled: ends the wait, with StoreUnreachable. join: called with the store, on the
    host before others are let in; its errors end the opening, but for StoreUnreachable. hosting: what matters only if
    this process serves. reach: makes one attempt to reach a store that another serves. Raises ValueError for a wrong
    endpoint; StoreUnreachable if the store was not served in time; StoreForeign if the server is not a TCPStore, or
    serves no job or another one; StoreError if it cannot be hosted here as asked.
    """
    where, reach = parse_endpoint(endpoint), reach or _reach
    stop, pause_s, deadline = cancelled or threading.Event(), RETRY_FIRST_S, time.monotonic() + connect_timeout_s
    while True:
        try:
            return _attempt(where, run_id, is_host, deadline - time.monotonic(), call_timeout_s, join, hosting, reach)
        except PortTaken:
            # If another agent of this run id has it, an error of `join` says more than the port.
            with suppress(StoreForeign, StoreUnreachable):
                reach(where, run_id, ATTEMPT_S, call_timeout_s, join).close()
            raise
        except HandshakeTimeout as why:
            raise StoreForeign(str(why)) from why
        except StoreUnreachable as why:
            reason = str(why)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise gave_up(where, connect_timeout_s, reason)
        if on_wait is not None:
            on_wait(f"waiting for {where}: {reason}; giving up in {left_s:.0f} s")
            on_wait = None
        if stop.wait(min(pause_s, left_s)):
            raise StoreUnreachable(f"this node was asked to stop while it waited for the store at {where}; {reason}")
        pause_s = min(pause_s * 1.5, RETRY_MOST_S)


def _attempt(
    where: Endpoint, run_id: str, is_host: bool | None, left_s: float, call_timeout_s: float, join: Join | None,
    hosting: Hosting, reach: Reach,
) -> C10dStore:  # fmt: skip
    """Made each time: the name may resolve only later, and a port that was taken may become free."""
    hosted = "" if is_host is False else _host(where, run_id, is_host is True, call_timeout_s, join, hosting)
    if isinstance(hosted, C10dStore):
        return hosted
    try:
        return reach(where, run_id, left_s, call_timeout_s, join)
    except StoreUnreachable as why:
        if not hosted or isinstance(why, HandshakeTimeout):
            raise
        raise StoreUnreachable(f"{why}; {hosted}") from why


def _host(
    where: Endpoint, run_id: str, forced: bool, call_timeout_s: float, join: Join | None, hosting: Hosting
) -> C10dStore | str:
    """The store, served by this process; else by which process of this node it is to be served, for messages, and empty
    if another node is to serve it."""
    made, server = _serve(where, forced, hosting.shared)
    if server is None:
        return taken_here(where) if made.taken or made.socket is not None else ""
    if made.elsewhere and hosting.shared and not forced:
        hosting.warn(several_hosts(where, made))
    with ExitStack() as undo:
        undo.callback(server.close)
        actual, keys = Endpoint(where.host, server.address[1][1]), Keys(run_id)
        client = connect(server.address, str(actual), call_timeout_s, call_timeout_s)
        undo.callback(client.close)
        token = create_keys(client, keys)
        store = C10dStore(client, actual, keys, server.address, server, token, warn=hosting.warn)
        if join is not None:
            join(store)
        mark_served(client, keys)
        undo.pop_all()
    return store


def _serve(where: Endpoint, forced: bool, shared: bool) -> tuple[Claim, TorchServer | None]:
    """The claim, and the server where this node has it. Port 0 is claimed again where the port that the kernel chose
    cannot be served: a torch that listens itself needs it on every address, where a connection may have it."""
    attempts = FREE_PORTS if where.port == 0 else 1
    while True:
        attempts -= 1
        made = claim(where, forced=forced, shared=shared)
        try:
            server = None if made.socket is None else serve(made.socket, where, forced=forced)
        except PortTaken:
            if not attempts:
                raise
            continue
        if server is not None or not attempts:
            return made, server


def _reach(where: Endpoint, run_id: str, timeout_s: float, call_timeout_s: float, join: Join | None) -> C10dStore:
    """The store, served by another process. One attempt; raises as `client.connect_any`, `keys.verify` and `join`."""
    if where.port == 0:
        raise ValueError(f"endpoint {where}: port 0 is for the node that hosts; give the port that the host serves")
    timeout_s = max(min(timeout_s, ATTEMPT_S), 0.1)
    (client, address), keys = connect_any(where, timeout_s, call_timeout_s, SERVED), Keys(run_id)
    try:
        store = C10dStore(client, where, keys, address, None, verify(client, str(where), keys, timeout_s))
        if join is not None:
            join(store)
    except BaseException:
        client.close()
        raise
    return store
