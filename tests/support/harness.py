"""A small cluster for tests: real agents, in processes or threads, with real workers that a desk steers.

A test never sleeps: it waits for what it expects, with a bound.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.desk import BOUND_S, WORKER, Desk, Worker
from support.network import free_port

OTHER_PROTOCOL = (
    "from elastic_agent.rendezvous.codec import fields\n"
    "fields.PROTOCOL_VERSION = {}\n"
    "from elastic_agent.launcher.cli import entry\n"
    "entry()\n"
)
"""A Python program: the agent, with another protocol version."""
QUIET_S = 1.5
"""A first round waits so long for a node that was started at the same time: one tries again each 0.5 s until the other
serves the store, and a busy host halts both."""
SHORT_LEASE_S = 2.0
SHORT_LEASE = {"beat": 0.4, "lease": SHORT_LEASE_S}
"""`conf` for `Cluster.start`: a node is lost 2 s after its last heartbeat."""


class Node:
    """One agent of a cluster, in a process of its own or in a thread of the test."""

    name: str

    def wait(self, bound_s: float = BOUND_S) -> int:
        """Wait until the agent has ended; its exit status."""
        raise NotImplementedError

    def text(self) -> str:
        """Its messages until now."""
        raise NotImplementedError

    def last_line(self) -> str:
        """The last line of its messages: why it ended, if it has."""
        return self.text().splitlines()[-1]

    @property
    def known_as(self) -> str:
        """The node's name in records and messages."""
        raise NotImplementedError

    def terminate(self, signum: int = signal.SIGTERM) -> None:
        raise NotImplementedError

    def vanish(self) -> None:
        """End without announcing it, workers included."""
        raise NotImplementedError

    def wait_text(self, part: str, bound_s: float = BOUND_S) -> None:
        """Wait until its messages contain `part`."""
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

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self, bound_s: float = BOUND_S) -> int:
        try:
            code = self.process.wait(bound_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"agent {self.name} did not end within {bound_s:g} s; its messages:\n{self.text()}"
            ) from None
        self._reader.join(BOUND_S)
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
                        f"agent {self.name} wrote no {part!r} within {bound_s:g} s:\n{''.join(self._lines)}"
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
        self._messages: list[str] = []
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
            self._messages.append(text + "\n")
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
                    f"agent {self.name} did not end within {bound_s:g} s; its messages:\n{self.text()}"
                ) from None
            self._thread.join(5.0)
        return self._code

    def text(self) -> str:
        with self._changed:
            return "".join(self._messages)

    def wait_text(self, part: str, bound_s: float = BOUND_S) -> None:
        deadline = time.monotonic() + bound_s
        with self._changed:
            while part not in "".join(self._messages):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise AssertionError(
                        f"agent {self.name} wrote no {part!r} within {bound_s:g} s:\n{''.join(self._messages)}"
                    )
                self._changed.wait(left_s)

    def terminate(self, signum: int = signal.SIGTERM) -> None:
        from elastic_agent.agent.lifecycle.events import SignalReceived

        self.agent._agent._loop.post(SignalReceived(signum))

    def vanish(self) -> None:
        """Cut it off from the store and kill its workers. Other nodes see the same when a host loses power."""
        inner = self.agent._agent
        inner.link.close()
        inner.workers.supervisor.kill()

    def end(self) -> None:
        if self._code is None and self._thread.is_alive():
            self.agent.stop()
            self.agent.stop()
            self.agent.stop()
            self._thread.join(10.0)


class EtcdGuests:
    """Opens a job's store in etcd from outside the job. `guest` is as that of `MemoryStore`."""

    def __init__(self, endpoints: Sequence[Any], run_id: str) -> None:
        self.endpoints, self._run_id = endpoints, run_id
        self._made: list[Any] = []

    def guest(self) -> Any:
        from elastic_agent.rendezvous.etcd.store import Location, open_etcd

        self._made.append(open_etcd(self.endpoints, Location(self._run_id)))
        return self._made[-1]

    def close(self) -> None:
        for one in self._made:
            one.close()


