"""The command `elastic-agent`: torchrun's command line, checked as a whole before anything starts."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from ..agent.errors import AgentError, HostFailed, UsageError
from .config.arguments import from_environment, spell_out
from .config.config import SIGNALS, LaunchConfig
from .config.flag import Flag
from .config.flags import BY_KEY, FLAGS
from .config.guard_flags import GUARD_FLAGS
from .reporting.printing import PLAIN, Printing

PROGRAM = "elastic-agent"


class Invocation(NamedTuple):
    """What a command line asks for."""

    config: LaunchConfig
    argv: tuple[str, ...]
    """A worker's command."""
    title: str
    """What the failure summary calls it."""
    printing: Printing = PLAIN
    """How the agent prints what it says."""


def _read(flag: Flag, value: object) -> object:
    """A value of `flag`: text is read here; None means that it is not given."""
    if value is None:
        return flag.default if flag.read else False
    return flag.read(f"--{flag.name}", value) if flag.read and isinstance(value, str) else value


def parse(args: Sequence[str], env: Mapping[str, str]) -> Invocation:
    """Read a command line, with defaults from the PET_ variables in `env`.

    Raises UsageError for a mistake in either, and SystemExit after --help and --version, which print.
    """
    spelled = spell_out(args)
    end = spelled.index("--")
    flags, script = spelled[:end], spelled[end + 1 :]
    if page := next((flag for flag in flags if flag in ("--help", "--version")), None):
        from .help_text import show

        show(page)
        raise SystemExit(0)
    given: dict[str, Any] = {"script": script[0] if script else None, "script_args": tuple(script[1:])}
    typed: dict[str, str] = {}
    for name, _, text in (flag[2:].partition("=") for flag in flags):
        again = name in typed and BY_KEY[name.replace("-", "_")].many
        typed[name] = f"{typed[name]}\n{text}" if again else text
    defaults = from_environment(env, spelled)
    ordered = sorted(FLAGS, key=lambda flag: list(typed).index(flag.name) if flag.name in typed else len(typed))
    for flag in ordered:  # so that of several mistakes the first that was typed is named
        value: object = defaults.get(flag.key)
        if flag.name in typed:
            value = typed[flag.name] if flag.read else True
        given[flag.key] = _read(flag, value)
    return _invocation(given, env)


def main(args: Sequence[str] | None = None, *, standalone: bool | None = None) -> None:
    """Run the command line `args`, or that of this process.

    As a library (`args` given, or `standalone=False`) it returns None on success and raises the AgentError that ended
    the job. As a program it prints the error in one line and exits with its status.
    """
    as_program = args is None if standalone is None else standalone
    args = sys.argv[1:] if args is None else args
    try:
        if not _took_torchs_place(args, as_program):
            _run(parse(args, os.environ), as_program)
    except AgentError as error:
        if not as_program:
            raise
        raise SystemExit(_fail(error, args)) from None
    except OSError as error:
        if not as_program:
            raise
        raise SystemExit(_fail(_refused(error), args)) from None
    if as_program:
        raise SystemExit(0)


def entry() -> NoReturn:
    """Run this process's command line and exit; `__main__.py` calls it after it has taken over signals."""
    # If one of the descriptors 0, 1, 2 is closed, one that the agent opens would get its number, and with it what
    # workers print.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    # The objects of torch, which the host of a c10d store imports, are not searched for garbage at the end.
    atexit.register(gc.freeze)
    try:
        main(standalone=True)
    except SystemExit as end:
        _end_at_once_within_torch(end)
        raise
    raise SystemExit(0)


def _end_at_once_within_torch(end: SystemExit) -> None:
    """Where a store is about to be served as the agent ends, end without finalizing Python, with this status."""
    server = sys.modules.get("elastic_agent.rendezvous.c10d.server")
    if server is None or not server.is_within_torch():
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads it any more, or it is closed
    os._exit(end.code if isinstance(end.code, int) else 1)


def _fail(error: AgentError, args: Sequence[str]) -> int:
    if not error.reported:
        from .reporting.console import Console
        from .reporting.printing import formats_in, printing_of

        try:
            spelled = spell_out(args)
        except UsageError:  # the error itself, mostly
            spelled = [*formats_in(args), "--"]
        Console(os.environ, printing_of(os.environ, spelled[: spelled.index("--")])).fail(error)
    return error.exit_code


def _refused(error: OSError) -> HostFailed:
    import errno

    problem = f"{error.strerror or error}" + (f": {error.filename!r}" if error.filename else "")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return HostFailed(f"this host refuses what the agent needs: {problem}; raise the limit with ulimit -n")
    return HostFailed(f"this host refuses what the agent needs: {problem}; check `ulimit -a` and free disk space")


