"""A process of torch's participants: `python -m benchmarks.rendezvous_scale.reference ENDPOINT NODES COUNT`. With COUNT
0 it serves the TCPStore.

Each is torch's own `DynamicRendezvousHandler` on its c10d backend, with a client of its own, as in one agent.
"""

from __future__ import annotations

import sys
import threading
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without saying so
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, create_handler

from elastic_agent.rendezvous.endpoint import parse_endpoint
from elastic_agent.rendezvous.store import StoreError

from . import counters
from .answering import BOUND_S, Answer, Places, serve, share_interpreter

TIMEOUT = timedelta(seconds=BOUND_S)


class Reference:
    """Torch's participants of this process."""

    def __init__(self, endpoint: str, nodes: int, count: int) -> None:
        where = parse_endpoint(endpoint)
        self._host, self._port, self._nodes = where.host, where.port, nodes
        self._places = Places(count)
        self._count = count
        self._kept: list[DynamicRendezvousHandler] = []
        self._server = TCPStore(where.host, where.port, is_master=True, wait_for_workers=False) if not count else None

    def join(self, number: int) -> Answer:
        for _ in range(self._count):
            threading.Thread(target=self._join, daemon=True).start()
        return self._places.wait(1)

    def _join(self) -> None:
        try:
            store = TCPStore(self._host, self._port, is_master=False, timeout=TIMEOUT, wait_for_workers=False)
            wanted = RendezvousParameters(
                "c10d", f"{self._host}:{self._port}", "scale", self._nodes, self._nodes, local_addr="127.0.0.1",
                join_timeout=int(BOUND_S),
            )  # fmt: skip
            handler = create_handler(store, C10dRendezvousBackend(store, "scale"), wanted)
            self._kept.append(handler)
            handler.next_rendezvous()
        except Exception as error:  # noqa: BLE001 - whatever torch raises ends the measurement
            self._places.failed(StoreError(f"{type(error).__name__}: {error}"))
            return
        self._places.placed(1)

    def count(self, number: int) -> Answer:
        return {"cpu_s": counters.process_s(), **counters.connections(self._port)}


def main() -> None:
    endpoint, nodes, count = sys.argv[1], *map(int, sys.argv[2:4])
    share_interpreter(max(count, 1))
    reference = Reference(endpoint, nodes, count)
    serve({"join": reference.join, "count": reference.count})


if __name__ == "__main__":
    main()
