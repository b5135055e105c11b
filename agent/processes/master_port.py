"""The port that this node offers as MASTER_PORT, and the workers' store behind it."""

from __future__ import annotations

from ..spec import WorkerSpec
from .ports import PortHold
from .supervisor import Supervisor


class MasterPort:
    """The port of the next round, and the store of the last one.

    With `worker_store="agent"` a socket listens there from before the port is offered: clients of the round may connect
    before its store is served, and no other process can take the port. Else it is held free for the worker of rank 0.
    """

    def __init__(self, spec: WorkerSpec, supervisor: Supervisor) -> None:
        self._fixed = spec.master_port
        self._by_agent = spec.worker_store == "agent"
        self._supervisor = supervisor
        self._hold: PortHold | None = None
        self._served = 0
        """The round whose store is served here; 0: none."""

    def renew(self) -> int:
        """End the store of the last round, and hold the port of the next, which is another one unless it is fixed.
        Returns its number. Raises OSError."""
        if self._served:
            self._supervisor.end_store()
            self._served = 0
        if self._fixed is not None and (self._hold is not None or not self._by_agent):
            return self._fixed
        fresh = PortHold(self._fixed or 0, listening=self._by_agent)
        self.close()  # only now, so that two rounds in a row never have the same port
        self._hold = fresh
        return fresh.port

    def serve(self, number: int, group_rank: int) -> None:
        """This node has a place in a round: serve its store, if this is the node whose port it uses."""
        if self._hold is None or not self._by_agent:
            return
        if group_rank == 0:
            self._supervisor.serve_store(number, self._hold.fileno())
            self._served = number
        if self._fixed is None:
            self.close()  # a client that comes when nobody serves the port is to be refused

    def lost(self, number: int) -> bool:
        """The process that served the store of this round has died. True if that store was still needed."""
        needed = number == self._served
        self._served = 0 if needed else self._served
        return needed

    def close(self) -> None:
        """Release the port. A process that serves it is not affected."""
        if self._hold is not None:
            self._hold.close()
            self._hold = None
