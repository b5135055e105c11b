"""A small cluster for tests: real agents, real workers, and a desk that the workers report to and are ordered from.

Workers are plain Python processes that connect to the desk's Unix socket, say who they are, and do as they are told.
A test never sleeps: it waits for what it expects, with a bound.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKER = str(Path(__file__).parent / "workers" / "obedient.py")
OTHER_PROTOCOL = (
    "from elastic_agent.rendezvous.codec import fields\n"
    "fields.PROTOCOL_VERSION = {}\n"
    "from elastic_agent.launcher.cli import entry\n"
    "entry()\n"
)
"""A program that is the agent of another protocol version."""
BOUND_S = 30.0
"""How long a test waits for what must happen. Generous: the machine may be busy; it is never slept through."""


@dataclass
class Worker:
    """One worker at the desk."""

    link: socket.socket
    env: dict[str, str]
    argv: list[str]
    pid: int
    gone: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)

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
        """`exit N`, `raise TEXT`, `kill SIGNUM`, `ignore SIGNUM`, `spawn` (a child that sleeps), `ping`."""
        self.link.sendall(what.encode() + b"\n")


class Desk:
    """Where workers report. `wait_world(n)` is how tests learn that a round runs."""

    def __init__(self, folder: Path, heard: Callable[[str, Worker], None] | None = None) -> None:
        """`heard` is told of each worker that comes ("hello") or goes ("gone"), on a thread of the desk."""
        self.path = str(folder / "desk.sock")
        self._heard = heard or (lambda what, worker: None)
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
        self._heard("hello", worker)
        try:
            for line in lines:
                with self._changed:
                    worker.said.append(line.strip())
                    self._changed.notify_all()
        except OSError:
            pass  # A killed worker resets its connection.
        with self._changed:
            worker.gone.set()
            self._changed.notify_all()
        self._heard("gone", worker)
        link.close()

    def wait(self, until: Callable[[], Any], what: str, bound_s: float = BOUND_S) -> Any:
        """Wait for a condition about the workers; fails the test after the bound, saying what did not happen."""
        deadline = time.monotonic() + bound_s
        with self._changed:
            while not (found := until()):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    held = [(w.node, w.round, w.rank, w.gone.is_set()) for w in self.workers]
                    raise AssertionError(f"{what} did not happen within {bound_s:g} s; workers seen: {held}")
                self._changed.wait(left_s)
            return found

    def world(self) -> list[Worker]:
        """Live workers of the newest round, by rank; empty unless they are all there."""
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
        self.wait(lambda: all(worker.gone.is_set() for worker in workers), "the end of these workers", bound_s)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            for worker in self.workers:
                if not worker.gone.is_set():
                    worker.link.shutdown(socket.SHUT_RDWR)


class Node:
    """One agent of a cluster, whatever it runs in."""

    name: str

    def wait(self, bound_s: float = BOUND_S) -> int:
        """Exit status of the agent."""
        raise NotImplementedError

    def text(self) -> str:
        """What it told people."""
        raise NotImplementedError

    @property
    def known_as(self) -> str:
        """What other nodes call it."""
        raise NotImplementedError

    def terminate(self, signum: int = signal.SIGTERM) -> None:
        raise NotImplementedError

    def vanish(self) -> None:
        """Die without a word, workers and all."""
        raise NotImplementedError

    def wait_text(self, part: str, bound_s: float = BOUND_S) -> None:
        """Wait until it has told people something containing `part`."""
        raise NotImplementedError


class ProcessNode(Node):
    """An agent as its users start it: a process of its own, on the c10d store or on etcd."""

    def __init__(
        self,
        name: str,
        flags: Sequence[str],
        env: dict[str, str],
        folder: Path,
        start: Sequence[str] = (),
        within: Sequence[str] = (),
    ) -> None:
        """`start`: arguments of Python in place of `-m elastic_agent`. `within`: a command that becomes the one that
        follows it, such as `ip netns exec`."""
        self.name = name
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [*within, sys.executable, *(start or ("-m", "elastic_agent")), *flags],
            env=env, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"test-stderr-{name}")
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def known_as(self) -> str:
        return f"{os.uname().nodename}:{self.process.pid}"

    def wait(self, bound_s: float = BOUND_S) -> int:
        try:
            code = self.process.wait(bound_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"agent {self.name} did not end within {bound_s:g} s; it said:\n{self.text()}"
            ) from None
        self._reader.join(5.0)
        return code

    def text(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def wait_text(self, part: str, bound_s: float = BOUND_S) -> None:
        deadline = time.monotonic() + bound_s
        with self._changed:
            while part not in "".join(self._lines):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise AssertionError(
                        f"agent {self.name} did not say {part!r} in {bound_s:g} s:\n{''.join(self._lines)}"
                    )
                self._changed.wait(left_s)

    def terminate(self, signum: int = signal.SIGTERM) -> None:
        self.process.send_signal(signum)

    def vanish(self) -> None:
        self.process.kill()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5.0)


class ThreadNode(Node):
    """An agent embedded in this process, on a memory store."""

    def __init__(self, name: str, agent: Any) -> None:
        self.name = name
        self.agent = agent
        self._told: list[str] = []
        self._changed = threading.Condition()
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.results: dict[int, Any] | None = None
        self._code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"test-agent-{name}")

    @property
    def known_as(self) -> str:
        return self.name

    def start(self) -> None:
        self._thread.start()

    def tell(self, text: str, routine: bool) -> None:
        with self._changed:
            self._told.append(text + "\n")
            self._changed.notify_all()

    def _run(self) -> None:
        from elastic_agent import AgentError

        try:
            self.results = self.agent.run()
            code = 0
        except AgentError as error:
            self.error, code = error, error.exit_code
            self.tell(f"elastic-agent: exit {code}: {error}", False)
        self._done.put(code)

    def wait(self, bound_s: float = BOUND_S) -> int:
        if self._code is None:
            try:
                self._code = self._done.get(timeout=bound_s)
            except queue.Empty:
                raise AssertionError(
                    f"agent {self.name} did not end in {bound_s:g} s; it said:\n{self.text()}"
                ) from None
            self._thread.join(5.0)
        return self._code

    def text(self) -> str:
        with self._changed:
            return "".join(self._told)

    def wait_text(self, part: str, bound_s: float = BOUND_S) -> None:
        deadline = time.monotonic() + bound_s
        with self._changed:
            while part not in "".join(self._told):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise AssertionError(
                        f"agent {self.name} did not say {part!r} in {bound_s:g} s:\n{''.join(self._told)}"
                    )
                self._changed.wait(left_s)

    def terminate(self, signum: int = signal.SIGTERM) -> None:
        from elastic_agent.agent.lifecycle.events import SignalReceived

        self.agent._agent._loop.post(SignalReceived(signum))

    def vanish(self) -> None:
        """Cut it off from the store and kill its workers: to the others as dead as a machine without power."""
        inner = self.agent._agent
        inner._link.close()
        inner._workers.supervisor.kill()

    def end(self) -> None:
        if self._code is None and self._thread.is_alive():
            self.agent.stop()
            self.agent.stop()
            self.agent.stop()
            self._thread.join(10.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EtcdGuests:
    """Looks at a job's store in etcd from outside, as `MemoryStore` does for the memory backends."""

    def __init__(self, endpoints: Sequence[Any], run_id: str) -> None:
        self._endpoints, self._run_id = endpoints, run_id
        self._made: list[Any] = []

    def guest(self) -> Any:
        from elastic_agent.rendezvous.etcd.store import Location, open_etcd

        self._made.append(open_etcd(self._endpoints, Location(self._run_id)))
        return self._made[-1]

    def close(self) -> None:
        for one in self._made:
            one.close()


