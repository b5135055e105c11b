"""What a coordinator does while all workers of a large job fail at once. Prints one line of JSON; needs elastic_agent.

    judging.py NODES WORKERS MIX

Each of NODES nodes with WORKERS workers reports first that a worker failed, and then how all of them ended. MIX says
how: `own` (each by an error of its own), `alike` (most by one error, the last by another), `echoes` (all lost a peer,
but one), `named` (each names ranks that are missing).

    join_s, start_s, storm_s    processor time for all nodes to join, to report their start, and to fail and report all
    events                      how many events the storm has
    median_ms, worst_ms         processor time of one of them
    because                     what the round ended by
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from elastic_agent.rendezvous.coordinator import machine
from elastic_agent.rendezvous.coordinator.events import BeatsSeen, Event, NodeSeen, ReadBeats
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.failures import Sign, WorkerFailure
from elastic_agent.rendezvous.records import NodeRecord, NodeState

APART_S = 0.002
"""Time between two records: a server passes on about as many."""


LATE_S = 2.0
"""Between the failures and the reports of how all workers ended."""


class Job:
    """The coordinator, and the nodes whose records it reads."""

    def __init__(self, nodes: int, nproc: int, mix: str) -> None:
        self.nodes, self.nproc, self.mix = nodes, nproc, mix
        self.rules = Rules(own="n0", min_nodes=nodes, max_nodes=nodes)
        self.state = Rendezvous(epoch=1)
        self.now = 0.0
        self._beats = 0
        self._asked: tuple[str, ...] = ()
        self._seq = 0

    def play(self, records: Iterator[NodeRecord]) -> list[float]:
        """Processor time of each event, in seconds. Heartbeats are read as the coordinator asks for it."""
        took: list[float] = []
        for each in records:
            self.now += APART_S
            took.append(self._take(NodeSeen(each)))
            if self._asked:
                self._beats += 1
                answer = BeatsSeen(dict.fromkeys(self._asked, self._beats))
                self._asked = ()
                took.append(self._take(answer))
        return took

    def _take(self, event: Event) -> float:
        began = time.process_time()
        step = machine.step(self.state, event, self.now, self.rules)
        took = time.process_time() - began
        self.state = step.state
        for effect in step.effects:
            if isinstance(effect, ReadBeats):
                self._asked = effect.nodes
        return took

    def records(self, state: NodeState, number: int, exits: int, *, all_reported: bool = False) -> Iterator[NodeRecord]:
        """One of each node, with this many exits of its workers."""
        for node in range(self.nodes):
            self._seq += 1
            deaths = tuple(self._death(node, local_rank) for local_rank in range(exits))
            name = f"node-{node}.example.com:{1000 + node}"
            yield NodeRecord(
                f"n{node}", name, state, self._seq, number, self.nproc, addr=f"10.0.0.{node}", port=29000,
                restarts_left=3, failure=deaths[0] if state is NodeState.BROKEN else None, deaths=deaths,
                all_exits_reported=all_reported,
            )  # fmt: skip

    def _death(self, node: int, local_rank: int) -> WorkerFailure:
        rank = node * self.nproc + local_rank
        name = f"node-{node}.example.com:{1000 + node}"
        last = rank == self.nodes * self.nproc - 1
        death = WorkerFailure(name, "host", rank, local_rank, 10_000 + rank, 1, message="boom", said="boom\n" * 20)
        if self.mix == "own":
            return replace(death, sign=Sign.OWN, sign_because=f"raised Error{'abcdefgh'[rank % 8]}: step {rank}")
        if self.mix == "alike":
            return replace(death, sign=Sign.OWN, sign_because=f"raised {'KeyError' if last else 'OSError'}: {rank}")
        if last:
            return replace(death, sign=Sign.OWN, sign_because="raised ValueError: boom")
        if self.mix == "named":
            missing = tuple((rank + step) % (self.nodes * self.nproc) for step in range(1, 9))
            return replace(death, sign=Sign.TIMEOUT, sign_because="timed out", suspects=missing)
        return replace(death, sign=Sign.PEER, sign_because=f"lost rank {rank - 1}")


def main(nodes: int, nproc: int, mix: str) -> None:
    job = Job(nodes, nproc, mix)
    joined = job.play(job.records(NodeState.WAITING, 0, 0))
    started = job.play(job.records(NodeState.WORKING, 1, 0))
    storm = job.play(job.records(NodeState.BROKEN, 1, 1))
    job.now += LATE_S  # the others' reports are late: the coordinator asks itself at each whether it needs any more
    storm += job.play(job.records(NodeState.WAITING, 1, nproc, all_reported=True))
    ended = job.state.end.ending
    result = {
        "join_s": sum(joined),
        "start_s": sum(started),
        "storm_s": sum(storm),
        "events": len(storm),
        "median_ms": 1000 * statistics.median(storm),
        "worst_ms": 1000 * max(storm),
        "round": job.state.number,
        "because": ended.because[:200] if ended is not None else "",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
