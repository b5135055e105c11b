"""A process of many participants: `python -m benchmarks.rendezvous_scale.crowd BACKEND ENDPOINT LOW HIGH COUNT FIRST
BEAT_S LEASE_S`."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Callable, Sequence

from elastic_agent.rendezvous.c10d import client, opening
from elastic_agent.rendezvous.endpoint import parse_endpoint
from elastic_agent.rendezvous.records import JobSpec
from elastic_agent.rendezvous.store import Store

from . import counters
from .answering import Answer, Places, serve, share_interpreter
from .participant import Participant, fencing, opener

RUN_ID = "scale"
COMMAND = ("train.py",)
JOIN_AT_ONCE = 16
"""Participants of one process that join at the same time; they share one interpreter, and a handshake has a time
limit."""

HANDSHAKE_S = 120.0
"""In place of the agents' limits of seconds: here one host runs the server and all of its clients."""


class Crowd:
    """The participants of this process."""

    def __init__(self, args: Sequence[str]) -> None:
        backend, endpoint = args[:2]
        low, high, count, first = map(int, args[2:6])
        beat_s, lease_s = map(float, args[6:8])
        share_interpreter(count)
        self._port = parse_endpoint(endpoint).port
        self._places = Places(count)
        opening = threading.Semaphore(JOIN_AT_ONCE)
        open_store = opener(backend, endpoint, RUN_ID, lease_s)

        def open_in_turn(cancelled: threading.Event, join: Callable[[Store], None]) -> Store:
            with opening:
                return open_store(cancelled, join)

        spec = JobSpec(RUN_ID, COMMAND, low, high, lease_s=lease_s)
        places, times = self._places, (beat_s, lease_s)
        self._all = [
            Participant(name, spec, open_in_turn, places.placed, places.failed, times, fencing(name, backend, lease_s))
            for name in (f"node{number:05}" for number in range(first, first + count))
        ]

    def join(self, number: int) -> Answer:
        for each in self._all:
            each.driver.open()
        return self._places.wait(1)

    def arrived(self, number: int) -> Answer:
        return self._places.wait(number)

    def count(self, number: int) -> Answer:
        return {"cpu_s": counters.process_s(), **counters.connections(self._port)}

    def fail(self, number: int) -> Answer:
        self._all[0].fail()
        return {}

    def die(self, number: int) -> Answer:
        """The last participant closes its connections without a record."""
        self._places.expected -= 1
        self._all.pop().driver.close()
        return {}


def raise_limit() -> None:
    """As many descriptors as this process may have: a participant has two connections, and four more for its fence."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    raise_limit()
    client.HANDSHAKE_S = opening.ATTEMPT_S = HANDSHAKE_S
    crowd = Crowd(sys.argv[1:])
    serve({"join": crowd.join, "arrived": crowd.arrived, "count": crowd.count, "fail": crowd.fail, "die": crowd.die})


if __name__ == "__main__":
    main()
