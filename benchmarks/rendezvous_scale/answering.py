"""What all processes of this benchmark do: take orders as lines of JSON, answer each with one, and stop at the end."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from elastic_agent.rendezvous.store import StoreError

BOUND_S = 900.0
"""The longest that any order may take."""

SWITCH_S = 1.0
"""So long a thread waits for the interpreter before it asks for it. Each of a thousand threads that wait would ask two
hundred times a second, which takes more than all that they do; an agent has an interpreter of its own."""

Answer = Mapping[str, object]


def share_interpreter(participants: int) -> None:
    """Of a process of so many. Garbage is looked for as often as each of them would by itself: a look at what all have
    takes as many times longer."""
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()
    gc.set_threshold(participants * gc.get_threshold()[0], *gc.get_threshold()[1:])


def serve(orders: Mapping[str, Callable[[int], Answer]]) -> None:
    """Say `ready`, then carry out each order, a name and a number, until standard input ends."""
    threading.stack_size(256 * 1024)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        name, number = json.loads(line)
        print(json.dumps(orders[name](number)), flush=True)


class Places:
    """How many participants of this process are in which round, and since when all are."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self._changed = threading.Condition()
        self._counts: Counter[int] = Counter()
        self._at: dict[int, float] = {}
        self._error = ""

    def placed(self, number: int) -> None:
        with self._changed:
            self._counts[number] += 1
            if self._counts[number] >= self.expected:
                self._at[number] = time.monotonic()
                self._changed.notify_all()

    def failed(self, error: StoreError) -> None:
        with self._changed:
            self._error = self._error or str(error)
            self._changed.notify_all()

    def wait(self, number: int) -> Answer:
        """Since when all are in round `number`, on the monotonic clock that all processes of a host share."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._error or number in self._at, BOUND_S)
            if self._error or not done:
                here = f"{self._counts[number]} of {self.expected} participants are in round {number}"
                return {"error": self._error or f"{here} after {BOUND_S:g} s"}
            return {"at": self._at[number]}
