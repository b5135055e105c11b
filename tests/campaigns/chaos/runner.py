"""Runs one plan, and records what was done and what was seen. Judges nothing.

One thread does everything: it takes from a queue what has happened, and does what is due. The folder then has the plan,
each agent's events and stderr, and `facts.jsonl`: the faults, the orders to workers, and the start and exit of each
worker, with times of the same clock as the agents' events.
"""

from __future__ import annotations

import heapq
import json
import os
import queue
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from support.desk import WORKER, Desk, Worker
from support.harness import ProcessNode
from support.network import free_port
from support.procfs import read, wait_exit

from .leftovers import MARK, locks_held, marked_processes
from .plan import FINISH, HOST, HOSTING, LAUNCH, SERVED, Fault, Plan, Start

HANG_S = 60.0
"""An agent that has not exited so long after the last thing done to the job hangs. The longest timeout of a plan is a
tenth of it."""
ORPHAN_S = 5.0
"""How long the processes of an agent may take to exit after it. The nursery takes less than a second."""
ELECTED = re.compile(r"this node coordinates the job from here on \(epoch (\d+)\)")
"""What a node that was elected to host says."""
LEAST_WORK_S = 0.3
"""How long a worker runs that starts after the others have begun to finish."""
TOLD_S = 3.0
"""`quiet` of a node that may be told where its job goes on: the default."""


