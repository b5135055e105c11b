"""The command line: torchrun's flags in all their spellings; every mistake brings one line and status 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import click
import pytest

from elastic_agent.agent.errors import AgentError, Preempted, UsageError, WorkersFailed
from elastic_agent.agent.spec import Rotation
from elastic_agent.launcher import cli
from elastic_agent.launcher.cli import Invocation, parse
from elastic_agent.launcher.config.arguments import find_flag
from elastic_agent.launcher.config.config import LaunchConfig
from elastic_agent.launcher.config.flags import FLAGS
from elastic_agent.launcher.reporting.printing import Printing

BARE = LaunchConfig(
    max_restarts=0, rdzv_backend="static", redirects="0", tee="0",
    log_rotate="", local_ranks_filter=frozenset(), restart_backoff=(0.0, 60.0), no_restart_codes=frozenset({93}),
)  # fmt: skip
"""The configuration of a command line without flags."""

VALUES: list[tuple[str, str, dict[str, Any]]] = [
    # flag, text, the fields of LaunchConfig that it sets
    ("nnodes", "2", {"min_nodes": 2, "max_nodes": 2}),
    ("nnodes", "1:4", {"max_nodes": 4}),
    ("nproc-per-node", "3", {"nproc_per_node": 3}),
    ("nproc-per-node", "auto", {"nproc_per_node": "auto"}),
    ("rdzv-backend", "c10d", {"rdzv_backend": "c10d"}),
    ("rdzv-endpoint", "h:5", {"rdzv_endpoint": "h:5"}),
    ("rdzv-id", "job", {"run_id": "job"}),
    ("rdzv-id", "", {"run_id": ""}),
    ("rdzv-conf", " a = 1 ,b=x=y", {"rdzv_configs": {"a": "1", "b": "x=y"}}),
    ("max-restarts", "3", {"max_restarts": 3}),
    ("restart-window", "3600", {"restart_window": 3600.0}),
    ("restart-backoff", "5", {"restart_backoff": (5.0, 60.0)}),
    ("restart-backoff", "0.5:300", {"restart_backoff": (0.5, 300.0)}),
    ("no-restart-codes", "93, 7", {"no_restart_codes": frozenset({7, 93})}),
    ("no-restart-codes", "none", {"no_restart_codes": frozenset()}),
    ("startup-window", "5", {"startup_window": 5.0}),
    ("monitor-interval", "5", {"monitor_interval": 5.0}),
    ("start-method", "fork", {}),
    ("event-log-handler", "console", {"event_log_handler": "console"}),
    ("role", "trainer", {"role": "trainer"}),
    ("log-dir", "logs", {"log_dir": "logs"}),
    ("redirects", "3", {"redirects": "3"}),
    ("tee", "0:3,1:1", {"tee": "0:3,1:1"}),
    ("log-rotate", "10M:3", {"log_rotate": Rotation(10 << 20, 3)}),
    ("local-ranks-filter", "0,1", {"local_ranks_filter": frozenset({0, 1})}),
    ("duplicate-stdout-filters", "a,b,,c", {"duplicate_stdout_filters": ("a", "b,c")}),
    ("duplicate-stderr-filters", "a", {"duplicate_stderr_filters": ("a",)}),
    ("node-rank", "1", {"node_rank": 1}),
    ("master-addr", "h", {"master_addr": "h"}),
    ("master-port", "5", {"master_port": 5}),
    ("local-addr", "10.0.0.1", {"local_addr": "10.0.0.1"}),
    ("signals-to-handle", "SIGTERM,SIGUSR1", {"signals_to_handle": (15, 10)}),
    ("preload", "torch, json.decoder", {"preload": ("torch", "json.decoder")}),
    ("preload", "auto", {"preload": ("auto",)}),
    ("forward-signals", "USR1,SIGUSR2", {"forward_signals": (10, 12)}),
    ("kill-switch", "stop", {"kill_switch": "stop"}),
    ("save-switch", "save", {"save_switch": "save"}),
    ("kill-signal", "USR1", {"kill_signal": 10}),
    ("save-signal", "usr2", {"save_signal": 12}),
    ("charge", "local", {"charge": "local"}),
    ("worker-store", "rank0", {"worker_store": "rank0"}),
    ("exact-resume", "checkpoints", {"exact_resume": "checkpoints"}),
    ("watch", "w.toml", {"watch": "w.toml"}),
    ("notify", "exec:cat", {"notify": ("exec:cat",)}),
    ("page-address", "127.0.0.1:8000", {"page_address": "127.0.0.1:8000"}),
    ("log-format", "json", {}),
    ("metrics-address", "127.0.0.1:9400", {"metrics_address": "127.0.0.1:9400"}),
    ("control-address", "[::1]:9500", {"control_address": "[::1]:9500"}),
    ("control-cert", "c.pem", {"control_cert": "c.pem"}),
    ("control-key", "c.key", {"control_key": "c.key"}),
    ("control-tokens", "tokens", {"control_tokens": "tokens"}),
    ("shutdown-timeout", "5", {"shutdown_timeout": 5.0}),
    ("leftovers", "stop:5", {"leftovers": "stop:5"}),
    ("orphan-grace", "5", {"orphan_grace": 5.0}),
    ("settle-timeout", "5", {"settle_timeout": 5.0}),
    ("exit-duration-in-mins", "90", {"exit_duration_in_mins": 90.0}),
    ("deadline", "2026-11-22T17:30:00", {"deadline": "2026-11-22T17:30:00"}),
    ("spot-notices", "gcp", {"spot_notices": "gcp"}),
    ("exit-barrier-timeout", "5", {"exit_barrier_timeout": 5.0}),
]
SWITCHES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    # flag, fields, the worker's command after the interpreter
    ("standalone", {"standalone": True}, ("-u", "SCRIPT")),
    ("virtual-local-rank", {"virtual_local_rank": True}, ("-u", "SCRIPT")),
    ("module", {}, ("-u", "-m", "SCRIPT")),
    ("page", {"page": True}, ("-u", "SCRIPT")),
    ("quiet", {}, ("-u", "SCRIPT")),
    ("verbose", {}, ("-u", "SCRIPT")),
    ("use-env", {}, ("-u", "SCRIPT")),
    ("pass-local-rank", {}, ("-u", "SCRIPT", "--local-rank=${local_rank}")),
    ("as-torchrun", {}, ("-u", "SCRIPT")),
    ("run-path", {}, ("-u", "-m", "elastic_agent.launcher.in_worker.run_path", "SCRIPT")),
]
WITHOUT_VARIABLE = {"logs-specs", "numa-binding"}
"""Flags that no PET_ variable sets, as in torch 2.13."""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    path.chmod(0o755)
    return str(path)


def changed(config: LaunchConfig) -> dict[str, Any]:
    """The fields in which `config` differs from `BARE`."""
    return {name: getattr(config, name) for name in BARE.__slots__ if getattr(config, name) != getattr(BARE, name)}


def refusal(args: Sequence[str], env: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parse(args, env or {})
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- every flag ----------------------------------------------------------------------------------------------------


def test_no_flag_of_torchruns_is_missing() -> None:
    """Each option string of torch's parser exists here, with its short form, and takes a value if torch's does."""
    from torch.distributed.run import get_args_parser

    theirs = {
        (spelling, action.nargs != 0)
        for action in get_args_parser()._actions
        for spelling in action.option_strings
    }  # fmt: skip
    ours = {
        (spelling, flag.read is not None)
        for flag in FLAGS
        for spelling in (f"--{flag.name}", f"--{flag.key}", f"-{flag.short}")
        if spelling != "-"
    }
    assert theirs - ours == set()
    ourselves = {"--version", "-q", "-v"} | {
        f"--{spelling}"
        for name in (
            "as-torchrun",
            "charge",
            "control-address",
            "control-cert",
            "control-key",
            "control-tokens",
            "exit-barrier-timeout",
            "exact-resume",
            "forward-signals",
            "kill-signal",
            "kill-switch",
            "leftovers",
            "log-format",
            "log-rotate",
            "metrics-address",
            "no-restart-codes",
            "notify",
            "orphan-grace",
            "page",
            "page-address",
            "pass-local-rank",
            "preload",
            "quiet",
            "restart-backoff",
            "restart-window",
            "settle-timeout",
            "spot-notices",
            "deadline",
            "exit-duration-in-mins",
            "save-signal",
            "save-switch",
            "startup-window",
            "verbose",
            "watch",
            "worker-store",
            "use-env",
        )
        for spelling in (name, name.replace("-", "_"))
    }
    assert {spelling for spelling, _ in ours - theirs} == ourselves


def test_every_default_of_the_command_line_is_torchruns(script: str) -> None:
    """A command line without flags gives the values that torch's parser gives."""
    from torch.distributed.run import get_args_parser

    theirs, ours = get_args_parser().parse_args([script]), parse([script], {}).config
    same = "rdzv_backend rdzv_endpoint max_restarts monitor_interval role log_dir redirects tee master_addr local_addr"
    same += " standalone virtual_local_rank master_port shutdown_timeout start_method"
    assert {name: getattr(ours, name) for name in same.split()} == {
        name: getattr(theirs, name) for name in same.split()
    }
    assert (theirs.nnodes, ours.min_nodes, ours.max_nodes) == ("1:1", 1, 1)
    assert (theirs.nproc_per_node, ours.nproc_per_node) == ("1", 1)
    assert theirs.rdzv_id == ours.run_id == "none"
    assert ours == BARE


