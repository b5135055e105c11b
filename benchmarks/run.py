"""One run of one launcher: its processes, its directory, and what its workers report.

Single-threaded: reports on the FIFO and exits on pidfds are read while the harness waits, and it always waits in
`Run.wait` or `Run.pause`. Workers are identified by their own reports, never by their parents: a launcher may start
them from a helper process.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar, final

from . import processes
from .launchers import Launcher

T = TypeVar("T")
WORKER = str(Path(__file__).resolve().parent / "scripts" / "worker.py")

START_LIMIT_S = 60.0
"""How long a launcher may take from its start to running workers (torchrun with a last call takes 31 s)."""
LISTEN_CHECK_S = 0.01
"""Pause between checks of the rendezvous port; there is no event when another process begins to listen."""

now = time.monotonic


class BenchError(Exception):
    """The launcher did not get to the state that the row needs."""


@dataclass
class Agent:
    """A launcher process of this run; one per simulated node."""

    node: int
    """Counts the launchers of the run from 0, in the order of their start; its workers report it."""
    pid: int
    started: float
    """Monotonic time just before its fork."""
    stderr: Path
    ended: float | None = None
    code: int | None = None
    """Exit status once ended; negative is a signal."""
    killed: bool = False
    """The harness has killed it."""

    def error_excerpt(self) -> str:
        """The last line of its stderr with an error, else its end, as one line of at most 300 characters."""
        text = self.stderr.read_text(errors="replace").strip()
        errors = [line for line in text.splitlines() if "Error" in line]
        return (errors[-1] if errors else text[-300:]).replace("\n", " | ")[:300]


@dataclass
class Worker:
    """A worker process, as it reported itself."""

    pid: int
    node: int
    rank: int
    world: int
    at: dict[str, float] = field(default_factory=dict)
    """Monotonic time of each of its reports: first (its first line), writing, written, reduced, exiting."""
    ended: float | None = None


@final
class Run:
    """Use it as a context manager: it leaves no process, descriptor or file behind."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.agents: list[Agent] = []
        self.workers: dict[int, Worker] = {}
        self.other_cpus = 0.0
        """After the run: how many CPUs other programs used during it."""
        self._dir = Path(tempfile.mkdtemp(prefix="bench-"))
        os.mkfifo(self._dir / "events")
        self._events = os.open(self._dir / "events", os.O_RDWR | os.O_NONBLOCK)
        self._half_line = b""
        self._epoll = select.epoll()
        self._epoll.register(self._events, select.EPOLLIN)
        self._watched: dict[int, Agent | Worker] = {}
        self._before = (now(), processes.host_cpu_s(), processes.own_cpu_s())

    def __enter__(self) -> Run:
        return self

    @property
    def directory(self) -> Path:
        """A directory for files of this run, removed with it."""
        return self._dir

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        processes.end_descendants()
        wall_s = now() - self._before[0]
        used_s = processes.host_cpu_s() - self._before[1] - (processes.own_cpu_s() - self._before[2])
        self.other_cpus = max(0.0, used_s) / wall_s
        for fd in (*self._watched, self._events):
            os.close(fd)
        self._epoll.close()
        shutil.rmtree(self._dir)

    # -- starting ------------------------------------------------------------------------------------------------------
    def start(
        self, flags: Sequence[str], mode: str, console: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Agent:
        """Start one launcher whose workers run `worker.py MODE`, with `env` added to its environment. Its stdout goes
        to the file `console`, or nowhere."""
        number = len(self.agents)
        stderr = self._dir / f"agent{number}.err"
        argv = [*self.launcher.argv, *flags, WORKER, mode]
        with open(stderr, "wb") as err, open(console or os.devnull, "wb") as out:
            started = now()
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**self._env(number), **(env or {})},
                cwd=self._dir,
                start_new_session=True,
            )
        child.returncode = 0  # reaped by _record_exit; subprocess must not wait for it too
        agent = Agent(number, child.pid, started, stderr)
        self.agents.append(agent)
        self._watch(agent)
        return agent

    def _env(self, node: int) -> dict[str, str]:
        """A small clean environment, so that the harness's own does not matter."""
        env = {name: os.environ[name] for name in ("HOME", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
        tmp = self._dir / f"tmp{node}"
        tmp.mkdir(exist_ok=True)
        path = os.path.dirname(sys.executable) + ":" + os.environ.get("PATH", "/usr/bin:/bin")
        own = {"PATH": path, "TMPDIR": str(tmp), "BENCH_DIR": str(self._dir), "BENCH_NODE": str(node)}
        return {**env, "OMP_NUM_THREADS": "1", **own, **self.launcher.env}

    def wait_listening(self, port: int) -> None:
        """Wait until a process listens on this port. Raises BenchError."""
        end = now() + START_LIMIT_S
        while not processes.listening_inodes(port):
            if now() > end:
                raise BenchError(f"no process listens on port {port} after {START_LIMIT_S} s")
            self._check_agents()
            self.pause(LISTEN_CHECK_S)

    # -- observing -----------------------------------------------------------------------------------------------------
    def _watch(self, process: Agent | Worker) -> None:
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            process.ended = now()
            return
        self._watched[fd] = process
        self._epoll.register(fd, select.EPOLLIN)

    def _observe(self, timeout_s: float) -> None:
        for fd, _ in self._epoll.poll(max(0.0, timeout_s)):
            if fd == self._events:
                *lines, self._half_line = (self._half_line + os.read(fd, 1 << 16)).split(b"\n")
                for line in lines:
                    self._record_report(dict(word.split("=", 1) for word in line.decode().split(" ")))
            else:
                self._record_exit(fd)

    def _record_exit(self, fd: int) -> None:
        process = self._watched.pop(fd)
        process.ended = now()
        self._epoll.unregister(fd)
        os.close(fd)
        if isinstance(process, Agent):
            process.code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])

    def _record_report(self, report: dict[str, str]) -> None:
        pid = int(report["pid"])
        if report["event"] == "first":
            self.workers[pid] = Worker(pid, int(report["node"]), int(report["rank"]), int(report["world"]))
            self._watch(self.workers[pid])
        self.workers[pid].at[report["event"]] = float(report["t"])

    # -- waiting -------------------------------------------------------------------------------------------------------
    def wait(self, found: Callable[[], T | None], limit_s: float, what: str) -> T:
        """Block until `found` returns something. Raises BenchError naming `what` after `limit_s`."""
        end = now() + limit_s
        while (value := found()) is None:
            left_s = end - now()
            if left_s <= 0:
                raise BenchError(f"no {what} within {limit_s:g} s")
            self._observe(left_s)
        return value

    def pause(self, seconds: float) -> None:
        """Let this much time pass, while reports and exits are recorded."""
        end = now() + seconds
        while (left_s := end - now()) > 0:
            self._observe(left_s)

    def _check_agents(self) -> None:
        for agent in self.agents:
            if agent.ended is not None and not agent.killed:
                raise BenchError(f"the launcher of node {agent.node} exited with {agent.code}: {agent.error_excerpt()}")

    def world(self, size: int, after: float, event: str) -> list[Worker] | None:
        """Live workers that started after `after`, form a complete world and sent this report, by rank; or None."""
        ranks: dict[int, Worker] = {}
        for worker in self.workers.values():
            if worker.at["first"] > after and worker.ended is None and worker.world == size and event in worker.at:
                ranks[worker.rank] = worker
        return [ranks[rank] for rank in sorted(ranks)] if len(ranks) == size else None

    def wait_world(
        self,
        size: int,
        *,
        after: float = 0.0,
        event: str = "first",
        limit_s: float = START_LIMIT_S,
        first_try: bool = False,
    ) -> list[Worker]:
        """Wait for `world`. Raises BenchError after `limit_s`, or at once when a launcher exits; with `first_try`, also
        when a worker that started after `after` exits."""

        def found() -> list[Worker] | None:
            self._check_agents()
            if first_try and any(w.at["first"] > after and w.ended is not None for w in self.workers.values()):
                raise BenchError("a worker of the new world exited")
            return self.world(size, after, event)

        return self.wait(found, limit_s, f"complete world of {size} with report '{event}'")

    # -- acting --------------------------------------------------------------------------------------------------------
    def order_exit(self, worker: Worker, status: int) -> float:
        """Order a worker to exit; returns the monotonic time at which it did."""
        self.order(worker, f"exit {status}")
        return self.wait(lambda: worker.at.get("exiting"), 10.0, "exit of the worker that was ordered to")

    def order(self, worker: Worker, command: str) -> None:
        """Send a worker a command; it must have answered the one before."""
        fd = os.open(self._dir / f"commands.{worker.pid}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(fd, f"{command}\n".encode())
        finally:
            os.close(fd)

    def kill_worker(self, worker: Worker) -> float:
        """SIGKILL one worker; returns the monotonic time."""
        at = now()
        processes.kill([worker.pid])
        return at

    def kill_node(self, agent: Agent) -> float:
        """SIGKILL a launcher, its helpers and its workers at once, as a lost node; returns the monotonic time."""
        victims = [agent.pid, *processes.descendants(agent.pid)]
        victims += [w.pid for w in self.workers.values() if w.node == agent.node and w.ended is None]
        agent.killed = True
        at = now()
        processes.kill(dict.fromkeys(victims))
        return at

    def overhead(self, agent: Agent) -> list[int]:
        """The launcher's own processes: itself and its helpers, without workers and what workers started."""
        return [agent.pid, *(set(processes.descendants(agent.pid)) - self._worker_trees())]

    def _worker_trees(self) -> set[int]:
        trees: set[int] = set()
        for worker in self.workers.values():
            trees.update((worker.pid, *processes.descendants(worker.pid)))
        return trees

    def serves(self, agents: Iterable[Agent], port: int) -> Agent | None:
        """The launcher that listens on this port, itself or by a helper; None if none does."""
        inodes = processes.listening_inodes(port)
        for agent in agents:
            if any(processes.holds_socket(pid, inodes) for pid in self.overhead(agent)):
                return agent
        return None
