"""The process of the coordinator: it hosts the c10d store, or is the first that etcd elects. `python -m
benchmarks.rendezvous_scale.host BACKEND ENDPOINT LOW HIGH BEAT_S LEASE_S`."""

from __future__ import annotations

import sys
import threading
import time

from elastic_agent.agent.loop import Loop
from elastic_agent.rendezvous.coordinator import events, machine
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.endpoint import parse_endpoint
from elastic_agent.rendezvous.records import JobSpec

from . import counters
from .answering import Answer, Places, serve
from .crowd import COMMAND, RUN_ID, raise_limit
from .participant import ALONE_S, Participant, fencing, opener

SERVER_THREAD = "pt_tcpstore"
"""How torch names the thread that serves a TCPStore."""
LEADS_S = 300.0
"""The longest until this process coordinates: it imports torch first."""


class Host:
    """A participant, and the loop that gives what its driver posts to the coordinator's machine."""

    def __init__(self, args: list[str]) -> None:
        backend, endpoint = args[:2]
        low, high = map(int, args[2:4])
        beat_s, lease_s = map(float, args[4:6])
        self._port = parse_endpoint(endpoint).port
        self._loop = Loop()
        self._places = Places(1)
        self._rules = Rules(
            "host", low, high, beat_s=beat_s, lease_s=lease_s, last_call_timeout_s=600.0, quiet_s=60.0,
            fences=True, hosted=backend != "etcd", alone_s=ALONE_S,
        )  # fmt: skip
        self._state = Rendezvous()
        self._leads = threading.Event()
        self._decided_s, self._decisions = 0.0, 0
        self._node = Participant(
            "host", JobSpec(RUN_ID, COMMAND, low, high, lease_s=lease_s),
            opener(backend, endpoint, RUN_ID, lease_s, hosts=True),
            self._places.placed, self._places.failed, (beat_s, lease_s), fencing("host", backend, lease_s),
        )  # fmt: skip
        self._node.driver._post = self._loop.post

    def open(self, number: int) -> Answer:
        """Serve, or be elected."""
        self._node.driver.open()
        threading.Thread(target=self._run, daemon=True).start()
        if not self._leads.wait(LEADS_S):
            return {"error": f"the host did not become the coordinator within {LEADS_S:g} s"}
        return {}

    def arrived(self, number: int) -> Answer:
        return self._places.wait(number)

    def count(self, number: int) -> Answer:
        """`decided_s`: of the coordinator's machine; `server_s`: of the store that this process serves. `cpu_s` is
        without this thread's, which only counts, and takes 40 ms for the connections of 1,000 nodes."""
        return {
            "cpu_s": counters.process_s() - time.thread_time(),
            "server_s": counters.threads_s(SERVER_THREAD),
            "decided_s": self._decided_s,
            "decisions": self._decisions,
            "descriptors": counters.descriptors(),
            **counters.connections(self._port),
        }

    def _run(self) -> None:
        while True:
            event = self._loop.take()
            if isinstance(event, events.Event):
                began = time.thread_time()
                step = machine.step(self._state, event, self._loop.now(), self._rules)
                self._decided_s += time.thread_time() - began
                self._decisions += 1
                self._state = step.state
                if self._state.leading:
                    self._leads.set()
                for effect in step.effects:
                    self._carry_out(effect)
            else:
                self._node.take(event)

    def _carry_out(self, effect: events.Effect) -> None:
        if isinstance(effect, events.WakeAt):
            self._loop.wake_at(effect.when, events.DeadlineReached())
        elif not isinstance(effect, events.Tell | events.MoveFence):
            self._node.driver.carry_out(effect)


def main() -> None:
    raise_limit()
    host = Host(sys.argv[1:])
    serve({"open": host.open, "arrived": host.arrived, "count": host.count})


if __name__ == "__main__":
    main()