def test_the_tables_above_name_every_flag() -> None:
    """No flag is left untested."""
    tested = {name for name, *_ in VALUES} | {name for name, *_ in SWITCHES} | WITHOUT_VARIABLE
    assert {flag.name for flag in FLAGS} - tested == {"help", "version", "no-python"}


@pytest.mark.parametrize(("name", "text", "fields"), VALUES)
def test_each_flag_sets_its_field_in_every_spelling(name: str, text: str, fields: dict[str, Any], script: str) -> None:
    """Hyphens or underscores, `=` or a space, or the PET_ variable: all the same."""
    under = name.replace("-", "_")
    for args, env in [
        ([f"--{name}", text], {}),
        ([f"--{name}={text}"], {}),
        ([f"--{under}", text], {}),
        ([f"--{under}={text}"], {}),
        ([], {f"PET_{under.upper()}": text}),
    ]:
        assert changed(parse([*args, script, "x"], env).config) == fields, (args, env)


@pytest.mark.parametrize(("name", "fields", "command"), SWITCHES)
def test_each_switch_has_its_effect_in_every_spelling(
    name: str, fields: dict[str, Any], command: tuple[str, ...], script: str
) -> None:
    """A switch is set by either spelling, or by PET_ with 1; PET_ with 0 leaves it off."""
    under = name.replace("-", "_")
    for args, env in [([f"--{name}"], {}), ([f"--{under}"], {}), ([], {f"PET_{under.upper()}": "1"})]:
        done = parse([*args, script, "x"], env)
        assert changed(done.config) == fields
        assert done.argv == (sys.executable, *(script if part == "SCRIPT" else part for part in command), "x")
    assert changed(parse([script], {f"PET_{under.upper()}": "0"}).config) == {}


