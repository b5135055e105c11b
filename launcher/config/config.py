"""`LaunchConfig`, what a user may ask for under torchrun's names, and `plan`, which checks it.

`plan` checks each field, and the fields against each other, and returns the two frozen specifications from which the
agent works. No code behind it reads a flag or one of the variables that set a flag's default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ...agent.errors import UsageError
from ...agent.exit_status import NO_RESTART
from ...agent.lifecycle.restart_policy import Policy
from ...agent.spec import PASSWORD_VARIABLE, LogSpec, RendezvousSpec, Rotation, WorkerSpec
from ...proto.endings import COMMAND
from ...proto.frozen import dataclass, field
from ..preemption.completion import digest_of
from . import torch_fields, values
from .devices import count_local_workers, counting_rule, counts_anew, share_cpus
from .ending_flags import ending_variables
from .field_kinds import in_kind
from .guard_flags import check_addresses, check_control, check_watches, guards, ignored_signals
from .rendezvous_choice import Choice, choose_rendezvous
from .worker_command import job_command

LONGEST_RUN_ID = 200
"""Characters of a run id: it becomes part of a directory's name, and names are limited to 255 bytes."""

CHARGES = ("cause", "local")
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""torchrun's default of --signals-to-handle."""
WORKER_STORES = ("agent", "rank0")
EXACT_RESUME = "ELASTIC_AGENT_EXACT_RESUME"
"""The variable by which workers know of --exact-resume; `worker/frameworks/switch.py` reads it."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How to launch a job on this node. Names and meanings are torchrun's; times are in seconds.

    Defaults are those of the command line, except that `max_restarts` is 3, as in torch's own `LaunchConfig`.
    """

    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int | str | Callable[[], int] = 1
    """Workers on this node: a number, or auto, cpu, gpu, xpu, or a function. Devices are counted, and the function is
    called, before every round."""
    run_id: str = "none"
    """Identity of the job, the same on all its nodes; at most 200 characters. Empty: a random one."""
    role: str = "default"
    rdzv_backend: str = ""
    """static, c10d, etcd, or empty: c10d if there is an endpoint, else static. A static job of one node that has no
    master port is this node alone."""
    rdzv_endpoint: str = ""
    """HOST[:PORT] of the store (c10d's default port is 29400), or of etcd's servers, with commas (2379)."""
    rdzv_configs: Mapping[str, str | int | float] = field(default_factory=dict)
    """As --rdzv-conf; `rdzv_conf.KEYS` lists the keys."""
    standalone: bool = False
    """This node alone; the other rendezvous fields are ignored."""
    max_restarts: int = 3
    """How many failures of its own workers this node may answer with a restart."""
    charge: str = "cause"
    """Which failures cost a restart: "cause", those that this node's workers caused; "local", all failures of its
    workers, as torchrun counts."""
    restart_window: float = 0.0
    """Only failures of the last so many seconds count against `max_restarts`; 0: those of the whole job."""
    restart_backoff: str | float | Sequence[float] = 0.0
    """Pauses of a crash loop: MIN, "MIN:MAX" or (MIN, MAX); MAX is 60, or MIN if that is more; 0: no pauses."""
    no_restart_codes: str | Iterable[int] = (NO_RESTART,)
    """Exit codes by which a worker forbids a restart."""
    startup_window: float = 30.0
    """A worker that fails within this time of its start is reported to have failed in its start-up."""
    monitor_interval: float = 0.1
    """Accepted, because torchrun has it. Without effect: nothing polls."""
    start_method: str = "spawn"
    """Only "spawn": each worker is a new interpreter."""
    log_dir: str | os.PathLike[str] | None = None
    """Directory for the files of workers' output; None: a new temporary one; "/dev/null": no files."""
    redirects: str | int | Mapping[int, int] = 0
    """Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, "0:1,1:3" or a mapping."""
    tee: str | int | Mapping[int, int] = 0
    """Streams that go to files and the console; written as `redirects`."""
    log_rotate: str | Rotation = ""
    """How large a log file may become, "SIZE", and how many full ones are kept, "SIZE:KEEP"; empty: no limit."""
    local_ranks_filter: str | Iterable[int] = ""
    """Local ranks whose output reaches the console; empty: all."""
    duplicate_stdout_filters: str | Iterable[str] = ()
    duplicate_stderr_filters: str | Iterable[str] = ()
    log_line_prefix_template: str | None = None
    """Prefix of tee'd lines; None: `LogSpec.prefix_template`."""
    local_addr: str | None = None
    node_rank: int | None = None
    """static: this node's group rank, None is 0; else the rank that this node prefers, None is no preference."""
    master_addr: str = "127.0.0.1"
    """static without an endpoint: address of node 0."""
    master_port: int | None = None
    """static without an endpoint: port of node 0; None is 29500."""
    signals_to_handle: str | Iterable[int] = SIGNALS
    """Signals that stop the job on this node, as names or numbers. Others than the default stop it even if they were
    ignored when the agent started; except SIGHUP, which nohup ignores."""
    forward_signals: str | Iterable[int] = ()
    """Signals passed on to the workers without stopping anything, as names or numbers."""
    kill_switch: str | os.PathLike[str] = ""
    """A file that ends the job once it exists: all ranks save at their next step, every agent ends with 83."""
    save_switch: str | os.PathLike[str] = ""
    """A file that is removed once it exists, and has all ranks save at their next step; its first line is the label."""
    kill_signal: str | int = ""
    """A signal to any agent that does the same as `kill_switch`, as a name or a number."""
    save_signal: str | int = ""
    """The same for `save_switch`."""
    shutdown_timeout: float | None = None
    """Time between a worker's first stop signal and SIGKILL; None: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30."""
    leftovers: str = "stop"
    """What becomes of processes that workers left behind when all exited 0: "stop", they have 30 s to end, or with
    "stop:SECONDS" another time, then they are stopped; "wait"; "keep", they run on."""
    settle_timeout: float = 60.0
    """How long workers that use `elastic_agent.worker` get to save at one step before a planned change; 0: none."""
    exit_duration_in_mins: float | None = None
    """The job's time ends so many minutes after the start of its agent."""
    deadline: str | float = ""
    """The same at a time, as Unix seconds or 2026-11-22T17:30:00; empty: as SLURM says, if it does."""
    spot_notices: str | None = None
    """The cloud that is asked whether it takes this host back: "aws", "gcp" or "azure"."""
    orphan_grace: float = 0.0
    """Time between SIGTERM and SIGKILL for workers whose agent was killed; 0: SIGKILL at once."""
    exit_barrier_timeout: float | None = None
    """How long finished nodes wait for the others; None: TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT, else 300."""
    virtual_local_rank: bool = False
    preload: str | Iterable[str] = ()
    """Modules that are imported once, and workers forked from there: names, or "torch,numpy"; "auto": what the script
    imports; none: each worker is a new interpreter."""
    worker_store: str = "agent"
    """Who serves the workers' store at MASTER_ADDR:MASTER_PORT: "agent", a process beside the agent of group rank 0, as
    with torchrun; "rank0", the worker of rank 0."""
    exact_resume: str | os.PathLike[str] = ""
    """Directory in which workers keep checkpoints, to go on exactly where they were; empty: they do as they like."""
    watch: str | os.PathLike[str] = ""
    """A file of watches, in TOML, that this node's agent runs, or names of usual ones, "hang,disk"; empty: none."""
    notify: str | Iterable[str] = ()
    """Where failures of the job and alarms of `--watch` are sent: URLs, see docs/guardrails.md."""
    page: bool = False
    """Serve a page that shows this job live; a line names its address."""
    page_address: str = ""
    """HOST:PORT of that page, which is served then; empty: a free port of the loopback, with `page`."""
    metrics_address: str = ""
    """HOST:PORT at which this node's agent serves metrics for Prometheus, /healthz and /readyz; empty: none."""
    control_address: str = ""
    """HOST:PORT at which this node's agent answers other hosts, by gRPC with TLS; empty: nowhere."""
    control_cert: str | os.PathLike[str] = ""
    """Its certificate, in PEM; needed with `control_address`, as the next two."""
    control_key: str | os.PathLike[str] = ""
    """The key of `control_cert`, in PEM."""
    control_tokens: str | os.PathLike[str] = ""
    """Who may ask there: a file with lines of `NAME read|write TOKEN`."""
    logs_specs: object = None
    """torch's `LogsSpecs`, in place of `log_dir`, `redirects`, `tee` and `local_ranks_filter`."""
    numa_options: object = None
    """How workers are bound to CPUs: "node", "socket", "exclusive", "core-complex", or torch's `NumaOptions`."""
    event_log_handler: str = "null"
    """Where torch's events go: "null", "console", or a name registered in `torch.distributed.elastic.events`."""
    metrics_cfg: Mapping[str, str] = field(default_factory=dict)
    """Stored and without effect: torch's own `initialize_metrics` does nothing with it either."""
    rdzv_timeout: float = -1
    """torch's earlier name of `rdzv_configs["timeout"]`; -1: not set."""
    env: Mapping[str, str] | None = None
    """Variables for the workers; each is added to this process's own, or replaces one."""

    def validate(self, env: Mapping[str, str] | None = None) -> None:
        """Raise UsageError, in one line, for the first mistake; `env` is this process's environment if not given."""
        checked = in_kind(self)
        plan(checked, ("-",), "-", os.environ if env is None else env)
        check_watches(checked.watch, checked.notify)


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked configuration: the specifications of the rendezvous and of the workers."""

    rendezvous: RendezvousSpec
    workers: WorkerSpec
    warnings: tuple[str, ...] = ()
    """What the user should know before the job starts, one line each."""


def plan(
    config: LaunchConfig, argv: Sequence[str], title: str, env: Mapping[str, str], job: Sequence[str] = ()
) -> Plan:
    """Check `config`. Raises UsageError, in one line, for the first mistake.

    `argv` is a worker's command, `title` what the failure summary calls it, `env` the environment of this process.
    `job` is the part of the command that all nodes of the job have in common; if empty it is found in `argv`.
    """
    config = torch_fields.spelled_out(config)
    _check_numbers(config)
    run_id, run_id_warning = _run_id(config)
    choice = _choice(config, env)
    if choice.spec.backend == "memory" and not choice.fixed and run_id == "none":
        # As with torchrun, a job of one node gets a random identity, after which its log directory is named.
        run_id = values.random_id()
    command = tuple(job) or job_command(argv, title)
    rendezvous = _with_common(choice.spec, config, run_id, command, env)
    check_addresses(metrics_address=config.metrics_address, page_address=config.page_address)
    check_control(config.control_address, config.control_cert, config.control_key, config.control_tokens)
    _check_nodes(rendezvous)
    base_env = torch_fields.with_timer(_worker_base(config, env))
    if config.exact_resume:
        base_env |= {EXACT_RESUME: os.path.abspath(config.exact_resume), COMMAND: digest_of(command)}
    base_env |= ending_variables(config.exit_duration_in_mins, config.deadline, config.spot_notices, env)
    nproc = count_local_workers(config.nproc_per_node, base_env)
    omp_warning = share_cpus(base_env, nproc)
    _check_devices(config, base_env, nproc)
    workers = _worker_spec(config, argv, title, run_id, env, base_env, nproc, choice.fixed)
    numa_warning = "--preload has no effect with --numa-binding" if workers.numa and workers.preload else ""
    shown_warning = "" if counts_anew(config.nproc_per_node) else values.nothing_shown(config.local_ranks_filter, nproc)
    files_warning = values.no_files(workers.logs)
    warnings = (*choice.warnings, run_id_warning, omp_warning, numa_warning, shown_warning, files_warning)
    return Plan(rendezvous, workers, tuple(line for line in warnings if line))


def _worker_spec(
    config: LaunchConfig,
    argv: Sequence[str],
    title: str,
    run_id: str,
    env: Mapping[str, str],
    base_env: dict[str, str],
    nproc: int,
    fixed: tuple[str, int] | None,
) -> WorkerSpec:
    leftovers, leftover_s = values.leftovers("leftovers", config.leftovers)
    stops = values.signals("signals_to_handle", config.signals_to_handle)
    numa, numa_optional = torch_fields.numa(config.numa_options)
    forwards = values.forwarded("forward_signals", config.forward_signals, stops)
    asks = guards((config.kill_switch, config.save_switch), (config.kill_signal, config.save_signal), stops + forwards)
    base_env |= ignored_signals(forwards, asks)
    anew = counts_anew(config.nproc_per_node)
    return WorkerSpec(
        argv=tuple(argv),
        title=title,
        run_id=run_id,
        count_workers=partial(count_local_workers, config.nproc_per_node, base_env) if anew else (lambda: nproc),
        role=config.role,
        restarts=_policy(config),
        charge=config.charge,
        grace_s=_time_or_env(config.shutdown_timeout, "shutdown_timeout", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", env, 30.0),
        base_env=base_env,
        virtual_local_rank=config.virtual_local_rank,
        preload=values.modules("preload", config.preload),
        numa=numa,
        numa_optional=numa_optional,
        logs=_log_spec(config, nproc),
        signals=stops,
        signals_named=config.signals_to_handle != SIGNALS,
        forward_signals=forwards,
        guards=asks,
        leftovers=leftovers,
        leftover_s=leftover_s,
        stuck_s=torch_fields.stuck_s(env),
        orphan_grace_s=values.seconds("orphan_grace", config.orphan_grace),
        worker_store=config.worker_store,
        master_addr=fixed[0] if fixed else None,
        master_port=fixed[1] if fixed else None,
    )


def _check_nodes(spec: RendezvousSpec) -> None:
    if spec.max_nodes == 1:
        return
    from ...rendezvous.codec.limits import MAX_NODES

    if spec.max_nodes > MAX_NODES:
        raise UsageError(
            f"--nnodes allows {spec.max_nodes} nodes, but a job has at most {MAX_NODES}; lower the maximum"
        )


def _policy(config: LaunchConfig) -> Policy:
    return Policy(
        values.whole("max_restarts", config.max_restarts),
        values.seconds("restart_window", config.restart_window),
        *values.pauses("restart_backoff", config.restart_backoff),
        startup_s=values.seconds("startup_window", config.startup_window),
        no_restart_codes=values.exit_codes("no_restart_codes", config.no_restart_codes),
    )


def _choice(config: LaunchConfig, env: Mapping[str, str]) -> Choice:
    return choose_rendezvous(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        configs=config.rdzv_configs,
        nodes=(config.min_nodes, config.max_nodes),
        standalone=config.standalone,
        node_rank=config.node_rank,
        master=(config.master_addr, config.master_port),
        env=env,
    )


def _check_numbers(config: LaunchConfig) -> None:
    least = values.whole("min_nodes", config.min_nodes, least=1)
    values.whole("max_nodes", config.max_nodes, least=1)
    if config.max_nodes < least:
        raise UsageError(f"max_nodes is {config.max_nodes}, less than min_nodes ({least}); give 1 <= min <= max")
    values.seconds("monitor_interval", config.monitor_interval)
    if config.charge not in CHARGES:
        raise UsageError(f"charge is {config.charge!r}; give 'cause' or 'local'")
    if config.worker_store not in WORKER_STORES:
        raise UsageError(f"worker_store is {config.worker_store!r}; give 'agent' or 'rank0'")
    if config.start_method != "spawn":
        method = config.start_method
        raise UsageError(f"start_method is {method!r}, but each worker is a new interpreter; leave it at 'spawn'")
    if len(config.role) > LONGEST_RUN_ID:
        raise UsageError(f"role has {len(config.role)} characters; the limit is {LONGEST_RUN_ID}; shorten it")
    if config.local_addr is not None and config.local_addr.split() != [config.local_addr]:
        raise UsageError(f"local_addr is {config.local_addr!r}, which is no address; give a host name or an IP address")


def _run_id(config: LaunchConfig) -> tuple[str, str]:
    if len(config.run_id) > LONGEST_RUN_ID:
        raise UsageError(f"the run id has {len(config.run_id)} characters; the limit is {LONGEST_RUN_ID}; shorten it")
    if config.run_id:
        return config.run_id, ""
    run_id = values.random_id()
    if config.max_nodes == 1 or config.standalone:
        return run_id, ""
    return run_id, f"the run id is empty, so this node uses {run_id}, a random one; give every node the same --rdzv-id"


def _with_common(
    spec: RendezvousSpec, config: LaunchConfig, run_id: str, command: tuple[str, ...], env: Mapping[str, str]
) -> RendezvousSpec:
    from ...proto.frozen import replace

    barrier_s = _time_or_env(
        config.exit_barrier_timeout, "exit_barrier_timeout", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", env, 300.0
    )
    return replace(
        spec,
        run_id=run_id,
        command=command,
        nproc=counting_rule(config.nproc_per_node),
        local_addr=config.local_addr,
        exit_barrier_s=barrier_s,
        settle_s=values.seconds("settle_timeout", config.settle_timeout),
    )


def _time_or_env(given: float | None, name: str, variable: str, env: Mapping[str, str], default: float) -> float:
    if given is not None:
        return values.seconds(name, given)
    return values.seconds(variable, env[variable]) if variable in env else default


def _worker_base(config: LaunchConfig, env: Mapping[str, str]) -> dict[str, str]:
    for name, value in (config.env or {}).items():
        if not name or "=" in name or "\0" in f"{name}{value}":
            raise UsageError(f"env has {name!r}: {value!r}, which is no environment variable; correct it")
    return {name: value for name, value in {**env, **(config.env or {})}.items() if name != PASSWORD_VARIABLE}


def _check_devices(config: LaunchConfig, base_env: Mapping[str, str], nproc: int) -> None:
    devices = base_env.get("CUDA_VISIBLE_DEVICES")
    if config.virtual_local_rank and devices is not None and nproc > len(devices.split(",")):
        raise UsageError(
            f"--virtual-local-rank needs a device for each of {nproc} workers, but CUDA_VISIBLE_DEVICES is "
            f"{devices!r}; list as many devices, or start fewer workers"
        )


def _log_spec(config: LaunchConfig, nproc: int) -> LogSpec:
    base_dir = os.fspath(config.log_dir or "") or None
    reify = torch_fields.reify_of(config.logs_specs)
    if reify is not None:
        base_dir = os.devnull
    if base_dir is not None and base_dir != os.devnull:
        base_dir = os.path.abspath(base_dir)
        if os.path.exists(base_dir) and not os.path.isdir(base_dir):
            raise UsageError(f"log_dir is {config.log_dir!r}, which is no directory; give a directory, or a new name")
    # If the number of workers may change from round to round, there is a value for every possible local rank.
    ranks = values.MAX_NPROC if counts_anew(config.nproc_per_node) else nproc
    return LogSpec(
        base_dir=base_dir,
        redirects=values.streams("redirects", config.redirects, ranks),
        tee=values.streams("tee", config.tee, ranks),
        local_ranks_filter=values.local_ranks("local_ranks_filter", config.local_ranks_filter),
        rotation=values.rotation("log_rotate", config.log_rotate),
        stdout_filters=values.substrings(config.duplicate_stdout_filters),
        stderr_filters=values.substrings(config.duplicate_stderr_filters),
        prefix_template=LogSpec().prefix_template
        if config.log_line_prefix_template is None
        else config.log_line_prefix_template,
        reify=reify,
    )
