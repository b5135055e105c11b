"""Every flag of the command line: torchrun's (torch 2.13, `torch.distributed.run.get_args_parser`) and our own.

A flag is written as its name, with hyphens or underscores, or as an unambiguous beginning of it. As with torchrun, the
variable PET_<NAME> sets its default.
"""

from __future__ import annotations

from functools import partial

from ...agent.errors import UsageError
from ...agent.exit_status import NO_RESTART
from ...agent.spec import NUMA_MODES
from . import values
from .ending_flags import ENDING_FLAGS
from .flag import Flag
from .guard_flags import GUARD_FLAGS
from .rdzv_conf import split_rdzv_conf


def _whole(name: str, value: str, least: int = 0, most: int = values.MAX_COUNT) -> int:
    return values.whole(name, value, least=least, most=most)


def _nproc(name: str, value: str) -> str | int:
    text = value.strip()
    if text.lstrip("+-").isdigit():
        return values.whole(name, text, least=1, most=values.MAX_NPROC)
    if not text:
        raise UsageError(f"{name} is empty; give a number, auto, cpu, gpu or xpu")
    return text


def _streams(name: str, value: str) -> str:
    values.streams(name, value, 1)
    return value


def _filters(name: str, value: str) -> tuple[str, ...]:
    return values.substrings(value)


def _forwarded(name: str, value: str) -> tuple[int, ...]:
    return values.forwarded(name, value, ())


def _leftovers(name: str, value: str) -> str:
    values.leftovers(name, value)
    return value


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UsageError(f"{name} is {value!r}{values.suggest(value, choices)}; give one of {', '.join(choices)}")
    return value


def _either(name: str, group: str, text: str, choices: tuple[str, ...], metavar: str) -> Flag:
    """A flag of ours that takes one of these words; the first is its default."""
    return Flag(name, group, text, partial(_one_of, choices=choices), choices[0], metavar, ours=True)


_SIZE, _MEET, _STATIC = "Size", "Rendezvous", "Static rendezvous (torchrun's old way)"
_RUN, _STOP, _LOGS, _MORE = "Workers", "Restarts and stopping", "Logs", "Other"
_STREAMS = "0 none, 1 stdout, 2 stderr, 3 both; or per local rank, such as 0:3,1:2. (0)"