def test_no_python_runs_the_program_itself(script: str) -> None:
    """With --no-python, or its variable, the script is the worker's program."""
    assert parse(["--no-python", script, "x"], {}).argv == (script, "x")
    assert parse([script, "x"], {"PET_NO_PYTHON": "1"}).argv == (script, "x")


@pytest.mark.parametrize("name", sorted(WITHOUT_VARIABLE))
def test_a_flag_without_variable_has_none(name: str, script: str) -> None:
    """--logs-specs and --numa-binding have no PET_ variable, as in torch 2.13."""
    assert parse([script], {f"PET_{name.replace('-', '_').upper()}": "node"}).config == BARE


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        (["-r", "3"], {"redirects": "3"}),
        (["-r3"], {"redirects": "3"}),
        (["-t", "0:1"], {"tee": "0:1"}),
        (["-t3", "-r=1"], {"tee": "3", "redirects": "1"}),
        (["-mr3"], {"redirects": "3"}),
    ],
)
def test_short_flags(args: list[str], fields: dict[str, Any], script: str) -> None:
    """-m, -r and -t work alone, with a value attached, and together."""
    assert changed(parse([*args, script], {}).config) == fields


@pytest.mark.parametrize(
    ("args", "printing"),
    [
        ([], Printing()),
        (["-q"], Printing(quiet=True)),
        (["-v"], Printing(verbose=True)),
        (["-vr3", "--log-format=json"], Printing(verbose=True, as_json=True)),
    ],
)
def test_flags_say_how_the_agent_prints(args: list[str], printing: Printing, script: str) -> None:
    """They change nothing of the job, and the script's own -q and -v stay the script's."""
    done = parse([*args, script, "-q", "-v"], {})
    assert done.printing == printing
    assert done.argv[-2:] == ("-q", "-v")


