"""A scheduler of one's own: it starts the nodes of one job, adds some as long as that pays, takes back those that do
not pay, and replaces those that die.

    python examples/autoscaler.py --nodes 1:4 --for 120 train.py ARGS...

Nodes are processes of this host, each after the words of `--within`, such as "ip netns exec {}".
It knows the job by its control sockets alone: what it asks is in proto/control.proto, and docs/library.md has the same
as methods of `NodeAgent`. The script uses `elastic_agent.worker`, so that its steps are known, and nothing is lost when
the number of nodes changes.
"""

from __future__ import annotations

import argparse
import glob
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

LOOK_S = 1.0
"""Between two looks at the job."""
LOOKS = 4
"""Looks at one number of nodes before that is judged."""
GAIN = 0.1
"""What one more node must add to the steps per second, as a part of what there was."""


class Link(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("agent", timeout=5)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


@dataclass
class Pace:
    """How many steps a second the job does, by its number of nodes."""

    best: dict[int, float] = field(default_factory=dict)
    looks: int = 0
    round: int = 0
    steps: int = 0
    at_s: float = 0.0

    def look(self, round_number: int, nodes: int, steps: int, now_s: float) -> None:
        """A round begins anew: what it did at first was starting, and is not counted."""
        if round_number == self.round and self.steps and steps > self.steps:
            self.looks += 1
            self.best[nodes] = max(self.best.get(nodes, 0.0), (steps - self.steps) / (now_s - self.at_s))
        elif round_number != self.round:
            self.looks = 0
        self.round, self.steps, self.at_s = round_number, steps, now_s

    def verdict(self, nodes: int) -> str:
        """`more`, `fewer` or `stay`."""
        if self.looks < LOOKS or nodes not in self.best:
            return "stay"
        before = self.best.get(nodes - 1)
        if before is not None and self.best[nodes] < before * (1 + GAIN):
            return "fewer"
        return "stay" if nodes + 1 in self.best else "more"


class Autoscaler:
    """One job, and the processes that are its nodes."""

    def __init__(self, asked: argparse.Namespace, run_dir: str) -> None:
        self.asked, self.run_dir, self.pace = asked, run_dir, Pace()
        self.least, self.most = asked.nodes
        self.status = 0
        """Of the node that hosts the store, unless all were stopped from here."""
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.names: dict[str, str] = {}
        """Of nodes, as the job knows them."""
        self.leaving: set[str] = set()
        self.count = 0

    def start(self, because: str) -> None:
        name = f"node{self.count}"
        self.count += 1
        host = not self.nodes
        argv = [
            *self.asked.within.format(name).split(), sys.executable, "-m", "elastic_agent",
            "--nnodes", f"{self.least}:{self.most}", "--nproc-per-node", "1", "--max-restarts", "3", "--watch", "hang",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", self.asked.endpoint, "--rdzv-id", "autoscaled",
            "--rdzv-conf", f"is_host={int(host)},last_call_quiet=0.5,lease=3", *self.asked.script,
        ]  # fmt: skip
        self.nodes[name] = subprocess.Popen(argv, env={**os.environ, "ELASTIC_AGENT_RUN_DIR": self.run_dir})
        print(f"autoscaler: starting {name} (pid {self.nodes[name].pid}): {because}", flush=True)

    def ask(self, name: str, method: str, **fields: object) -> dict[str, Any] | None:
        """The answer of one node's agent; None while it gives none."""
        paths = glob.glob(f"{self.run_dir}/{self.nodes[name].pid}-*/control.sock")
        try:
            link = Link(paths[0])
            link.request("POST", f"/elastic.control.v1.Control/{method}", json.dumps(fields))
            found: dict[str, Any] = json.loads(link.getresponse().read())
            link.close()
        except (IndexError, OSError, http.client.HTTPException):
            return None  # it has just begun, or is ending
        return found

    def look(self) -> None:
        """Events in: who has ended, how fast the job is. Requests out: start, drain."""
        self.replace_dead()
        job = self.ask(next(iter(self.nodes)), "Job") if self.nodes else None
        if job is None or job.get("source") != "coordinator":
            return
        for name in self.nodes:
            if name not in self.names and (status := self.ask(name, "Status")):
                self.names[name] = status["name"]
        capacity = job["capacity"]
        alive = len(self.nodes) - len(self.leaving)
        if self.least and alive < self.least:
            self.start(f"{capacity.get('needed', 0)} are needed")
        placed = sum("groupRank" in node for node in job["nodes"])
        if not self.least or job["phase"] != "running" or placed != alive or self.leaving:
            return
        self.pace.look(job["round"], placed, self.steps(), time.monotonic())
        rate = self.pace.best.get(placed, 0.0)
        verdict = self.pace.verdict(placed)
        if verdict == "more" and capacity.get("helpful", 0) and placed < self.most:
            self.start(f"{rate:.1f} steps/s on {placed}, and one more would get a place")
        elif verdict == "fewer" and capacity.get("spare"):
            self.drain(
                capacity["spare"][0], f"{rate:.1f} steps/s on {placed}, {self.pace.best[placed - 1]:.1f} on one less"
            )

    def steps(self) -> int:
        answers = [self.ask(name, "Workers") or {} for name in self.nodes]
        return max((each.get("steps", 0) for one in answers for each in one.get("workers", ())), default=0)

    def spent(self) -> str:
        """Where the seconds of all workers went, and what changes of their number have cost, as the nodes know it."""
        answers = [found for name in self.nodes if (found := self.ask(name, "Goodput"))]
        sums: dict[str, float] = {}
        for answer in answers:
            for each in answer["buckets"]:
                sums[each["bucket"]] = sums.get(each["bucket"], 0.0) + each.get("lengthS", 0.0)
        all_s = sum(sums.values())
        parts = sorted((each for each in sums.items() if each[1] > 0.005 * all_s), key=lambda each: -each[1])
        return ", ".join(f"{bucket} {100 * length_s / all_s:.0f} %" for bucket, length_s in parts)

    def drain(self, known_as: str, because: str) -> None:
        name = next(name for name, known in self.names.items() if known == known_as)
        self.leaving.add(name)
        print(f"autoscaler: draining {name}: {because}", flush=True)
        self.ask(name, "Drain", reason=because)

    def replace_dead(self) -> None:
        """A node that has ended and was not to leave is replaced, unless the job is done."""
        for name, process in list(self.nodes.items()):
            if (status := process.poll()) is None:
                continue
            first = name == next(iter(self.nodes))
            del self.nodes[name]
            asked = name in self.leaving
            self.leaving.discard(name)
            print(f"autoscaler: {name} ended with {status}", flush=True)
            if first and self.least:
                self.least, self.status = 0, status  # it hosts the store: the job has ended
            elif not asked and self.least and status not in (0, 83):
                self.start(f"{name} died")

    def run(self) -> None:
        self.start("the first one hosts the store")
        ends_s = time.monotonic() + self.asked.seconds
        while self.nodes:
            pidfds = [os.pidfd_open(process.pid) for process in self.nodes.values()]
            try:
                select.select(pidfds, [], [], LOOK_S)
                self.look()
            except KeyboardInterrupt:
                self.stop("interrupted")
            for pidfd in pidfds:
                os.close(pidfd)
            if time.monotonic() > ends_s:
                self.stop("the time is over")

    def stop(self, because: str) -> None:
        """Once: all ranks save and end, and none is replaced."""
        if self.nodes and self.least:
            self.least = 0
            print(f"autoscaler: {because}; all save and end; until now {self.spent()}", flush=True)
            self.ask(next(iter(self.nodes)), "Stop", job=True, reason=because)


def nodes(text: str) -> tuple[int, int]:
    """The numbers of MIN:MAX."""
    least, _, most = text.partition(":")
    if not 1 <= int(least) <= int(most or least):
        raise ValueError
    return int(least), int(most or least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=nodes, default=(1, 4), metavar="MIN:MAX")
    parser.add_argument("--endpoint", default="127.0.0.1:29400", help="Where the first node listens.")
    parser.add_argument("--within", default="", help="Words before a node's command; {} is its name.")
    parser.add_argument("--for", dest="seconds", type=float, default=120.0, help="Seconds until the job is stopped.")
    parser.add_argument("script", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or the nodes would train on without it
    with tempfile.TemporaryDirectory(prefix="ea-", dir="/tmp") as folder:
        scaler = Autoscaler(asked, f"{folder}/run")
        try:
            scaler.run()
        finally:
            for process in scaler.nodes.values():
                process.terminate()
                process.wait()
    paces = ", ".join(f"{rate:.1f} on {nodes}" for nodes, rate in sorted(scaler.pace.best.items()))
    print(f"autoscaler: steps/s: {paces or 'not measured'}", flush=True)
    raise SystemExit(scaler.status if scaler.status >= 0 else 128 - scaler.status)


if __name__ == "__main__":
    main()
