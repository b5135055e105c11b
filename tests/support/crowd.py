"""Nodes without workers, many in one process: each is a real driver with its threads and its connections.

    python -m support.crowd ENDPOINT RUN_ID NODES COUNT FIRST COMMAND

joins COUNT nodes, named from FIRST on, to the job of NODES nodes; prints `running` once a round runs with all of them,
`finished` once the job is closed and every last record is written. Between the two, a line on standard input lets all
of them finish.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from elastic_agent.rendezvous.c10d.store import open_c10d
from elastic_agent.rendezvous.driver.driver import Driver
from elastic_agent.rendezvous.driver.events import (
    LoopAsked,
    RecordWritten,
    RoundSeen,
    StoreFailed,
    StoreOpened,
    StoreWentAway,
)
from elastic_agent.rendezvous.records import JobSpec, NodeRecord, NodeState, Round, RoundPhase
from elastic_agent.rendezvous.store import Store, StoreError

JOIN_AT_ONCE = 8
"""Nodes of one process that join at the same time; they share one interpreter, and a handshake has a time limit."""
BOUND_S = 500.0
BEAT_S, LEASE_S = 10.0, 550.0
"""Slow, as hundreds of nodes share one interpreter, in which each decodes each announcement."""


class CrowdNode:
    """A node that says what an agent with one worker would."""

    def __init__(self, name: str, spec: JobSpec, endpoint: str, opening: threading.Semaphore) -> None:
        self.running, self.closed = threading.Event(), threading.Event()
        self.error: StoreError | None = None
        self._name = name
        self._max_nodes = spec.max_nodes
        self._seq = self._round = 0
        self._finishing = False

        def open_store(cancelled: threading.Event, join: Callable[[Store], None]) -> Store:
            with opening:
                return open_c10d(
                    endpoint, spec.run_id, is_host=False, connect_timeout_s=BOUND_S, cancelled=cancelled, join=join
                )

        def warn(text: str) -> None:
            print(text, file=sys.stderr)

        self.driver = Driver(
            name, name, spec, open_store, self._take, BEAT_S, LEASE_S, find_addr=lambda: "127.0.0.1", warn=warn
        )

    def publish(self, state: NodeState) -> None:
        self._seq += 1
        finished = state in (NodeState.FINISHED, NodeState.ENDED)
        self._finishing = self._finishing or finished
        self.driver.publish(
            NodeRecord(
                self._name, self._name, state, self._seq, self._round, addr="127.0.0.1", port=1, finished=finished,
                all_exits_reported=finished, min_nodes=self._max_nodes, max_nodes=self._max_nodes,
            )
        )  # fmt: skip

    def _take(self, event: object) -> None:
        """What the driver posts, on its threads."""
        if isinstance(event, StoreOpened):
            self.publish(NodeState.WAITING)
        elif isinstance(event, StoreFailed):
            self.error = event.error
            self.running.set()
            self.closed.set()
        elif isinstance(event, RoundSeen):
            self._follow(event.round)
        elif isinstance(event, RecordWritten) and event.seq == self._last:
            self.closed.set()
        elif isinstance(event, StoreWentAway) and self._last >= 0:
            self.closed.set()  # the host ends as soon as it has read the last record, before all answers have arrived
        elif isinstance(event, LoopAsked):
            event.answer()

    def _follow(self, seen: Round) -> None:
        if seen.phase is RoundPhase.RUNNING and seen.number > self._round and seen.member(self._name) is not None:
            self._round = seen.number
            self.publish(NodeState.WORKING)
            self.running.set()
        elif seen.phase is RoundPhase.OVER and seen.number == self._round and not self._finishing:
            self.publish(NodeState.WAITING)  # its workers are gone at once
        elif seen.phase is RoundPhase.OVER and seen.number > self._round and seen.member(self._name) is not None:
            self._round = seen.number  # it ended before it was received here
            self.publish(NodeState.WAITING)
        elif seen.phase is RoundPhase.CLOSED:
            self.publish(NodeState.ENDED)
            self._last = self._seq

    _last = -1


def main(args: Sequence[str]) -> int:
    endpoint, run_id, count, first, command = args[0], args[1], int(args[3]), int(args[4]), args[5]
    threading.stack_size(256 * 1024)
    spec = JobSpec(run_id, (command,), int(args[2]), int(args[2]))
    opening = threading.Semaphore(JOIN_AT_ONCE)
    nodes = [CrowdNode(f"crowd{number}", spec, endpoint, opening) for number in range(first, first + count)]
    for node in nodes:
        node.driver.open()
    came = _all(node.running for node in nodes)
    print("running" if came and not any(node.error for node in nodes) else _trouble(nodes), flush=True)
    sys.stdin.readline()
    for node in nodes:
        node.publish(NodeState.FINISHED)
    ended = _all(node.closed for node in nodes)
    print("finished" if ended and not any(node.error for node in nodes) else _trouble(nodes), flush=True)
    for node in nodes:
        node.driver.close()
    return 0


def _all(events: Iterable[threading.Event]) -> bool:
    """Whether all of them are set within `BOUND_S`."""
    deadline = time.monotonic() + BOUND_S
    return all(event.wait(max(0.0, deadline - time.monotonic())) for event in events)


def _trouble(nodes: Sequence[CrowdNode]) -> str:
    errors = [str(node.error) for node in nodes if node.error]
    running = sum(node.running.is_set() for node in nodes)
    return f"{len(errors)} errors: {errors[0]}" if errors else f"{running} of {len(nodes)} were in a round"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