def test_short_m_runs_a_module() -> None:
    """-m takes a module, which need not be a file."""
    done = parse(["-m", "pkg.train", "-m"], {})
    assert (done.argv[1:], done.title) == (("-u", "-m", "pkg.train", "-m"), "pkg.train")


# -- abbreviations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("redirect", "redirects"),
        ("nproc", "nproc-per-node"),
        ("nproc_per", "nproc-per-node"),
        ("rdzv-e", "rdzv-endpoint"),
        ("rdzv_b", "rdzv-backend"),
        ("max", "max-restarts"),
        ("t", "tee"),
        ("v", "virtual-local-rank"),
        ("vers", "version"),
        ("verb", "verbose"),
        ("e", "event-log-handler"),
        ("exit-b", "exit-barrier-timeout"),
        ("h", "help"),
    ],
)
def test_an_unambiguous_beginning_is_enough(typed: str, name: str) -> None:
    """Abbreviations work in either spelling, and our own flags make no abbreviation of torchrun's ambiguous."""
    assert find_flag(typed).name == name


def test_what_torchs_parser_understands_is_understood() -> None:
    """Each beginning of a long flag that torch's parser accepts means the same flag here."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    spellings = {text: action for action in parser._actions for text in action.option_strings if text[:2] == "--"}
    for spelling in spellings:
        for end in range(3, len(spelling) + 1):
            actions = {id(action): action for text, action in spellings.items() if text.startswith(spelling[:end])}
            if len(actions) == 1:
                (action,) = actions.values()
                assert find_flag(spelling[2:end]).key == action.dest, spelling[:end]


def test_an_ambiguous_beginning_lists_the_candidates(script: str) -> None:
    """The error names every flag it could be."""
    message = refusal(["--master", "x", script])
    assert message == "--master could be any of --master-addr, --master-port; write more of it"


def test_an_unknown_flag_brings_the_nearest_one(script: str) -> None:
    """The error has the flag that was probably meant."""
    assert "there is no flag --nproc-per-nod3; did you mean '--nproc-per-node'?" in refusal(
        ["--nproc-per-nod3=2", script]
    )


# -- the script's own arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rest",
    [
        ["--nnodes", "7"],
        ["--help"],
        ["-m", "-r", "9"],
        ["--", "--standalone"],
        ["--", "--"],
        ["-x", "--y=z", "", "a b", "${local_rank}"],
    ],
)
def test_everything_after_the_script_belongs_to_the_script(rest: list[str], script: str) -> None:
    """No argument after the script is read, moved or dropped; torch's parser differs only for a leading `--`."""
    from torch.distributed.run import get_args_parser

    done = parse(["--role", "x", script, *rest], {})
    assert done.argv == (sys.executable, "-u", script, *rest)
    assert changed(done.config) == {"role": "x"}
    if rest[0] != "--":  # argparse up to Python 3.12 swallows the first one behind a positional
        assert get_args_parser().parse_args(["--role", "x", script, *rest]).training_script_args == rest


def test_two_hyphens_before_the_script_end_the_flags(script: str) -> None:
    """`--` before the script belongs to the agent, and is dropped."""
    assert parse(["--role=x", "--", script, "--", "y"], {}).argv == (sys.executable, "-u", script, "--", "y")


def test_the_script_names_the_job(script: str) -> None:
    """The title of the failure summary is the script's path as typed."""
    assert parse([script, "x"], {}).title == script


def test_python_exec_replaces_the_interpreter(script: str) -> None:
    """PYTHON_EXEC is the workers' interpreter; empty, it is as if unset."""
    assert parse([script], {"PYTHON_EXEC": "/bin/sh"}).argv[0] == "/bin/sh"
    assert parse([script], {"PYTHON_EXEC": ""}).argv[0] == sys.executable


def test_a_script_name_with_local_rank_is_not_looked_for() -> None:
    """Each worker may have its own script, so no file of that very name has to exist."""
    assert parse(["train_${local_rank}.py"], {}).argv[2] == "train_${local_rank}.py"


def test_a_program_is_looked_for_on_path(script: str) -> None:
    """--no-python finds its program as the shell would."""
    folder, name = os.path.split(script)
    assert parse(["--no-python", name], {"PATH": f"/nowhere:{folder}"}).argv == (name,)


# -- which source counts -------------------------------------------------------------------------------------------