class Cluster:
    """Agents of one job on one backend: c10d or etcd (processes), memory or electing memory (threads). The first one
    started hosts the store, where one does."""

    def __init__(self, backend: str, folder: Path, servers: Any = None, **defaults: Any) -> None:
        """`servers`: of etcd, if not those that stand for all tests. `defaults`: for `start`."""
        self.backend = backend
        self.folder = folder
        self.desk = Desk(folder)
        self.nodes: dict[str, Any] = {}
        self._defaults: dict[str, Any] = {
            "nnodes": "1:4",
            "max_restarts": 3,
            "nproc": 1,
            "conf": {},
            "flags": (),
            "worker": WORKER,
            "args": (),
            "env": {},
            **defaults,
        }
        self.run_id = "contract"
        self._endpoint = f"127.0.0.1:{free_port()}"
        if backend == "etcd":
            from support.etcd_servers import VERSIONS, shared_servers

            self.meet_at(servers or shared_servers(VERSIONS[0]))
        else:
            self.store: Any = None
            """The memory backends'; made when the first agent starts, unless a test has put its own here. etcd's."""

    def meet_at(self, servers: Any) -> None:
        """Use these etcd servers, under a run id that nobody had before."""
        self.etcd = servers
        self.run_id = f"contract-{time.monotonic_ns()}"
        self._endpoint = ",".join(map(str, servers.endpoints))
        self.store = EtcdGuests(servers.endpoints, self.run_id)

    def start(self, name: str, **changes: Any) -> Any:
        """Start an agent called `name`. Keywords: nnodes, max_restarts, nproc, conf (rdzv-conf), flags (command line),
        barrier_s, grace_s, node_rank, charge, redirects, policy (fields of LaunchConfig about restarts),
        worker (the script), args (the script's own), env (added to the agent's, which its workers inherit), hosts
        (serve the store, as the first one does), within (processes: a command that becomes the agent's), protocol
        (c10d: the protocol version it claims to speak)."""
        wanted = {**self._defaults, **changes, "conf": {**self._defaults["conf"], **changes.get("conf", {})}}
        starter = self._start_thread if "memory" in self.backend else self._start_process
        node = starter(name, wanted)
        self.nodes[name] = node
        return node

    def _env(self, name: str, wanted: dict[str, Any]) -> dict[str, str]:
        return {"TEST_NODE": name, "TEST_DESK": self.desk.path, "OMP_NUM_THREADS": "1", **wanted["env"]}

    def _start_process(self, name: str, wanted: dict[str, Any]) -> ProcessNode:
        conf = {"last_call_quiet": 0.5, "read_timeout": 30, **wanted["conf"]}
        if self.backend == "c10d":
            conf["is_host"] = int(wanted.get("hosts", not self.nodes))
        flags = [
            "--nnodes", str(wanted["nnodes"]), "--nproc-per-node", str(wanted["nproc"]),
            "--max-restarts", str(wanted["max_restarts"]), "--rdzv-backend", self.backend,
            "--rdzv-endpoint", self._endpoint, "--rdzv-id", self.run_id,
            "--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items()),
            "--log-dir", str(self.folder / f"logs-{name}"),
        ]  # fmt: skip
        for flag, key in (
            ("--exit-barrier-timeout", "barrier_s"),
            ("--shutdown-timeout", "grace_s"),
            ("--node-rank", "node_rank"),
            ("--charge", "charge"),
            ("--redirects", "redirects"),
        ):
            if key in wanted:
                flags += [flag, str(wanted[key])]
        for option, value in wanted.get("policy", {}).items():
            flags += [f"--{option}", str(value)]
        env = {**os.environ, "LOGLEVEL": "INFO", **self._env(name, wanted)}
        start = ("-c", OTHER_PROTOCOL.format(wanted["protocol"])) if "protocol" in wanted else ()
        command = [*flags, *wanted["flags"], wanted["worker"], *wanted["args"]]
        return ProcessNode(name, command, env, self.folder, start, wanted.get("within", ()))

    def _start_thread(self, name: str, wanted: dict[str, Any]) -> ThreadNode:
        from elastic_agent import LaunchConfig
        from elastic_agent.launcher.api import NodeAgent
        from elastic_agent.rendezvous.memory_store import MemoryStore

        hosting = wanted.get("hosts", self.store is None) and self.backend == "memory"
        if self.store is None:
            self.store = MemoryStore(wanted["conf"].get("lease", 5.0) if self.backend == "electing memory" else None)
        low, _, high = str(wanted["nnodes"]).partition(":")
        config = LaunchConfig(
            min_nodes=int(low), max_nodes=int(high or low), nproc_per_node=wanted["nproc"], run_id="contract",
            max_restarts=wanted["max_restarts"], rdzv_configs={"last_call_quiet": 0.5, **wanted["conf"]},
            log_dir=str(self.folder / f"logs-{name}"), shutdown_timeout=wanted.get("grace_s"),
            exit_barrier_timeout=wanted.get("barrier_s"), node_rank=wanted.get("node_rank"),
            charge=wanted.get("charge", "cause"), redirects=wanted.get("redirects", 0),
            env=self._env(name, wanted), **wanted.get("policy", {}),
        )  # fmt: skip
        node = ThreadNode(name, None)
        session = self.store.host() if hosting else self.store.guest()
        node.agent = NodeAgent(config, wanted["worker"], *wanted["args"], store=session, tell=node.tell, name=name)
        node.start()
        return node

    def close(self) -> None:
        for node in self.nodes.values():
            node.end()
        if isinstance(self.store, EtcdGuests):
            self.store.close()
        self.desk.close()
