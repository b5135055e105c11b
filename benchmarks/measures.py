"""The measurements: one function each, a generator of samples over one run.

A sample is a number in the row's unit. If the launcher does not get so far, the generator raises BenchError, which the
driver records as a missing sample. Launchers poll: a function pauses for a random time between two
samples, so that they do not depend on the phase of the polling.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import processes
from .run import Agent, BenchError, Run, Worker, now

FAILURES_PER_RUN = 10
"""Worker failures in one single-node run; each costs the launcher one restart."""
SETTLE_S = 1.0
"""The pause before memory or CPU is read, so that the launcher's start-up work is done."""
IDLE_WINDOW_S = 5.0
TRAINING_S = 1.0
"""How long a job trains before a node is added or killed."""
EXIT_LIMIT_S = 30.0
FAST_POLL_S = (0.3, 0.5)
"""Pauses for launchers that poll their workers: torchrun does so every 0.1 s."""
SLOW_POLL_S = (1.0, 2.0)
"""Pauses for launchers that poll their store: torchrun does so every second."""


def one_host(nproc: int) -> list[str]:
    """Flags of a job on one host, with enough restarts for any row."""
    return ["--standalone", "--nproc-per-node", str(nproc), "--max-restarts", "1000"]


def many_nodes(port: int, nnodes: str, *extra: str) -> list[str]:
    """Flags of a node with one worker, whose rendezvous is on this port."""
    place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "bench"]
    return ["--nnodes", nnodes, "--nproc-per-node", "1", *place, "--max-restarts", "1000", *extra]


SHORT_LAST_CALL = ("--rdzv-conf", "last_call_timeout=1")


JUDGING = Path(__file__).resolve().parent / "scripts" / "judging.py"


def judging(run: Run, nodes: int, nproc: int, mix: str) -> Iterator[float]:
    """Processor time of a coordinator while all workers of all nodes fail at once, by the way of `mix`. No launcher is
    started: the events are made up, and the repository's own coordinator takes them."""
    env = {**os.environ, "PYTHONPATH": str(JUDGING.parents[2] / ".typing")}
    command = [sys.executable, str(JUDGING), str(nodes), str(nproc), mix]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise BenchError(f"{JUDGING.name} exited with {done.returncode}")
    yield json.loads(done.stdout)["storm_s"]


def start_nodes(run: Run, port: int, flags: list[list[str]], mode: str) -> list[Agent]:
    """Start one launcher for each list of flags, the others once the first serves the rendezvous."""
    agents = [run.start(flags[0], mode)]
    run.wait_listening(port)
    return agents + [run.start(more, mode) for more in flags[1:]]


def last_at(workers: list[Worker], event: str = "first") -> float:
    """When the last of these workers reported this event."""
    return max(worker.at[event] for worker in workers)


# -- time --------------------------------------------------------------------------------------------------------------
def launch(run: Run) -> Iterator[float]:
    """Exec of the launcher to the first line of its only worker."""
    agent = run.start(one_host(1), "plain")
    yield last_at(run.wait_world(1)) - agent.started


def restart(run: Run) -> Iterator[float]:
    """Exit of one of two workers with 1 to the first lines of both restarted workers."""
    run.start(one_host(2), "plain")
    workers = run.wait_world(2)
    for _ in range(FAILURES_PER_RUN):
        run.pause(random.uniform(*FAST_POLL_S))
        failed = run.order_exit(workers[-1], 1)
        workers = run.wait_world(2, after=failed)
        yield last_at(workers) - failed


def restart_two_nodes(run: Run) -> Iterator[float]:
    """Exit with 1 of a worker, on the node that does not host the store, to the first lines of both nodes' workers."""
    port = processes.free_port()
    host, _ = start_nodes(run, port, [many_nodes(port, "2")] * 2, "plain")
    workers = run.wait_world(2)
    for _ in range(FAILURES_PER_RUN):
        run.pause(random.uniform(*SLOW_POLL_S))
        failed = run.order_exit(next(worker for worker in workers if worker.node != host.node), 1)
        workers = run.wait_world(2, after=failed)
        yield last_at(workers) - failed


