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

from elastic_agent.benchmarks.rendezvous_scale.participant import Participant, opener
from elastic_agent.rendezvous.records import JobSpec, NodeState, Survivor
from elastic_agent.rendezvous.store import Store, StoreError

JOIN_AT_ONCE = 8
"""Nodes of one process that join at the same time; they share one interpreter, and a handshake has a time limit."""
BOUND_S = 500.0
BEAT_S, LEASE_S = 10.0, 550.0
"""Slow, as hundreds of nodes share one interpreter, in which each decodes each announcement."""
CONF = f"beat={BEAT_S:g},lease={LEASE_S:g}"
"""For `--rdzv-conf` of the host, whose lease must be the same."""


class CrowdNode:
    """A node that says what an agent with one worker would, and what became of it."""

    def __init__(self, name: str, spec: JobSpec, endpoint: str, opening: threading.Semaphore) -> None:
        self.running, self.closed = threading.Event(), threading.Event()
        self.error: StoreError | None = None
        open_c10d = opener("c10d", endpoint, spec.run_id, LEASE_S)

        def open_store(cancelled: threading.Event, join: Callable[[Store], None]) -> Store:
            with opening:
                return open_c10d(cancelled, join)

        self.node = Participant(name, spec, open_store, self._placed, self._failed, (BEAT_S, LEASE_S))

    def _placed(self, number: int) -> None:
        (self.running if number else self.closed).set()

    def _failed(self, error: StoreError) -> None:
        self.error = error
        self.running.set()
        self.closed.set()


def main(args: Sequence[str]) -> int:
    endpoint, run_id, count, first, command = args[0], args[1], int(args[3]), int(args[4]), args[5]
    threading.stack_size(256 * 1024)
    spec = JobSpec(run_id, (command,), int(args[2]), int(args[2]), lease_s=LEASE_S, survivor=Survivor.MAJORITY)
    opening = threading.Semaphore(JOIN_AT_ONCE)
    nodes = [CrowdNode(f"crowd{number}", spec, endpoint, opening) for number in range(first, first + count)]
    for node in nodes:
        node.node.driver.open()
    came = _all(node.running for node in nodes)
    print("running" if came and not any(node.error for node in nodes) else _trouble(nodes), flush=True)
    sys.stdin.readline()
    for node in nodes:
        node.node.publish(NodeState.FINISHED)
    ended = _all(node.closed for node in nodes)
    print("finished" if ended and not any(node.error for node in nodes) else _trouble(nodes), flush=True)
    for node in nodes:
        node.node.driver.close()
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