def test_the_command_line_beats_the_variable(script: str) -> None:
    """The variable of a flag that is given is not read, so it may even be wrong."""
    env = {"PET_NNODES": "9", "PET_MAX_RESTARTS": "many", "PET_STANDALONE": "0"}
    done = parse(["--nnodes=2", "--max-restarts=1", "--standalone", script], env)
    assert changed(done.config) == {"min_nodes": 2, "max_nodes": 2, "max_restarts": 1, "standalone": True}


def test_the_last_of_a_flag_wins(script: str) -> None:
    """As with argparse, the last value of a flag given twice counts."""
    assert parse(["--role=a", "--role=b", script], {}).config.role == "b"


def test_a_log_prefix_comes_from_torchs_variable(script: str) -> None:
    """TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE sets the prefix of tee'd lines."""
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}>"}
    assert parse([script], env).config.log_line_prefix_template == "<${rank}>"


# -- mistakes ------------------------------------------------------------------------------------------------------

MISTAKES: list[tuple[list[str], dict[str, str], str]] = [
    ([], {}, "there is no script to run"),
    (["--standalone"], {}, "there is no script to run"),
    (["nowhere/train.py"], {}, "the script 'nowhere/train.py' does not exist"),
    (["--run-path", "nowhere.py"], {}, "the script 'nowhere.py' does not exist"),
    (["--no-python", "nowhere/prog"], {}, "the program 'nowhere/prog' does not exist"),
    (["--no-python", "no-such-prog"], {"PATH": "/bin"}, "the program 'no-such-prog' is not on PATH"),
    (["--no-python", "/etc/passwd"], {}, "'/etc/passwd' is not executable"),
    (["SCRIPT"], {"PYTHON_EXEC": "/nowhere/python"}, "PYTHON_EXEC '/nowhere/python' does not exist"),
    (["-m", "--no-python", "SCRIPT"], {}, "--module and --no-python exclude each other"),
    (["-m", "--run-path", "SCRIPT"], {}, "--module and --run-path exclude each other"),
    (["--run-path", "--start-method=fork", "SCRIPT"], {}, "--start-method is 'fork', but --run-path"),
    (["--start-method=frok", "SCRIPT"], {}, "--start-method is 'frok'; did you mean 'fork'?"),
    (["--numa-binding=near", "SCRIPT"], {}, "--numa-binding is 'near'"),
    (["--nnodes", "SCRIPT"], {}, "--nnodes is 'SCRIPT'; give a number of nodes"),
    (["--nnodes=0", "SCRIPT"], {}, "--nnodes is '0', but it must be 1 <= MIN <= MAX"),
    (["--nnodes=3:2", "SCRIPT"], {}, "--nnodes is '3:2'"),
    (["--nnodes=1:2:3", "SCRIPT"], {}, "--nnodes is '1:2:3'"),
    (["--nproc-per-node=0", "SCRIPT"], {}, "--nproc-per-node is '0', outside 1 to 4096"),
    (["--nproc-per-node=-2", "SCRIPT"], {}, "--nproc-per-node is '-2'"),
    (["--nproc-per-node=", "SCRIPT"], {}, "--nproc-per-node is empty"),
    (["--max-restarts", "-1", "SCRIPT"], {}, "--max-restarts is '-1'"),
    (["--max-restarts=x", "SCRIPT"], {}, "--max-restarts is 'x', which is not a whole number"),
    (["--monitor-interval=nan", "SCRIPT"], {}, "--monitor-interval is 'nan'"),
    (["--shutdown-timeout=-1", "SCRIPT"], {}, "--shutdown-timeout is '-1'"),
    (["--node-rank=-1", "SCRIPT"], {}, "--node-rank is '-1'"),
    (["--master-port=65536", "SCRIPT"], {}, "--master-port is '65536', outside 0 to 65535"),
    (["--rdzv-conf=a", "SCRIPT"], {}, "--rdzv-conf has 'a', which is no key=value"),
    (["--rdzv-conf=a=", "SCRIPT"], {}, "--rdzv-conf has 'a='"),
    (["--rdzv-conf=a=1,", "SCRIPT"], {}, "--rdzv-conf has ''"),
    (["--rdzv-conf=a=1,a=2", "SCRIPT"], {}, "--rdzv-conf gives a twice"),
    (["--redirects=4", "SCRIPT"], {}, "--redirects is '4'"),
    (["-t", "0:9", "SCRIPT"], {}, "--tee is '0:9'"),
    (["--log-rotate=10", "SCRIPT"], {}, "--log-rotate is '10'; give a size of 1024 or more"),
    (["--local-ranks-filter=0,x", "SCRIPT"], {}, "--local-ranks-filter is '0,x'"),
    (["--signals-to-handle=SIGFOO", "SCRIPT"], {}, "--signals-to-handle has 'SIGFOO'"),
    (["--role"], {}, "--role needs a value"),
    (["--role", "--tee", "3", "SCRIPT"], {}, "--role needs a value"),
    (["--standalone=1", "SCRIPT"], {}, "--standalone is a switch and takes no value"),
    (["-x", "SCRIPT"], {}, "there is no flag -x"),
    (["--loocal-addr=0", "SCRIPT"], {}, "there is no flag --loocal-addr; did you mean '--local-addr'?"),
    (["SCRIPT"], {"PET_STANDALONE": "true"}, "PET_STANDALONE is 'true'"),
    (["SCRIPT"], {"PET_NNODES": "x"}, "PET_NNODES is 'x'"),
    (["SCRIPT"], {"PET_MAX_RESTARTS": "1.5"}, "PET_MAX_RESTARTS is '1.5'"),
    (["SCRIPT"], {"PET_RDZV_CONF": "x"}, "PET_RDZV_CONF has 'x'"),
    (["SCRIPT"], {"PET_TEE": "x"}, "PET_TEE is 'x'"),
]