FLAGS: tuple[Flag, ...] = (
    Flag(
        "nnodes", _SIZE, "Nodes of the job, exactly N or from MIN to MAX. (1)", values.node_range, (1, 1), "N|MIN:MAX"
    ),
    Flag(
        "nproc-per-node",
        _SIZE,
        "Workers on this node: a number, or one for each of its devices: auto (accelerators or CPUs), cpu, gpu, xpu. "
        "(1)",
        _nproc,
        1,
        "N|NAME",
    ),
    Flag("standalone", _MEET, "Run on this node alone; the other rendezvous flags are ignored."),
    Flag("rdzv-backend", _MEET, "How nodes meet: c10d, etcd or static. (static)", values.text, "static", "NAME"),
    Flag(
        "rdzv-endpoint",
        _MEET,
        "Where nodes meet. c10d: the node that hosts the store (port 29400). etcd: its servers (port 2379).",
        values.text,
        "",
        "HOST[:PORT],...",
    ),
    Flag(
        "rdzv-id",
        _MEET,
        "Identity of the job, the same on all its nodes; empty: a random one. (none)",
        values.text,
        "none",
        "ID",
    ),
    Flag(
        "rdzv-conf",
        _MEET,
        "Details of the rendezvous, times in seconds: join_timeout (600), last_call_timeout (30), quiet (3), beat (1), "
        "lease (5), store_grace (30), read_timeout (60), is_host; etcd: cacert, cert, key, user, password_file.",
        split_rdzv_conf,
        {},
        "KEY=VALUE,...",
    ),
    Flag(
        "local-addr",
        _MEET,
        "Address at which other nodes reach this one. (that of the route to the store)",
        values.text,
        None,
        "ADDR",
    ),
    Flag("node-rank", _MEET, "Rank of this node. static: each node its own (0); else a preference.", _whole, None, "N"),
    Flag("master-addr", _STATIC, "Address of node 0. (127.0.0.1)", values.text, "127.0.0.1", "ADDR"),
    Flag("master-port", _STATIC, "Port of node 0. (29500)", partial(_whole, most=65535), None, "PORT"),
    Flag("module", _RUN, "SCRIPT is a module, run as python -m runs it.", short="m"),
    Flag("no-python", _RUN, "SCRIPT is a program, not a Python file."),
    Flag(
        "use-env", _RUN, "Accepted, as torch.distributed.launch has it; LOCAL_RANK is always set.", env=False, ours=True
    ),
    Flag(
        "pass-local-rank",
        _RUN,
        "Give SCRIPT the argument --local-rank=N first, as torch.distributed.launch does without --use-env.",
        ours=True,
    ),
    Flag(
        "numa-binding",
        _RUN,
        "Bind each worker to the CPUs near its GPU: node, socket, exclusive or core-complex. (none)",
        partial(_one_of, choices=NUMA_MODES),
        None,
        "MODE",
        env=False,
    ),
    Flag("run-path", _RUN, "Run SCRIPT with runpy.run_path; takes precedence over --no-python."),
    Flag("role", _RUN, "Name of the workers' role, for ROLE_NAME and logs. (default)", values.text, "default", "NAME"),
    Flag("virtual-local-rank", _RUN, "Each worker sees only its own GPU, as device 0; LOCAL_RANK is 0 for all."),
    Flag(
        "start-method",
        _RUN,
        "Accepted; each worker is a new interpreter. (spawn)",
        partial(_one_of, choices=("spawn", "fork", "forkserver")),
        "spawn",
        "METHOD",
    ),
    Flag(
        "preload",
        _RUN,
        "Import these modules once, then fork workers; or auto. (none)",
        values.modules,
        (),
        "NAMES",
        ours=True,
    ),
    _either(
        "worker-store",
        _RUN,
        "Who serves the store at MASTER_ADDR:MASTER_PORT: a process beside the agent of group rank 0 (agent), or the "
        "worker of rank 0 (rank0). (agent)",
        ("agent", "rank0"),
        "WHO",
    ),
    Flag(
        "exact-resume",
        _RUN,
        "Let workers keep checkpoints in DIR and go on where they were: Lightning's scripts as they are, others with "
        "elastic_agent.worker. (off)",
        values.text,
        "",
        "DIR",
        ours=True,
    ),
    Flag(
        "max-restarts", _STOP, "Failures of its own workers that this node answers with a restart. (0)", _whole, 0, "N"
    ),
    Flag(
        "restart-window",
        _STOP,
        "Only failures of the last SECONDS count against --max-restarts; 0: those of the whole job. (0)",
        values.seconds,
        0.0,
        "SECONDS",
        ours=True,
    ),
    Flag(
        "restart-backoff",
        _STOP,
        "Seconds to pause between restarts of a crash loop: none before the first, then MIN, doubled each time up to "
        "MAX (60). 0: no pauses. (0)",
        values.pauses,
        (0.0, values.LONGEST_PAUSE_S),
        "MIN[:MAX]",
        ours=True,
    ),
    Flag(
        "no-restart-codes",
        _STOP,
        "Exit codes with which a worker forbids a restart; none: no code does. (93)",
        values.exit_codes,
        frozenset({NO_RESTART}),
        "N,...",
        ours=True,
    ),
    Flag(
        "startup-window",
        _STOP,
        "A worker that fails within SECONDS of its start is reported to have failed in its start-up. (30)",
        values.seconds,
        30.0,
        "SECONDS",
        ours=True,
    ),
    _either(
        "charge",
        _STOP,
        "Which failures cost a restart: those that this node's workers caused (cause), or all failures of its workers, "
        "as torchrun counts (local). (cause)",
        ("cause", "local"),
        "WHICH",
    ),
    Flag(
        "shutdown-timeout",
        _STOP,
        "Seconds between a worker's first stop signal and SIGKILL. (TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)",
        values.seconds,
        None,
        "SECONDS",
    ),
    Flag(
        "exit-barrier-timeout",
        _STOP,
        "Seconds for which finished nodes wait for the others. (TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT, else 300)",
        values.seconds,
        None,
        "SECONDS",
        ours=True,
    ),
    Flag(
        "signals-to-handle",
        _STOP,
        "Signals that stop the job on this node. (SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
        values.signals,
        (15, 2, 1, 3),
        "NAMES",
    ),
    Flag(
        "forward-signals",
        _STOP,
        "Signals passed on to the workers, such as USR1,USR2; they stop nothing. (none)",
        _forwarded,
        (),
        "NAMES",
        ours=True,
    ),
    Flag(
        "leftovers",
        _STOP,
        "Processes that workers leave behind when all have exited 0: stop them after SECONDS (30), wait for them, or "
        "keep them running. (stop)",
        _leftovers,
        "stop",
        "stop[:SECONDS]|wait|keep",
        ours=True,
    ),
    Flag(
        "orphan-grace",
        _STOP,
        "Seconds between SIGTERM and SIGKILL for workers whose agent was killed; 0: SIGKILL at once. (0)",
        values.seconds,
        0.0,
        "SECONDS",
        ours=True,
    ),
    *ENDING_FLAGS,
    *GUARD_FLAGS,
    Flag(
        "log-dir", _LOGS, "Directory for log files; /dev/null for none. (a new temporary one)", values.text, None, "DIR"
    ),
    Flag("redirects", _LOGS, f"Streams that go to files only: {_STREAMS}", _streams, "0", "STREAMS", short="r"),
    Flag("tee", _LOGS, f"Streams that go to files and the console: {_STREAMS}", _streams, "0", "STREAMS", short="t"),
    Flag(
        "log-rotate",
        _LOGS,
        "Put a log file aside at SIZE; keep KEEP of these. (off)",
        values.rotation,
        "",
        "SIZE[:KEEP]",
        ours=True,
    ),
    Flag(
        "local-ranks-filter",
        _LOGS,
        "Local ranks whose output reaches the console. (all)",
        values.local_ranks,
        frozenset(),
        "N,...",
    ),
    Flag(
        "duplicate-stdout-filters",
        _LOGS,
        "Copy lines of tee'd stdout that have one of these substrings to a separate file; write a comma as two.",
        _filters,
        (),
        "TEXT,...",
    ),
    Flag("duplicate-stderr-filters", _LOGS, "The same for tee'd stderr.", _filters, (), "TEXT,..."),
    Flag("monitor-interval", _MORE, "Accepted, without effect: nothing polls. (0.1)", values.seconds, 0.1, "SECONDS"),
    Flag(
        "event-log-handler",
        _MORE,
        "Where torch's events of workers and agent go: null, console (stderr). (null)",
        values.text,
        "null",
        "NAME",
    ),
    Flag(
        "logs-specs",
        _MORE,
        "Log files as a class of another package says, an entry point of torchrun.logs_specs. (torch's layout)",
        values.text,
        None,
        "NAME",
        env=False,
    ),
    Flag(
        "as-torchrun",
        _MORE,
        "Run the command SCRIPT, such as accelerate, with this agent in torchrun's place in all that it starts; "
        "without one, print that as shell variables.",
        env=False,
        ours=True,
    ),
    Flag(
        "quiet",
        _MORE,
        "Print no decisions; the failure summary and the last line only if the job fails.",
        short="q",
        ours=True,
    ),
    Flag("verbose", _MORE, "Print routine decisions, too, as with LOGLEVEL=INFO.", short="v", ours=True),
    _either(
        "log-format",
        _MORE,
        "How the agent prints what it says on stderr: lines of text, or a JSON object a line. (text)",
        ("text", "json"),
        "FORMAT",
    ),
    Flag("version", _MORE, "Print the version and exit.", env=False, ours=True),
    Flag("help", _MORE, "Print this and exit.", short="h", env=False),
)

BY_KEY = {flag.key: flag for flag in FLAGS}
BY_SHORT = {flag.short: flag for flag in FLAGS if flag.short}

_OTHER_NAMES = {"run_id": "--rdzv-id", "rdzv_configs": "--rdzv-conf", "numa_options": "--numa-binding"}
"""Fields of a configuration that are not called as their flags."""


def in_flags(text: str) -> str:
    """What is wrong with a configuration, in the words of the command line: `--log-dir` for its field `log_dir`. What
    stands in quotes or in a path is the user's own."""
    import re  # here: a start without a mistake needs none

    names = {flag.key: f"--{flag.name}" for flag in FLAGS if "_" in flag.key} | _OTHER_NAMES
    return re.sub(rf"(?<![\w'\"./=-])({'|'.join(names)})(?![\w'\"./=-])", lambda found: names[found[1]], text)
