"""Three nodes train one model; the first, which hosts the rendezvous, is killed during a pass: `make trainer-demo`.

Each node is a process here, with a program like any user's. No node is the driver: the two that are left go on at the
next batch, a new one is told what was done before it came, and all print the same accuracies.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

PROGRAM = Path(__file__).with_name("digits.py")
BEGAN_S = time.monotonic()
BOUND_S, END_S = 120, 600
CHANGED = threading.Condition()
"""Notified of each line of a node."""


class Node:
    """One node's program, whose lines are shown as they come."""

    def __init__(self, name: str, endpoints: str, epochs: int) -> None:
        self.name, self.lines = name, list[str]()
        options = ["--nnodes", "2:3", "--workers", "3", "--endpoint", endpoints, "--epochs", str(epochs), "--tell"]
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(PROGRAM), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"OMP_NUM_THREADS": "1", **os.environ},  # three nodes share the processors of this machine
        )
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with CHANGED:
                self.lines.append(line.rstrip())
                CHANGED.notify_all()
            if re.match(r"epoch|round \d+ (begins|is over)|the host|Traceback|\w+Error", line):
                tell(self.name, line.rstrip())

    def end(self) -> list[str]:
        """What it said of each epoch, once it has ended."""
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{self.name} still trains after {END_S} s") from None
        if code:
            raise SystemExit(f"{self.name} ended with {code}:\n" + "\n".join(self.lines))
        self.reader.join()
        return [
            found[0] for line in self.lines if (found := re.match(r"epoch \d+: loss [\d.]+, accuracy [\d.]+%", line))
        ]


def wait_for(words: str, *nodes: Node) -> None:
    """Until one of these nodes has said so."""
    with CHANGED:
        there = CHANGED.wait_for(lambda: any(words in line for node in nodes for line in node.lines), BOUND_S)
    if not there:
        raise SystemExit(f"{' and '.join(node.name for node in nodes)} did not come to {words!r} in {BOUND_S} s")


def passes(*nodes: Node) -> int:
    """How many have begun."""
    with CHANGED:
        begun = [re.match(r"pass (\d+) has begun", line) for node in nodes for line in node.lines]
    return max((int(found[1]) for found in begun if found), default=0)


def tell(who: str, what: str) -> None:
    print(f"{time.monotonic() - BEGAN_S:5.1f} s  {who:6}  {what}", flush=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def play(nodes: dict[str, Node], epochs: int) -> None:
    """`nodes`: those that are started, by name."""
    endpoints = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    tell("demo", "starting node-a, node-b and node-c: the same program")
    nodes["node-a"] = Node("node-a", endpoints, epochs)
    wait_for("round 1: ", nodes["node-a"])  # all three could host at this endpoint; the first to come does
    for name in ("node-b", "node-c"):
        nodes[name] = Node(name, endpoints, epochs)
    wait_for(", 3 workers", *nodes.values())
    number = passes(*nodes.values()) + 2
    wait_for(f"pass {number} has begun", *nodes.values())  # the first worker says so, on whichever node it is
    nodes["node-a"].process.send_signal(signal.SIGKILL)
    tell("demo", f"killed node-a, which hosts the rendezvous, in the middle of pass {number}")
    killed = nodes.pop("node-a")
    killed.reader.join()
    if any(line.startswith(f"epoch {number}:") for line in killed.lines):
        raise SystemExit(f"node-a had ended pass {number} when it was killed")
    wait_for(f"pass {number + 1} has begun", *nodes.values())  # one of them hosts in its place
    tell("demo", "starting node-d in its place")
    nodes["node-d"] = Node("node-d", endpoints, epochs)
    told = {name: node.end() for name, node in nodes.items()}
    if len({tuple(lines) for lines in told.values()}) != 1 or len(told["node-d"]) != epochs:
        raise SystemExit("the nodes do not agree on what was trained")
    tell("demo", f"all three nodes printed the same {epochs} epochs; the last: {told['node-d'][-1]}")


def main() -> None:
    nodes: dict[str, Node] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the nodes would train on without it
    try:
        play(nodes, int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    finally:
        for node in nodes.values():
            node.process.terminate()


if __name__ == "__main__":
    main()