class Cluster:
    """Agents of one job on one backend: c10d or etcd (processes), memory or electing memory (threads).

    On c10d and memory the first agent started hosts the store.
    """

    def __init__(self, backend: str, folder: Path, servers: Any = None, **defaults: Any) -> None:
        """`servers`: etcd servers of the test's own, in place of those shared by all tests. `defaults`: for `start`."""
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
        self.endpoint = f"127.0.0.1:{free_port()}"
        if backend == "etcd":
            from support.etcd_servers import VERSIONS, shared_servers

            self.meet_at(servers or shared_servers(VERSIONS[0]))
        else:
            self.store: Any = None
            """The memory store, made with the first agent unless a test has set its own; on etcd `EtcdGuests`."""

    def meet_at(self, servers: Any) -> None:
        """Use these etcd servers, under a new run id."""
        self.etcd = servers
        self.run_id = f"contract-{time.monotonic_ns()}"
        self.endpoint = ",".join(map(str, servers.endpoints))
        self.store = EtcdGuests(servers.endpoints, self.run_id)

    def start(self, name: str, **changes: Any) -> Any:
        """Start an agent called `name`. Keywords: nnodes, max_restarts, nproc, conf (rdzv-conf), flags (command line),
        barrier_s, grace_s, node_rank, charge, redirects, policy (fields of LaunchConfig about restarts),
        worker (the script), args (the script's own), env (added to the agent's, which its workers inherit), hosts
        (serve the store, as the first one does), within (processes: a command that becomes the agent's), protocol
        (processes: the agent's protocol version), endpoint (processes: in place of the store's own), on_event (threads:
        takes what happens to the agent)."""
        wanted = {**self._defaults, **changes, "conf": {**self._defaults["conf"], **changes.get("conf", {})}}
        starter = self._start_thread if "memory" in self.backend else self._start_process
        node = starter(name, wanted)
        self.nodes[name] = node
        return node

    def finish(self) -> None:
        """Let every live worker exit 0."""
        for worker in self.desk.world():
            worker.order("exit 0")

    def assert_undisturbed(self, world: Sequence[Worker]) -> None:
        """These workers still run, and no others were ever started."""
        for worker in world:
            self.desk.ask(worker, "ping")
        assert {worker.pid for worker in self.desk.workers} == {worker.pid for worker in world}

    def _env(self, name: str, wanted: dict[str, Any]) -> dict[str, str]:
        return {"TEST_NODE": name, "TEST_DESK": self.desk.path, "OMP_NUM_THREADS": "1", **wanted["env"]}

    def _start_process(self, name: str, wanted: dict[str, Any]) -> ProcessNode:
        conf = {"last_call_quiet": QUIET_S, "read_timeout": 30, **wanted["conf"]}
        if self.backend == "c10d" and "," not in wanted.get("endpoint", self.endpoint):
            conf["is_host"] = int(wanted.get("hosts", not self.nodes))
        flags = [
            "--nnodes", str(wanted["nnodes"]), "--nproc-per-node", str(wanted["nproc"]),
            "--max-restarts", str(wanted["max_restarts"]), "--rdzv-backend", self.backend,
            "--rdzv-endpoint", wanted.get("endpoint", self.endpoint), "--rdzv-id", self.run_id,
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
        env.setdefault("ELASTIC_AGENT_SUMMARY", str(self.folder / f"summary-{name}.json"))
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
        handler = {"on_event": wanted["on_event"]} if "on_event" in wanted else {}
        session = self.store.host() if hosting else self.store.guest()
        node.agent = NodeAgent(
            config, wanted["worker"], *wanted["args"], store=session, tell=node.tell, name=name, **handler
        )
        node.start()
        return node

    def close(self) -> None:
        for node in self.nodes.values():
            node.end()
            sys.stdout.write(f"-- node {node.name}\n{node.text()}")  # shown with a test that failed
        if isinstance(self.store, EtcdGuests):
            self.store.close()
        self.desk.close()
