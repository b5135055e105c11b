"""Rendezvous handlers of other packages (the entry points `torchrun.handlers`): they say who meets and where, and our
agents do the rest.

A handler of torch's (torch 2.13, `torch.distributed.elastic.rendezvous.api`) brings nodes together and gives them a
store. The first of them serves a c10d store of ours and writes its address there; the others read it. Which nodes are
in which round, who is lost and who caused what, is then decided as in any job on c10d. Nodes that arrive later wait in
the handler, which reports only their number and only when asked, until the nodes of the job meet them there once more.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any

from ...agent.errors import UsageError
from ...agent.spec import RendezvousSpec
from ...rendezvous.c10d.opening import open_c10d
from ...rendezvous.c10d.store import C10dStore
from ...rendezvous.endpoint import local_address
from ...rendezvous.store import Join, StoreUnreachable

ASK_S = 1.0
"""Time between two questions whether nodes wait."""
_PREFIX = "elastic-agent"


def create_handler(spec: RendezvousSpec) -> Any:
    """The handler that `spec` names, made as torchrun makes it. Raises UsageError where it refuses its parameters."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    # Handlers made from torch's give the workers' store to the first round only, and newcomers wait for it; ours need
    # none of it.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if spec.handler is None:
        raise UsageError(
            f"--rdzv-backend {spec.backend}: no installed package registers a handler of this name (entry points "
            "torchrun.handlers); install the one that does, or choose static, c10d or etcd"
        )
    try:
        _register(spec.handler.name)
        return get_rendezvous_handler(
            RendezvousParameters(
                spec.handler.name,
                spec.endpoint,
                spec.run_id,
                spec.min_nodes,
                spec.max_nodes,
                spec.local_addr,
                **spec.handler.config,
            )
        )
    except Exception as error:
        raise UsageError(f"--rdzv-backend {spec.handler.name}: {type(error).__name__}: {error}") from error


def is_registered(name: str) -> bool:
    """Whether a package has an entry point of that name, or this program has registered a handler in torch."""
    registry = getattr(sys.modules.get("torch.distributed.elastic.rendezvous"), "rendezvous_handler_registry", None)
    if name in getattr(registry, "_registry", ()):
        return True
    return any(True for _ in _entry_points(name))


def _register(name: str) -> None:
    """Register the entry point of that name in torch, which looks for entry points only once, when it is imported: it
    has not seen a package that was installed later, as from a notebook, and has only logged why one cannot be loaded.
    Raises what the package does."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    if name not in getattr(rendezvous_handler_registry, "_registry", (name,)):
        for point in _entry_points(name):
            rendezvous_handler_registry.register(name, point.load()())


def _entry_points(name: str) -> Iterable[Any]:
    from importlib import metadata

    return metadata.entry_points().select(group="torchrun.handlers", name=name)


class Meeting:
    """One node's part in the meetings of a handler. `open` once, on the store's thread; the rest from any thread."""

    def __init__(self, spec: RendezvousSpec, handler: Any) -> None:
        self._spec = spec
        self._handler = handler
        self._endpoint = ""
        """Where the job's store is; empty until this node knows."""
        self._closing = threading.Event()

    def open(self, closing: threading.Event, join: Join) -> C10dStore:
        """Meet the other nodes and join their store, or serve it. Raises StoreError."""
        store, rank, known = self._meet()
        if closing.is_set():
            raise StoreUnreachable(
                f"this node was asked to stop while it waited for others (--rdzv-backend {self._spec.backend}); "
                "start it again to join the job"
            )
        if known or rank:
            self._endpoint = known or store.get(f"{_PREFIX}/served").decode()
            opened = self._reach(join, closing)
        else:
            opened = open_c10d(f"{self._own_address()}:0", self._spec.run_id, is_host=True, join=join)
            self._endpoint = str(opened.endpoint)
            store.set(f"{_PREFIX}/served", self._endpoint)
        threading.Thread(target=self._admit, name="elastic-agent-meeting", daemon=True).start()
        return opened

    def address(self) -> str:
        """The address at which other nodes reach this one."""
        return self._spec.local_addr or local_address(self._endpoint)

    def close(self) -> None:
        """Leave the handler."""
        self._closing.set()
        self._handler.shutdown()

    def _reach(self, join: Join, closing: threading.Event) -> C10dStore:
        return open_c10d(
            self._endpoint,
            self._spec.run_id,
            is_host=False,
            connect_timeout_s=self._spec.connect_timeout_s,
            cancelled=closing,
            join=join,
        )

    def _meet(self) -> tuple[Any, int, str]:
        """Wait in the handler; returns its store, this node's rank there, and where the job's store is, if a node that
        is here knows one."""
        try:
            info = self._handler.next_rendezvous()
            if isinstance(info, tuple):  # handlers made for torch before 2.4
                store, rank, size = info
            else:
                store, rank, size = info.store, info.rank, info.world_size
            store.set(f"{_PREFIX}/known/{rank}", self._endpoint)
            known = [store.get(f"{_PREFIX}/known/{each}").decode() for each in range(size)]
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise StoreUnreachable(f"the rendezvous handler {self._spec.backend} failed: {what}") from error
        return store, rank, next(filter(None, known), "")

    def _admit(self) -> None:
        """Meet nodes that wait, for as long as this node is in the job."""
        while not self._closing.wait(ASK_S):
            try:
                if self._handler.num_nodes_waiting() > 0:
                    self._meet()
            except Exception:
                if not self._closing.is_set():
                    import logging

                    logging.getLogger("elastic_agent").warning(
                        "no more nodes can join: the handler failed", exc_info=True
                    )
                return

    def _own_address(self) -> str:
        if self._spec.local_addr:
            return self._spec.local_addr
        try:
            return local_address(self._spec.endpoint)
        except (ValueError, StoreUnreachable):
            # The endpoint may be anything that the handler understands.
            return socket.gethostbyname(socket.gethostname())
