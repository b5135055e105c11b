"""The command line: torchrun's flags in all their spellings."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from elastic_agent.agent.spec import Rotation
from elastic_agent.launcher.cli import parse
from elastic_agent.launcher.config.arguments import find_flag
from elastic_agent.launcher.config.flags import FLAGS
from elastic_agent.launcher.reporting.printing import Printing
from support.rigs.flags import BARE, changed, refusal

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
BEYOND_TORCHRUN = (
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
"""Flags that torchrun does not have; with -q, -v and --version."""
WITHOUT_VARIABLE = {"logs-specs", "numa-binding"}
"""Flags that no PET_ variable sets, as in torch 2.13."""


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
        f"--{spelling}" for name in BEYOND_TORCHRUN for spelling in (name, name.replace("-", "_"))
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