def _took_torchs_place(args: Sequence[str], as_program: bool) -> bool:
    """With --as-torchrun: do what it says. False without it."""
    if not any(arg.startswith("--as") for arg in args):
        return False
    from .as_torchrun.switch_process import SWITCH, become

    spelled = spell_out(args)
    flags = spelled[: spelled.index("--")]
    if SWITCH not in flags or {"--help", "--version"}.intersection(flags):
        return False
    become(spelled, as_program=as_program)
    return True


def _run(invocation: Invocation, as_program: bool) -> None:
    from .command import run_command
    from .config.worker_command import check_module

    check_module(invocation.argv)
    run_command(
        invocation.config, invocation.argv, invocation.title, as_program=as_program, printing=invocation.printing
    )


def _invocation(given: Mapping[str, Any], env: Mapping[str, str]) -> Invocation:
    script = given["script"]
    if not script:
        raise UsageError("there is no script to run; give its path after the flags")
    from .config.worker_command import LOCAL_RANK, worker_command

    argv = worker_command(
        script,
        (*([LOCAL_RANK] if given["pass_local_rank"] else ()), *given["script_args"]),
        env,
        module=given["module"],
        no_python=given["no_python"],
        run_path=given["run_path"],
    )
    if given["run_path"] and given["start_method"] != "spawn":
        raise UsageError(
            f"--start-method is {given['start_method']!r}, but --run-path starts each worker as a new interpreter; "
            "leave it out"
        )
    if given["quiet"] and given["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other; leave one out")
    printing = Printing(given["quiet"], given["verbose"], given["log_format"] == "json")
    return Invocation(_config(given, env), argv, script, printing)


def _logs_specs(flags: Mapping[str, Any]) -> object:
    """What --logs-specs names, made as torchrun makes it; None without the flag."""
    if flags["logs_specs"] is None:
        return None
    from .config.torch_fields import load_logs_specs

    given = (flags[name] for name in ("logs_specs", "log_dir", "redirects", "tee", "local_ranks_filter"))
    specs: object = load_logs_specs(*given)
    return specs


_AS_TYPED = (
    "settle_timeout",
    "exit_duration_in_mins",
    "deadline",
    "spot_notices",
)
"""Fields of `LaunchConfig` about switches and the end of the job's time, which have the names of flags."""


def _config(flags: Mapping[str, Any], env: Mapping[str, str]) -> LaunchConfig:
    low, high = flags["nnodes"]
    signals = flags["signals_to_handle"]
    return LaunchConfig(
        min_nodes=low,
        max_nodes=high,
        nproc_per_node=flags["nproc_per_node"],
        run_id=flags["rdzv_id"],
        role=flags["role"],
        rdzv_backend=flags["rdzv_backend"] or "static",
        rdzv_endpoint=flags["rdzv_endpoint"],
        rdzv_configs=flags["rdzv_conf"],
        standalone=flags["standalone"],
        max_restarts=flags["max_restarts"],
        restart_window=flags["restart_window"],
        restart_backoff=flags["restart_backoff"],
        no_restart_codes=flags["no_restart_codes"],
        startup_window=flags["startup_window"],
        charge=flags["charge"],
        worker_store=flags["worker_store"],
        exact_resume=flags["exact_resume"],
        monitor_interval=flags["monitor_interval"],
        log_dir=flags["log_dir"],
        redirects=flags["redirects"],
        tee=flags["tee"],
        logs_specs=_logs_specs(flags),
        event_log_handler=flags["event_log_handler"],
        numa_options=flags["numa_binding"],
        log_rotate=flags["log_rotate"],
        local_ranks_filter=flags["local_ranks_filter"],
        duplicate_stdout_filters=flags["duplicate_stdout_filters"],
        duplicate_stderr_filters=flags["duplicate_stderr_filters"],
        log_line_prefix_template=env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or None,
        local_addr=flags["local_addr"] or None,
        node_rank=flags["node_rank"],
        master_addr=flags["master_addr"],
        master_port=flags["master_port"],
        # The default itself, not one that equals it: what the user names is handled even if it was ignored before.
        signals_to_handle=SIGNALS if signals is BY_KEY["signals_to_handle"].default else signals,
        forward_signals=flags["forward_signals"],
        **{flag.key: flags[flag.key] for flag in GUARD_FLAGS},
        **{name: flags[name] for name in _AS_TYPED},
        preload=flags["preload"],
        shutdown_timeout=flags["shutdown_timeout"],
        leftovers=flags["leftovers"],
        orphan_grace=flags["orphan_grace"],
        exit_barrier_timeout=flags["exit_barrier_timeout"],
        virtual_local_rank=flags["virtual_local_rank"],
    )