class Run:
    """One job, from the first agent to the last."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self._began = time.monotonic()
        self._happened: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._rng = random.Random(plan.seed)
        self._token = f"{os.getpid()}-{plan.seed}-{time.monotonic_ns()}"
        hosts = sum(start.anchor in (LAUNCH, SERVED) for start in plan.starts) if plan.listed else 1
        self._endpoint = ",".join(f"127.0.0.1:{free_port()}" for _ in range(hosts))
        (folder / "locks").mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(plan.as_dict(), indent=1) + "\n")
        self._facts: IO[str] = (folder / "facts.jsonl").open("w")
        self._desk = Desk(folder, self._on_worker)
        self._nodes: dict[str, ProcessNode] = {}
        self._starts = {start.name: start for start in plan.starts}
        self._live: set[str] = set()
        self._frozen: set[str] = set()
        self._reached: set[str] = set()
        self._finish_at: float | None = None
        self._ordered: dict[int, str] = {}
        """How workers were ordered to exit, by process id."""

    def play(self) -> None:
        """Run until every agent has exited, or one hangs; then until all their processes have exited."""
        try:
            self._reach(LAUNCH)
            quiet_since = time.monotonic()
            while self._live or self._due:
                if not self._live and not self._starts_due():
                    break
                done = self._step(quiet_since + HANG_S)
                if not done and time.monotonic() >= quiet_since + HANG_S:
                    self._fact("hang", nodes=sorted(self._live))
                    break
                quiet_since = time.monotonic() if done else quiet_since
        finally:
            self._clean_up()

    def _starts_due(self) -> bool:
        return len(self._nodes) < sum(1 for start in self.plan.starts if start.anchor in self._reached)

    def _step(self, until: float) -> bool:
        """Wait for the next thing to do until `until`, and do it; False if there was none."""
        now = time.monotonic()
        if self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
            return True
        next_due = self._due[0][0] if self._due else until
        try:
            self._happened.get(timeout=max(0.001, min(next_due, until) - now))()
        except queue.Empty:
            return False
        return True

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (when, self._count, act))

    def _fact(self, what: str, **more: Any) -> None:
        self._facts.write(json.dumps({"what": what, "at_s": time.monotonic(), **more}) + "\n")
        self._facts.flush()

    # -- anchors ----------------------------------------------------------------------------------------------------

    def _reach(self, anchor: str) -> None:
        if anchor in self._reached:
            return
        self._reached.add(anchor)
        now = time.monotonic()
        for start in self.plan.starts:
            if start.anchor == anchor:
                self._at(now + start.after_s, lambda start=start: self._start(start))  # type: ignore[misc]
        for fault in self.plan.faults:
            if fault.anchor == anchor:
                self._at(now + fault.after_s, lambda fault=fault: self._inject(fault))  # type: ignore[misc]
        if anchor == "round 1":
            self._finish_at = now + self.plan.work_s

    # -- agents -----------------------------------------------------------------------------------------------------

    def _start(self, start: Start) -> None:
        plan, name = self.plan, start.name
        conf = {
            "join_timeout": plan.join_timeout_s, "last_call_timeout": plan.last_call_s, "quiet": plan.quiet_s,
            "beat": plan.beat_s, "lease": plan.lease_s, "store_grace": plan.store_grace_s, **self._conf(start),
        }  # fmt: skip
        flags = [
            "--nnodes", f"{plan.min_nodes}:{plan.max_nodes}", "--nproc-per-node", str(start.nproc),
            "--max-restarts", str(plan.max_restarts), "--rdzv-backend", plan.store, "--rdzv-endpoint", self._endpoint,
            "--rdzv-id", "chaos", "--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items()),
            "--exit-barrier-timeout", str(plan.barrier_s), "--shutdown-timeout", str(plan.grace_s),
            "--local-addr", "127.0.0.1", "--log-dir", str(self.folder / f"logs-{name}"),
        ]  # fmt: skip
        env = {
            **os.environ, "TEST_NODE": name, "TEST_DESK": self._desk.path, "TEST_LOCKS": str(self.folder / "locks"),
            "LOGLEVEL": "INFO", "OMP_NUM_THREADS": "1", MARK: self._token,
            "ELASTIC_AGENT_EVENTS": str(self.folder / f"events-{name}.jsonl"),
        }  # fmt: skip
        node = self._nodes[name] = ProcessNode(name, [*flags, WORKER], env, self.folder, within=self._within(name))
        self._live.add(name)
        self._fact("start", node=name, pid=node.process.pid, nproc=start.nproc)
        threading.Thread(target=self._await_exit, args=(node,), daemon=True, name=f"chaos-{name}").start()
        if name == HOST and self.plan.store == "c10d":
            threading.Thread(target=self._await_store, args=(node,), daemon=True, name="chaos-store").start()

    def _conf(self, start: Start) -> dict[str, object]:
        """This node's part of --rdzv-conf that concerns the store."""
        if self.plan.listed:
            return {"read_timeout": 12}  # the host may be gone, and the next one not elected
        if self.plan.one_endpoint:
            if start.anchor in (LAUNCH, SERVED):
                return {"read_timeout": 12, "is_host": int(start.name == HOST)}
            # It has the endpoint if that is free by then, as the host's node that is started again, and gets the time
            # to be told of the job that it has by default.
            return {"read_timeout": 12, "quiet": TOLD_S, "last_call_timeout": 2 * TOLD_S}
        return {
            "read_timeout": 12 if start.anchor == LAUNCH else 3,  # during a launch the host is busy with its own start
            "is_host": int(start.name == HOST),
        }

    def _within(self, name: str) -> Sequence[str]:
        """The command that runs this node's command, such as one that enters a network namespace."""
        return ()

    def _await_store(self, node: ProcessNode) -> None:
        node.wait_text("the store answers", HANG_S)
        self._happened.put(lambda: self._reach(SERVED))

    def _await_exit(self, node: ProcessNode) -> None:
        code = node.process.wait()
        self._happened.put(lambda: self._ended(node, code))

    def _ended(self, node: ProcessNode, code: int) -> None:
        self._live.discard(node.name)
        self._fact("ended", node=node.name, code=code, alive=locks_held(self.folder / "locks", node.name))

    # -- workers ----------------------------------------------------------------------------------------------------

    def _on_worker(self, what: str, worker: Worker) -> None:
        act = self._worker_started if what == "hello" else self._worker_exited
        self._happened.put(lambda: act(worker))

    def _worker_started(self, worker: Worker) -> None:
        env = worker.env
        self._fact(
            "worker", node=worker.node, round=worker.round, rank=worker.rank, pid=worker.pid,
            local_rank=int(env["LOCAL_RANK"]), world_size=int(env["WORLD_SIZE"]), restarts=worker.restarts,
            started_s=float(env["TEST_STARTED"]), master=f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}",
            ident=env["ELASTIC_AGENT_NODE"], alive=[name for name in env["TEST_ALIVE"].split(",") if name],
        )  # fmt: skip
        start = self._starts[worker.node]
        if start.ignores_term:
            self._order(worker, f"ignore {int(signal.SIGTERM)}")
        self._reach("round 1")
        self._reach(f"round {worker.round}")
        if self._finish_at is not None:
            at = max(self._finish_at, time.monotonic() + LEAST_WORK_S) + start.finishes_late_s
            self._at(at, lambda: self._finish(worker))

    def _finish(self, worker: Worker) -> None:
        if not worker.gone.is_set() and worker.pid not in self._ordered:
            self._end_worker(worker, "exit 0")
            self._reach(FINISH)

    def _end_worker(self, worker: Worker, how: str) -> None:
        self._ordered[worker.pid] = how
        self._fact("order", node=worker.node, round=worker.round, pid=worker.pid, how=how)
        self._order(worker, how)

    def _order(self, worker: Worker, how: str) -> None:
        try:
            worker.order(how)
        except OSError:
            self._fact("undelivered", node=worker.node, round=worker.round, pid=worker.pid, how=how)

    def _worker_exited(self, worker: Worker) -> None:
        self._fact("exited", node=worker.node, round=worker.round, pid=worker.pid)
        if self._ordered.get(worker.pid) == "exit 0":
            return
        for peer in self._desk.workers:
            fails = peer.round == worker.round and peer.node != worker.node and self._rng.random() < self.plan.echo
            if fails and not peer.gone.is_set() and peer.pid not in self._ordered:
                self._at(time.monotonic() + self._rng.random() * 0.05, lambda peer=peer: self._echo(peer))  # type: ignore[misc]

    def _echo(self, peer: Worker) -> None:
        if not peer.gone.is_set() and peer.pid not in self._ordered:
            self._end_worker(peer, "raise lost my peer")

    # -- faults -----------------------------------------------------------------------------------------------------

    def _inject(self, fault: Fault) -> None:
        if fault.node == HOSTING:
            host = self._host()  # or, where it is dead, who is likely to be the next
            fault = replace(fault, node=host if host in self._live else next(iter(sorted(self._live)), host))
        if fault.node not in self._live or (fault.kind == "freeze" and fault.node in self._frozen):
            self._fact("fault skipped", fault=fault.ident, kind=fault.kind, node=fault.node)
            return
        if fault.kind == "crash":
            self._crash(fault)
            return
        hosts = self.plan.followed and fault.node == self._host()
        self._fact("fault", fault=fault.ident, kind=fault.kind, node=fault.node, hosts=hosts)
        process = self._nodes[fault.node].process
        if fault.kind == "freeze":
            self._frozen.add(fault.node)
            self._at(time.monotonic() + fault.for_s, lambda: self._thaw(fault.node))
        process.send_signal({"kill": signal.SIGKILL, "term": signal.SIGTERM, "freeze": signal.SIGSTOP}[fault.kind])

    def _host(self) -> str:
        """Name of the node that hosts the store, as the messages of the agents say: the last that was elected."""
        elected = {name: [int(epoch) for epoch in ELECTED.findall(node.text())] for name, node in self._nodes.items()}
        return max(elected, key=lambda name: max(elected[name], default=int(name == HOST)))

    def _thaw(self, name: str) -> None:
        self._frozen.discard(name)
        if name in self._live:
            self._fact("thaw", node=name)
            self._nodes[name].process.send_signal(signal.SIGCONT)

    def _crash(self, fault: Fault) -> None:
        alive = [each for each in self._desk.workers if each.node == fault.node and not each.gone.is_set()]
        able = [each for each in alive if each.pid not in self._ordered]
        if not able:
            self._fact("fault skipped", fault=fault.ident, kind=fault.kind, node=fault.node)
            return
        self._fact("fault", fault=fault.ident, kind=fault.kind, node=fault.node)
        self._end_worker(able[-1], fault.how)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        for name in self._live:
            self._nodes[name].process.send_signal(signal.SIGCONT)
        hung = bool(self._live)
        for node in self._nodes.values():
            node.end()
            (self.folder / f"stderr-{node.name}.txt").write_text(node.text())
        left = [] if hung else marked_processes(self._token)
        deadline = time.monotonic() + ORPHAN_S
        for pid in left:
            wait_exit(pid, deadline)
        for pid in marked_processes(self._token):
            self._fact("orphan", pid=pid, command=read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode())
            os.kill(pid, signal.SIGKILL)
        while not self._happened.empty():
            self._happened.get()()
        self._facts.close()
        self._desk.close()
        Path(self._desk.path).unlink()
