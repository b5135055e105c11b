"""The command line: what belongs to the script, and whether flag or variable wins."""

from __future__ import annotations

import os
import sys

import pytest

from elastic_agent.launcher.cli import parse
from support.rigs.flags import changed


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
