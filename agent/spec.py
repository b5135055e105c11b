"""What a node runs: the frozen specification that the launcher passes to the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..proto.frozen import dataclass, field
from ..rendezvous.records import Survivor
from .lifecycle.restart_policy import Policy
from .lifecycle.stop_ladder import LEFTOVER_S, Leftovers

NUMA_MODES = ("node", "socket", "exclusive", "core-complex")
"""How workers are bound to CPUs; see `processes/numa.py`."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The size limit of log files, and how many full ones are kept."""

    limit: int
    """Bytes; a file that would become larger is renamed to its name and a number, from 1."""
    keep: int | None = None
    """How many renamed files are kept, the latest; None: all."""


@dataclass(frozen=True, slots=True)
class LogSpec:
    """Where workers' output goes, in torchrun's terms (torch 2.13, `torch.distributed.run --help`).

    Per local rank, bit 1 is stdout and bit 2 is stderr, so 3 is both; ranks not named get 0.
    """

    base_dir: str | None = None
    """Absolute directory under which the job's directory is made; None: a new temporary one; "/dev/null": no files."""
    redirects: Mapping[int, int] = field(default_factory=dict)
    tee: Mapping[int, int] = field(default_factory=dict)
    local_ranks_filter: frozenset[int] = frozenset()
    """Only these local ranks reach the console; empty: all."""
    stdout_filters: tuple[str, ...] = ()
    """Lines of tee'd streams with one of these substrings are copied to filtered_stdout.log."""
    stderr_filters: tuple[str, ...] = ()
    prefix_template: str = "[${role_name}${local_rank}]:"
    """Prefix of tee'd lines; may hold ${role_name} or ${role}, ${local_rank}, ${rank}, ${host}, ${round}, ${time}."""
    rotation: Rotation | None = None
    """None: a file grows as long as its round lasts."""
    reify: Callable[[dict[int, dict[str, str]]], Any] | None = None
    """torch's `LogsSpecs.reify` of another package, called before each round with the workers' environments; what it
    returns, torch's `LogsDest`, takes the place of the layout and of the other fields but filters and prefix."""


@dataclass(frozen=True, slots=True)
class GuardSpec:
    """What people may ask of a running job by files and signals."""

    kill_switch: str = ""
    """Absolute path of a file that ends the job; empty: none."""
    save_switch: str = ""
    """Absolute path of a file that makes one checkpoint and is removed; empty: none."""
    kill_signal: int = 0
    """A signal to this agent that does the same as `kill_switch`; 0: none."""
    save_signal: int = 0
    """The same for `save_switch`."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One node's workers."""

    argv: tuple[str, ...]
    """Command of a worker; `${local_rank}` in an argument is replaced."""
    title: str
    """Its name in the failure summary: the script's or the function's."""
    run_id: str
    count_workers: Callable[[], int]
    """Called before every round: how many workers this node has room for."""
    role: str = "default"
    restarts: Policy = field(default_factory=Policy)
    """When failed workers are started again."""
    charge: str = "cause"
    """Whose failures count against `max_restarts`: "cause", those that this node's workers caused; "local",
    all of its own workers, as torchrun counts."""
    grace_s: float = 30.0
    """Between the first stop signal and SIGKILL."""
    term_settle_s: float | None = None
    """How long workers may save first, where this agent gets SIGTERM; None: half of `grace_s`."""
    base_env: Mapping[str, str] = field(default_factory=dict)
    """Environment that the worker's variables are laid over."""
    virtual_local_rank: bool = False
    preload: tuple[str, ...] = ()
    """Modules to import once, before workers are forked; only "auto": those that the script imports. Empty: plain
    starts."""
    numa: str = ""
    """One of `NUMA_MODES`; empty: workers may use the CPUs that this process may."""
    numa_optional: bool = False
    """Start a worker unbound where binding it fails."""
    logs: LogSpec = field(default_factory=LogSpec)
    signals: tuple[int, ...] = (15, 2, 1, 3)
    """Signals that stop this agent (--signals-to-handle)."""
    signals_named: bool = False
    """The user has named them, so that they stop it even if they were ignored when it started; except SIGHUP."""
    forward_signals: tuple[int, ...] = ()
    """Signals passed on to the workers, which stop nothing; none of `signals`."""
    guards: GuardSpec = field(default_factory=GuardSpec)
    leftovers: Leftovers = Leftovers.STOP
    """What becomes of processes that workers left behind when all exited 0."""
    leftover_s: float = LEFTOVER_S
    """How long these may run on before they are stopped."""
    stuck_s: float = 0.0
    """How long a worker may be in uninterruptible sleep before this node leaves the job; 0: nobody looks."""
    orphan_grace_s: float = 0.0
    """Between SIGTERM and SIGKILL for workers whose agent was killed. 0: SIGKILL at once."""
    own_directories: tuple[str, ...] = ()
    """Directories that this agent has made, for its workers to write into or for its control socket, and removes: the
    guardian, which outlives it, does if the agent is killed. Files, no directories, are in them."""
    control: str = ""
    """Where other hosts reach this agent's control service: HOST:PORT, :PORT on a wildcard address; empty: nowhere."""
    worker_store: str = "agent"
    """Who serves the workers' store at MASTER_ADDR:MASTER_PORT: "agent", a process beside the agent of group rank 0;
    "rank0", the worker of rank 0."""
    master_addr: str | None = None
    master_port: int | None = None
    """Static rendezvous of a single node: what workers get as MASTER_ADDR and MASTER_PORT, every round."""