def restart_one_of_two(run: Run) -> Iterator[float]:
    """With `--nnodes 1:2` and one node: exit of its worker with 1 to the first line of the restarted worker."""
    run.start(many_nodes(processes.free_port(), "1:2"), "plain")
    workers = run.wait_world(1)
    for _ in range(FAILURES_PER_RUN):
        run.pause(random.uniform(*SLOW_POLL_S))
        failed = run.order_exit(workers[0], 1)
        workers = run.wait_world(1, after=failed)
        yield last_at(workers) - failed


def departure(run: Run, limit_s: float) -> Iterator[float]:
    """Kill of one of three nodes to the first lines of the two others' workers; no worker fails because of it."""
    port = processes.free_port()
    agents = start_nodes(run, port, [many_nodes(port, "2:3")] * 3, "plain")
    run.wait_world(3)
    run.pause(random.uniform(*SLOW_POLL_S))
    lost = run.kill_node(agents[-1])
    yield last_at(run.wait_world(2, after=lost, limit_s=limit_s)) - lost


def exit_delay(run: Run) -> Iterator[float]:
    """Exit of the last worker, with 0, to exit of the launcher."""
    agent = run.start(one_host(2), "plain")
    first, last = run.wait_world(2)
    run.order_exit(first, 0)
    run.pause(random.uniform(*FAST_POLL_S))
    left = run.order_exit(last, 0)
    yield run.wait(lambda: agent.ended, EXIT_LIMIT_S, "exit of the launcher") - left


# -- with torch imported ahead; a launcher without PET_PRELOAD behaves as always --------------------------------------
PRELOAD = {"PET_PRELOAD": "torch"}


def preloaded_launch(run: Run) -> Iterator[float]:
    """Exec of the launcher to the first all_reduce of its two workers."""
    agent = run.start(one_host(2), "reduce", env=PRELOAD)
    yield last_at(run.wait_world(2, event="reduced"), "reduced") - agent.started


def preloaded_restart(run: Run, limit_s: float) -> Iterator[float]:
    """SIGKILL of one of two workers to the first all_reduce of the next two."""
    run.start(one_host(2), "reduce", env=PRELOAD)
    workers = run.wait_world(2, event="reduced")
    for _ in range(FAILURES_PER_RUN):
        run.pause(random.uniform(*FAST_POLL_S))
        failed = run.kill_worker(workers[-1])
        workers = run.wait_world(2, after=failed, event="reduced", limit_s=limit_s)
        yield last_at(workers, "reduced") - failed


def preloaded_memory(run: Run, workers_too: bool) -> Iterator[float]:
    """Memory of the launcher and its helpers, with or without its two workers that use torch: PSS, MiB."""
    agent = run.start(one_host(2), "reduce", env=PRELOAD)
    run.wait_world(2, event="reduced")
    run.pause(SETTLE_S)
    pids = [agent.pid, *processes.descendants(agent.pid)] if workers_too else run.overhead(agent)
    yield processes.memory_mib(pids, "Pss")


def preloaded_leaks(run: Run, restarts: int) -> Iterator[float]:
    """How many more descriptors the launcher and its helpers have after so many restarts than after the first."""
    agent = run.start(one_host(1), "plain", env=PRELOAD)
    workers = run.wait_world(1)
    before = 0
    for restart in range(restarts):
        failed = run.kill_worker(workers[0])
        workers = run.wait_world(1, after=failed)
        if restart == 0:
            before = processes.descriptors(run.overhead(agent))
    yield processes.descriptors(run.overhead(agent)) - before


# -- cost --------------------------------------------------------------------------------------------------------------
def memory(run: Run, key: str) -> Iterator[float]:
    """Memory of the launcher and its helpers, without workers: "Rss" or "Pss", MiB."""
    agent = run.start(one_host(2), "plain")
    run.wait_world(2)
    run.pause(SETTLE_S)
    yield processes.memory_mib(run.overhead(agent), key)


def memory_worker_store(run: Run, key: str) -> Iterator[float]:
    """Memory of elastic-agent's process that serves the workers' store, while two gloo workers use it: "Rss" or "Pss",
    MiB. A launcher that serves it in its own process has none."""
    agent = run.start(one_host(2), "reduce")
    run.wait_world(2, event="reduced")
    run.pause(SETTLE_S)
    yield processes.memory_mib(processes.called(run.overhead(agent), "elastic-store"), key)