@pytest.mark.parametrize(("args", "env", "message"), MISTAKES)
def test_each_mistake_is_named(args: list[str], env: dict[str, str], message: str, script: str) -> None:
    """A mistake brings one line with the flag or variable, the value, and what to do."""
    filled = [script if arg == "SCRIPT" else arg for arg in args]
    assert message.replace("SCRIPT", script) in refusal(filled, env)


@pytest.mark.parametrize(
    ("args", "env"), [(["--nnodes=zero", "t.py"], {}), (["-m", "x"], {"PET_STANDALONE": "yes"}), (["missing.py"], {})]
)
def test_a_mistake_ends_the_program_with_status_2(args: list[str], env: dict[str, str]) -> None:
    """As a program: one line on stderr with a hint, nothing on stdout, no traceback, status 2."""
    done = agent(*args, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("elastic-agent: ")
    assert done.stderr.endswith(" (see elastic-agent --help)\n")
    assert done.stderr.count("\n") == 1


# -- the program ---------------------------------------------------------------------------------------------------


def agent(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from elastic_agent.launcher.cli import entry; entry()", *args]
    return subprocess.run(
        command, env={**os.environ, **(env or {})}, capture_output=True, check=False, text=True, timeout=60
    )


def test_help_names_every_flag() -> None:
    """--help and -h show each flag and exit 0, even if a PET_ variable is wrong."""
    done = agent("--help", env={"PET_NNODES": "broken"})
    assert (done.returncode, done.stderr) == (0, "")
    for flag in FLAGS:
        assert done.stdout.count(f"--{flag.name} ") + done.stdout.count(f"--{flag.name}\n") >= 1, flag.name
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert agent("-h").stdout == done.stdout


def test_version_is_the_packages() -> None:
    """--version prints the package's own version."""
    import elastic_agent

    assert agent("--version").stdout == f"elastic-agent {elastic_agent.__version__}\n"


def test_reading_a_command_line_imports_little(script: str) -> None:
    """Neither torch nor another heavy module is loaded to read a command line; click only prints the help."""
    heavy = ["torch", "asyncio", "subprocess", "multiprocessing", "logging", "socket", "importlib.metadata", "difflib"]
    heavy += ["click", "uuid", "datetime", "gettext", "platform"]
    code = f"import sys; sys.path.insert(0, {os.environ['PYTHONPATH'].split(os.pathsep)[0]!r})\n"
    code += "taken = set(sys.modules)\n"
    code += "from elastic_agent.launcher import cli; from elastic_agent.launcher.config.config import plan\n"
    code += f"config, argv, title, _ = cli.parse(['--nnodes=1', '--tee=3', {script!r}], {{}})\n"
    code += (
        f"plan(config, argv, title, {{}}); print([name for name in {heavy!r} if name in sys.modules.keys() - taken])"
    )
    # -S keeps out what the environment's own start-up files load.
    site = str(Path(click.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.append({site!r})\n{code}"],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


# -- the library ---------------------------------------------------------------------------------------------------


class Api:
    """Replaces `launcher.command`, whose `run_command` runs the job."""

    def __init__(self, error: AgentError | None) -> None:
        self.error = error
        self.calls: list[Invocation] = []

    def run_command(
        self, config: LaunchConfig, argv: tuple[str, ...], title: str, *, as_program: bool, printing: Printing
    ) -> None:
        assert isinstance(as_program, bool)
        self.calls.append(Invocation(config, argv, title, printing))
        if self.error is not None:
            raise self.error


Job = Callable[[AgentError | None], Api]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    def install(error: AgentError | None) -> Api:
        api = Api(error)
        monkeypatch.setitem(sys.modules, "elastic_agent.launcher.command", cast("ModuleType", api))
        return api

    return install


def failed(*, told: bool) -> WorkersFailed:
    error = WorkersFailed("rank 0 failed", cause=None)
    error.reported = told
    return error


def test_main_returns_none_on_success(job: Job, script: str) -> None:
    """`main(args)` runs the job that the arguments ask for and returns None, as torch's does."""
    api = job(None)
    assert cli.main(["--nnodes=1", script, "x"]) is None  # type: ignore[func-returns-value]
    assert api.calls == [parse(["--nnodes=1", script, "x"], {})]


@pytest.mark.parametrize("told", [False, True])
def test_main_raises_as_a_library(job: Job, script: str, told: bool) -> None:
    """`main(args)` raises the very error of the job, and does not exit."""
    error = failed(told=told)
    job(error)
    with pytest.raises(WorkersFailed) as caught:
        cli.main([script])
    assert caught.value is error


def test_main_raises_usage_errors_as_a_library() -> None:
    """A bad argument is an exception too."""
    with pytest.raises(UsageError, match="no script"):
        cli.main([])


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (None, 0, ""),
        (failed(told=True), 1, ""),
        (failed(told=False), 1, "elastic-agent: exit 1: rank 0 failed\n"),
        (Preempted("drained"), 75, "elastic-agent: exit 75: drained\n"),
        (UsageError("beat is 5"), 2, "elastic-agent: exit 2: beat is 5 (see elastic-agent --help)\n"),
    ],
)
def test_the_program_exits_with_the_jobs_status(
    job: Job,
    script: str,
    error: AgentError | None,
    status: int,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`entry` reads this process's arguments, exits with the job's status, and prints an error not printed before."""
    job(error)
    monkeypatch.setattr(sys, "argv", ["elastic-agent", script])
    with pytest.raises(SystemExit) as caught:
        cli.entry()
    assert caught.value.code == status
    assert capsys.readouterr().err == printed


# -- run-path ------------------------------------------------------------------------------------------------------


def run_path(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-u", "-m", "elastic_agent.launcher.in_worker.run_path", *args]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=False, text=True, timeout=60)


def test_run_path_runs_a_script_as_main(tmp_path: Path) -> None:
    """The script is `__main__` and has its own name and arguments; its status is the worker's."""
    path = tmp_path / "s.py"
    path.write_text("import sys; print(__name__, sys.argv, __file__); raise SystemExit(7)")
    done = run_path(str(path), "--x", "y")
    assert (done.returncode, done.stdout) == (7, f"__main__ {[str(path), '--x', 'y']} {path}\n")


def test_run_path_records_an_exception(tmp_path: Path) -> None:
    """The worker exits 1, and the exception is in the error file, in the format of torch's @record."""
    path, error = tmp_path / "s.py", tmp_path / "error.json"
    path.write_text("raise ValueError('boom')")
    done = run_path(str(path), TORCHELASTIC_ERROR_FILE=str(error))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: boom")
    message = json.loads(error.read_text())["message"]
    assert message["message"] == "ValueError: boom"
    assert message["extraInfo"]["py_callstack"].startswith("Traceback")
    assert int(message["extraInfo"]["timestamp"]) > 0
    assert sorted(os.listdir(tmp_path)) == ["error.json", "s.py"]


def test_run_path_shows_the_scripts_exception_even_where_no_file_can_be_written(tmp_path: Path) -> None:
    """stderr has the exception, and a line that the error file cannot be written."""
    path = tmp_path / "s.py"
    path.write_text("raise ValueError('boom')")
    done = run_path(str(path), TORCHELASTIC_ERROR_FILE=str(tmp_path / "no" / "error.json"))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: boom")
    assert "cannot write the error file" in done.stderr