PASSWORD_VARIABLE = "ELASTIC_AGENT_ETCD_PASSWORD"
"""Variable with the password of etcd's user, instead of a file. No process that the agent starts gets it."""


@dataclass(frozen=True, slots=True)
class EtcdSpec:
    """How an etcd cluster is reached, and which keys of it belong to this job."""

    prefix: str = "/elastic-agent"
    """All keys of all jobs begin with it."""
    record_ttl_s: float = 24 * 3600.0
    """How long the record of an ended job stays, in seconds."""
    tls: bool = False
    ca_file: str = ""
    """Certificate authorities for the servers' certificates; empty: those that this system trusts."""
    cert_file: str = ""
    """This client's certificate, where the cluster asks for one."""
    key_file: str = ""
    user: str = ""
    """Empty: the cluster has no users."""
    password: str = field(default="", repr=False)
    password_file: str = ""
    """Holds the password instead, and is read at each login."""


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A rendezvous handler of another package."""

    name: str
    """Its name among the entry points `torchrun.handlers`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its parameters: all of --rdzv-conf."""


@dataclass(frozen=True, slots=True)
class RendezvousSpec:
    """How this node finds the other nodes. Times in seconds."""

    backend: str = "memory"
    """memory (one host), c10d, etcd, handler; given: a session of the caller's own, which has no fences."""
    endpoint: str = ""
    """HOST:PORT; several with commas between: the servers of etcd, or the nodes that may host a c10d store."""
    etcd: EtcdSpec = field(default_factory=EtcdSpec)
    handler: HandlerSpec | None = None
    """Who brings the nodes together, where the backend is `handler`."""
    run_id: str = "none"
    command: tuple[str, ...] = ()
    """Script and arguments as the user gave them; they must be the same on all nodes of a job."""
    nproc: str = "number"
    """How this node's workers are counted: "number", or the name of a device; as `JobSpec.nproc`."""
    min_nodes: int = 1
    max_nodes: int = 1
    local_addr: str | None = None
    node_rank: int | None = None
    static: bool = False
    """Static rendezvous: group ranks are exactly the nodes' --node-rank, node 0 hosts the store."""
    is_host: bool | None = None
    """Whether this node hosts the c10d store; None: find out by binding the endpoint."""
    join_timeout_s: float = 600.0
    last_call_timeout_s: float = 30.0
    quiet_s: float = 3.0
    """Last call ends when no new node has joined for this long."""
    beat_s: float = 1.0
    lease_s: float = 5.0
    """A node without a heartbeat for this long is lost."""
    survivor: Survivor = Survivor.WAIT
    """On c10d: who replaces a host of the store that is silent for a lease."""
    store_grace_s: float = 30.0
    """How long workers go on while the store does not answer."""
    connect_timeout_s: float = 60.0
    """How long to wait for a store at the endpoint (rdzv-conf read_timeout)."""
    settle_s: float = 60.0
    """Before a planned change workers that use `elastic_agent.worker` reach a step boundary and save, for at most so
    long; 0: they are stopped at once."""
    exit_barrier_s: float = 300.0

    @property
    def elects(self) -> bool:
        """Whether the store elects the node that coordinates; else the node that hosts it does."""
        return self.backend == "etcd"

    @property
    def fences(self) -> bool:
        """Whether workers that are cut off end before a round begins without them."""
        return self.backend in ("c10d", "etcd")

    @property
    def succeeds(self) -> bool:
        """Whether another node may host the c10d store, should its host be killed."""
        return self.listed or (self.backend == "c10d" and self.max_nodes > 1 and not self.static)

    @property
    def outvotes(self) -> bool:
        """Whether a silent host of the c10d store is replaced by more than half of its voters. It takes three."""
        return self.survivor is not Survivor.WAIT and self.max_nodes > 2

    @property
    def listed(self) -> bool:
        """Whether --rdzv-endpoint lists the nodes that may host the c10d store."""
        return self.backend == "c10d" and "," in self.endpoint