def memory_store_host(run: Run) -> Iterator[float]:
    """RSS of the launcher that hosts the store of two nodes, with its helpers, MiB."""
    port = processes.free_port()
    host, _ = start_nodes(run, port, [many_nodes(port, "2")] * 2, "plain")
    run.wait_world(2)
    run.pause(SETTLE_S)
    yield processes.memory_mib(run.overhead(host), "Rss")


def idle_cpu(run: Run) -> Iterator[float]:
    """CPU of the launcher and its helpers while two workers sleep, percent of one CPU."""
    agent = run.start(one_host(2), "plain")
    run.wait_world(2)
    run.pause(SETTLE_S)
    pids = run.overhead(agent)
    used_s, since = processes.cpu_s(pids), now()
    run.pause(IDLE_WINDOW_S)
    yield (processes.cpu_s(pids) - used_s) / (now() - since) * 100


# -- whether the job continues: seconds until an all_reduce of the new world ------------------------------------------
def gloo_restarts(run: Run, limit_s: float) -> Iterator[float]:
    """Exit of one of two workers with 1; the next two must finish an all_reduce at the first try."""
    run.start(one_host(2), "reduce")
    workers = run.wait_world(2, event="reduced")
    for _ in range(FAILURES_PER_RUN):
        run.pause(random.uniform(*FAST_POLL_S))
        failed = run.order_exit(workers[-1], 1)
        workers = run.wait_world(2, after=failed, event="reduced", limit_s=limit_s, first_try=True)
        yield last_at(workers, "reduced") - failed


def scale_up(run: Run, limit_s: float) -> Iterator[float]:
    """With `--nnodes 1:2` and one node training, a second one starts."""
    port = processes.free_port()
    flags = many_nodes(port, "1:2", *SHORT_LAST_CALL)
    run.start(flags, "train")
    run.wait_world(1, event="reduced")
    run.pause(TRAINING_S)
    joined = run.start(flags, "train").started
    yield last_at(run.wait_world(2, after=joined, event="reduced", limit_s=limit_s), "reduced") - joined


def replacement(run: Run, limit_s: float) -> Iterator[float]:
    """With `--nnodes 2`, one node is killed and another started in its place, again and again."""
    port = processes.free_port()
    flags = many_nodes(port, "2", *SHORT_LAST_CALL)
    _, victim = start_nodes(run, port, [flags] * 2, "train")
    run.wait_world(2, event="reduced")
    for _ in range(FAILURES_PER_RUN // 2):
        run.pause(TRAINING_S)
        lost = run.kill_node(victim)
        victim = run.start(flags, "train")
        yield last_at(run.wait_world(2, after=lost, event="reduced", limit_s=limit_s), "reduced") - lost


def rank0_lost(run: Run, limit_s: float) -> Iterator[float]:
    """With `--nnodes 2:3`, the node with group rank 0 is killed; the store is on another node.

    torchrun ranks nodes by address, elastic-agent by `--node-rank`; the flags ask for the same ranks in both ways.
    Raises BenchError when rank 0 is on the store's host nevertheless.
    """
    port = processes.free_port()
    ranks = (2, 0, 1)  # of the store's host, which starts first, and of the others
    flags = [
        many_nodes(port, "2:3", *SHORT_LAST_CALL, "--local-addr", f"127.0.0.{rank + 1}", "--node-rank", str(rank))
        for rank in ranks
    ]
    agents = start_nodes(run, port, flags, "train")
    first = run.wait_world(3, event="reduced")[0]
    victim = next(agent for agent in agents if agent.node == first.node)
    if run.serves(agents, port) in (victim, None):
        raise BenchError(
            "rank 0 is on the store's host, or no launcher serves the store; this row needs rank 0 on another node"
        )
    run.pause(TRAINING_S)
    lost = run.kill_node(victim)
    yield last_at(run.wait_world(2, after=lost, event="reduced", limit_s=limit_s), "reduced") - lost
