"""One measurement: so many participants join, rest, restart after failures, and re-form after a death."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from elastic_agent.launcher.config.rdzv_conf import usual_beat_s

from .. import processes
from .children import Answer, Child, ask, etcd_server, shares, start

Figures = dict[str, float]
"""By name; names end in their unit."""
RESTARTS, BETWEEN_S = 5, 1.0
"""Restarts, of whose figures the medians are reported, and how long after one the next failure comes: the records of
the round that has just begun have arrived."""


@dataclass(frozen=True)
class Setting:
    """What is the same in all measurements of one run."""

    per_process: int = 250
    steady_s: float = 10.0
    lease_s: float = 60.0
    beats_per_s: float = 1000.0
    """Of all participants together, at most: each sends as many as an agent does, up to so many."""

    def beat_s(self, nodes: int) -> float:
        return max(usual_beat_s(self.lease_s), nodes / self.beats_per_s)


class Spent:
    """What all processes of a measurement have spent so far."""

    def __init__(self, host: Child | None, crowds: Sequence[Child], server_pid: int | None) -> None:
        self._host = host
        self._crowds = crowds
        self._server_pid = server_pid

    def now(self) -> Figures:
        found = ask(self._crowds, "count")
        total = _sum(found)
        if self._host is not None:
            host = ask([self._host], "count")[0]
            total |= {f"host_{name}": value for name, value in host.items()}
        if self._server_pid is not None:
            total["server_s"] = processes.cpu_s([self._server_pid])
        else:
            total["server_s"] = total.get("host_server_s", 0.0)
        total["at"] = time.monotonic()
        return total


def _sum(answers: Sequence[Answer]) -> Figures:
    return {name: float(sum(answer[name] for answer in answers)) for name in answers[0]}


def _between(before: Figures, after: Figures, guests: int) -> Figures:
    """`messages` and `bytes` of a guest; `cpu_s` of all processes; `coordinator_s` of the host's process without the
    server; `decided_s` of the machine alone."""
    spent = {name: after[name] - before[name] for name in after}
    host_s = spent.get("host_cpu_s", 0.0)
    inside = spent.get("host_server_s", 0.0)
    external = spent["server_s"] if not inside else 0.0
    return {
        "cpu_s": spent["cpu_s"] + host_s + external,
        "coordinator_s": host_s - inside,
        "server_s": spent["server_s"],
        "decided_s": spent.get("host_decided_s", 0.0),
        "decisions": spent.get("host_decisions", 0.0),
        "messages": spent["messages"] / guests,
        "bytes": spent["bytes"] / guests,
    }


def _named(phase: str, figures: Figures) -> Figures:
    return {f"{phase}_{name}": value for name, value in figures.items()}


def ours(backend: str, nodes: int, setting: Setting) -> Figures:
    """Our drivers, with their coordinator, on `c10d` or `etcd`. Raises children.Failed."""
    with ExitStack() as undo:
        directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="scale-")))
        server_pid: int | None = None
        if backend == "etcd":
            port, server_pid = undo.enter_context(etcd_server(directory))
        else:
            port = processes.free_port()
        times = (setting.beat_s(nodes), max(setting.lease_s, 5 * setting.beat_s(nodes)))
        where = (backend, f"127.0.0.1:{port}", nodes - 1, nodes)
        host = start(undo, "host", (*where, *times))
        guests = nodes - 1
        crowds = [
            start(undo, "crowd", (*where, count, first, *times)) for first, count in shares(guests, setting.per_process)
        ]
        ask([host], "open")
        spent = Spent(host, crowds, server_pid)
        return _ours(host, crowds, spent, guests, setting, times[1])


def _ours(host: Child, crowds: list[Child], spent: Spent, guests: int, setting: Setting, lease_s: float) -> Figures:
    everybody = [host, *crowds]
    before = spent.now()
    ask(crowds, "join")
    arrived = ask(everybody, "arrived", 1)
    joined = spent.now()
    found = _named("join", _between(before, joined, guests)) | {"join_s": _last(arrived) - before["at"]}
    found["connections"] = joined["connections"] / guests
    found["descriptors"] = joined["host_descriptors"]
    time.sleep(setting.steady_s)  # the records of the round that has just begun
    rested = spent.now()
    time.sleep(setting.steady_s)
    still = spent.now()
    rest_s = still["at"] - rested["at"]
    found |= {f"steady_{name}": value / rest_s for name, value in _between(rested, still, guests).items()}
    found |= _restarts(everybody, crowds[0], spent, guests)
    restarted = spent.now()
    ask(crowds[-1:], "die")
    died_at = time.monotonic()
    reformed = ask(everybody, "arrived", 2 + RESTARTS)
    found |= _named("death", _between(restarted, spent.now(), guests))
    found["death_s"] = _last(reformed) - died_at - lease_s
    return found


def _restarts(everybody: Sequence[Child], failing: Child, spent: Spent, guests: int) -> Figures:
    every = []
    for number in range(2, 2 + RESTARTS):
        before = spent.now()
        ask([failing], "fail")
        failed = ask(everybody, "arrived", number)
        between = _between(before, spent.now(), guests)
        every.append(_named("restart", between) | {"restart_s": _last(failed) - before["at"]})
        time.sleep(BETWEEN_S)
    return {name: statistics.median(each[name] for each in every) for name in every[0]}


def _last(answers: Sequence[Answer]) -> float:
    return max(float(answer["at"]) for answer in answers)


def torchs(nodes: int, setting: Setting) -> Figures:
    """Torch's dynamic rendezvous on a TCPStore in a process of its own. Raises children.Failed."""
    with ExitStack() as undo:
        endpoint = f"127.0.0.1:{processes.free_port()}"
        start(undo, "reference", (endpoint, nodes, 0))
        crowds = [start(undo, "reference", (endpoint, nodes, count)) for _, count in shares(nodes, setting.per_process)]
        spent = Spent(None, crowds, None)
        before = spent.now()
        arrived = ask(crowds, "join")
        found = _between(before, spent.now(), nodes)
        return {
            "join_s": _last(arrived) - before["at"],
            "join_cpu_s": found["cpu_s"],
            "join_messages": found["messages"],
            "join_bytes": found["bytes"],
        }


def load() -> str:
    """Of the last minute, and the number of processors that this process may use."""
    return f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"
