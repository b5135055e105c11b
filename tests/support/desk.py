"""Workers that a test steers: plain Python processes that connect to the desk's Unix socket and follow its orders."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKER = str(Path(__file__).parent / "workers" / "obedient.py")
"""The worker's script."""
BOUND_S = 60.0
"""How long a test waits for what must happen. Generous, as the host may be busy; no test sleeps for so long."""


@dataclass
class Worker:
    """One worker connected to the desk."""

    link: socket.socket
    env: dict[str, str]
    argv: list[str]
    pid: int
    gone: threading.Event = field(default_factory=threading.Event)
    sent: list[str] = field(default_factory=list)
    """Lines that it sent after its first."""

    @property
    def rank(self) -> int:
        return int(self.env["RANK"])

    @property
    def round(self) -> int:
        return int(self.env["ELASTIC_AGENT_ROUND"])

    @property
    def restarts(self) -> int:
        return int(self.env["TORCHELASTIC_RESTART_COUNT"])

    @property
    def node(self) -> str:
        return self.env["TEST_NODE"]

    def order(self, what: str) -> None:
        """Send an order: `exit N`, `raise TEXT`, `kill SIGNUM`, `ignore SIGNUM`, `handle SIGNUM` (with a line),
        `spawn` (a child that sleeps), `ping`."""
        self.link.sendall(what.encode() + b"\n")


def worker_of(world: Sequence[Worker], node: str) -> Worker:
    """The worker of this node; its first where it has several."""
    return next(worker for worker in world if worker.node == node)


def restarts_of(world: Sequence[Worker]) -> dict[str, int]:
    """How many restarts each node of this world was charged, by its name."""
    return {worker.node: worker.restarts for worker in world}


class Desk:
    """The Unix socket that workers connect to. `wait_world(n)` waits until a round of n workers runs."""

    def __init__(self, folder: Path, notify: Callable[[str, Worker], None] | None = None) -> None:
        """`notify` is called with "hello" or "gone" for each worker that connects or ends, on a thread of the desk."""
        self.path = str(folder / "desk.sock")
        self._notify = notify or (lambda what, worker: None)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._changed = threading.Condition()
        self.workers: list[Worker] = []
        threading.Thread(target=self._accept, daemon=True, name="test-desk").start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._attend, args=(link,), daemon=True, name="test-desk-worker").start()

    def _attend(self, link: socket.socket) -> None:
        lines = link.makefile("r", encoding="utf-8")
        first = lines.readline()
        if not first:
            link.close()
            return
        hello = json.loads(first)
        worker = Worker(link, hello["env"], hello["argv"], hello["pid"])
        with self._changed:
            self.workers.append(worker)
            self._changed.notify_all()
        self._notify("hello", worker)
        try:
            for line in lines:
                with self._changed:
                    worker.sent.append(line.strip())
                    self._changed.notify_all()
        except OSError:
            pass  # a killed worker resets its connection
        with self._changed:
            worker.gone.set()
            self._changed.notify_all()
        self._notify("gone", worker)
        link.close()

    def wait(self, until: Callable[[], Any], what: str, bound_s: float = BOUND_S) -> Any:
        """Wait until `until()` is true, and return its value. After the bound the test fails, naming `what`."""
        deadline = time.monotonic() + bound_s
        with self._changed:
            while not (found := until()):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    held = [(w.node, w.round, w.rank, w.gone.is_set()) for w in self.workers]
                    raise AssertionError(f"{what} did not happen within {bound_s:g} s; workers seen: {held}")
                self._changed.wait(left_s)
            return found

    def ask(self, worker: Worker, order: str) -> None:
        """Send an order and wait until the worker has followed it."""
        done = f"done {order.partition(' ')[0]}"
        before = worker.sent.count(done)
        worker.order(order)
        self.wait(lambda: worker.sent.count(done) > before, f"the answer of rank {worker.rank} to {order!r}")

    def world(self) -> list[Worker]:
        """Live workers of the newest round, by rank; empty unless all of them are connected."""
        alive = [worker for worker in self.workers if not worker.gone.is_set()]
        newest = max((worker.round for worker in alive), default=0)
        members = sorted((worker for worker in alive if worker.round == newest), key=lambda worker: worker.rank)
        size = int(members[0].env["WORLD_SIZE"]) if members else 0
        return members if size and [worker.rank for worker in members] == list(range(size)) else []

    def wait_world(self, size: int, after: int = 0, bound_s: float = BOUND_S) -> list[Worker]:
        """Wait until a complete world of `size` workers runs in a round later than `after`."""

        def complete() -> list[Worker]:
            world = self.world()
            return world if len(world) == size and world[0].round > after else []

        found: list[Worker] = self.wait(complete, f"a world of {size} after round {after}", bound_s)
        return found

    def wait_gone(self, workers: Sequence[Worker], bound_s: float = BOUND_S) -> None:
        self.wait(lambda: all(worker.gone.is_set() for worker in workers), "the exit of these workers", bound_s)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            for worker in self.workers:
                if not worker.gone.is_set():
                    worker.link.shutdown(socket.SHUT_RDWR)
