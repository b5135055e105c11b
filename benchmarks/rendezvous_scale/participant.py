"""A node without workers: a real driver with its threads and its connections, which answers as an agent would."""

from __future__ import annotations

import sys
from collections.abc import Callable

from elastic_agent.agent.processes.fence_page import FencePage
from elastic_agent.rendezvous.c10d.opening import open_c10d
from elastic_agent.rendezvous.driver.channel import TcpChannel
from elastic_agent.rendezvous.driver.driver import Driver, OpenStore
from elastic_agent.rendezvous.driver.events import (
    LoopAsked,
    RecordWritten,
    RoundSeen,
    StoreFailed,
    StoreOpened,
    StoreWentAway,
)
from elastic_agent.rendezvous.driver.fencing import Fencing
from elastic_agent.rendezvous.endpoint import parse_endpoint
from elastic_agent.rendezvous.failures import WorkerFailure
from elastic_agent.rendezvous.records import JobSpec, NodeRecord, NodeState, Round, RoundPhase
from elastic_agent.rendezvous.store import StoreError

CONNECT_TIMEOUT_S = 500.0
ALONE_S = 40.0
"""As `NodeRecord.alone_s`, of an agent with the default times."""


def opener(backend: str, endpoint: str, run_id: str, lease_s: float, *, hosts: bool = False) -> OpenStore:
    """What opens the store of this job: `c10d`, served here if `hosts`, or `etcd`."""
    if backend == "c10d":
        return lambda cancelled, join: open_c10d(
            endpoint, run_id, is_host=hosts, connect_timeout_s=CONNECT_TIMEOUT_S, cancelled=cancelled, join=join
        )
    from elastic_agent.rendezvous.etcd.store import Location, open_etcd

    where, location = [parse_endpoint(endpoint)], Location(run_id, lease_s=lease_s)
    return lambda cancelled, join: open_etcd(
        where, location, connect_timeout_s=CONNECT_TIMEOUT_S, cancelled=cancelled, join=join
    )


def fencing(name: str, backend: str, lease_s: float) -> Fencing:
    """As an agent has it: a page in memory, a port and a thread that answer, a thread that asks. Without a presence on
    this host (`agent/processes/neighbours.py`), which is of a process, and a process is many participants here."""
    return Fencing(name, lease_s, ALONE_S, FencePage(), TcpChannel(_warn), hosted=backend != "etcd")


class Participant:
    """A node that publishes what an agent with one worker would."""

    def __init__(
        self,
        name: str,
        spec: JobSpec,
        open_store: OpenStore,
        placed: Callable[[int], None],
        failed: Callable[[StoreError], None],
        times_s: tuple[float, float],
        fenced: Fencing | None = None,
    ) -> None:
        """`placed` gets the number of each round in which this node has a place, and 0 once its last record is written;
        `failed` why its store cannot be used. Both are called on the driver's threads. `times_s`: between heartbeats,
        and of a lease. `fenced`: as `fencing` makes it."""
        self.name = name
        self.round = 0
        self._placed, self._failed = placed, failed
        self._spec = spec
        self._seq = 0
        self._finishing = False
        self._fenced = fenced is not None
        self._last = -1
        """Number of the last record."""
        self.driver = Driver(
            name, name, spec, open_store, self.take, *times_s, find_addr=lambda: "127.0.0.1", warn=_warn, fencing=fenced
        )

    def publish(self, state: NodeState, failure: WorkerFailure | None = None) -> None:
        self._seq += 1
        finished = state in (NodeState.FINISHED, NodeState.ENDED)
        self._finishing = self._finishing or finished
        low, high = self._spec.min_nodes, self._spec.max_nodes
        runs = state in (NodeState.WORKING, NodeState.FINISHED)
        fenced_round = max(self.round - runs, 0) if self._fenced else 0
        self.driver.publish(
            NodeRecord(
                self.name, self.name, state, self._seq, self.round, addr="127.0.0.1", port=1, finished=finished,
                all_exits_reported=finished, min_nodes=low, max_nodes=high, restarts_left=1000, failure=failure,
                deaths=(failure,) if failure is not None else (), fenced_round=fenced_round,
            )
        )  # fmt: skip

    def fail(self) -> None:
        """As if its worker had exited 1."""
        self.publish(NodeState.BROKEN, WorkerFailure(self.name, "host", 0, 0, 1, 1))

    def take(self, event: object) -> None:
        """What the driver posts, on its threads."""
        if isinstance(event, StoreOpened):
            self.publish(NodeState.WAITING)
        elif isinstance(event, StoreFailed):
            self._failed(event.error)
        elif isinstance(event, RoundSeen):
            self._follow(event.round)
        elif isinstance(event, RecordWritten) and event.seq == self._last:
            self._placed(0)
        elif isinstance(event, StoreWentAway) and self._last >= 0:
            self._placed(0)  # the host ends as soon as it has read the last record, before all answers have arrived
        elif isinstance(event, LoopAsked):
            event.answer()

    def _follow(self, seen: Round) -> None:
        has_place = seen.member(self.name) is not None
        if seen.phase is RoundPhase.RUNNING and seen.number > self.round and has_place:
            self.round = seen.number
            self.publish(NodeState.WORKING)
            self._placed(seen.number)
        elif seen.phase is RoundPhase.OVER and seen.number >= self.round and has_place and not self._finishing:
            self.round = seen.number  # it may have ended before it was received here
            self.publish(NodeState.WAITING)  # its workers are gone at once
        elif seen.phase is RoundPhase.CLOSED and self._last < 0:
            self.publish(NodeState.ENDED)
            self._last = self._seq


def _warn(text: str) -> None:
    print(text, file=sys.stderr)
