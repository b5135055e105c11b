"""The command line: every mistake brings one line and status 2; help, version, and what is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from elastic_agent.launcher.cli import parse
from elastic_agent.launcher.config.flags import FLAGS
from support.rigs.flags import refusal

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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--kill-signal=USR1", "--save-signal=USR1"], "--save-signal is signal 10, which --kill-signal has too"),
        (["--kill-signal=TERM"], "--kill-signal is signal 15, which --signals-to-handle or --forward-signals has too"),
        (["--log-dir=log_dir"], "--log-dir is 'log_dir', which is no directory"),
        (["--control-cert=c"], "--control-cert without --control-address; give all four"),
    ],
)
def test_a_mistake_in_what_flags_say_together_names_the_flags(tmp_path: Path, args: list[str], message: str) -> None:
    """And not the fields of the library's configuration; a value stays as it was typed."""
    (tmp_path / "log_dir").write_text("")
    (tmp_path / "t.py").write_text("")
    done = agent(*args, "t.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"elastic-agent: exit 2: {message}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#!/no/sh -e\n", "is to be run by '/no/sh', as its first line says, which does not exist; correct that line"),
        (
            "#! /bin/sh\r\n",
            "is to be run by '/bin/sh\\r', as its first line says, which does not exist; its lines end as",
        ),
    ],
)
def test_a_program_whose_interpreter_is_missing_is_named_with_it(tmp_path: Path, line: str, message: str) -> None:
    """The kernel would say of the program itself that there is no such file."""
    program = made_program(tmp_path, line)
    assert f"the program {program!r} {message}" in refusal(["--no-python", program])
    assert f"the program {program!r} {message}" in refusal(["--no-python", "prog"], {"PATH": str(tmp_path)})


@pytest.mark.parametrize("line", ["#!\t/bin/sh -e\n", "#!/bin/sh", "#!\n", "\x7fELF"])
def test_a_first_line_that_names_no_missing_interpreter_is_taken(tmp_path: Path, line: str) -> None:
    """As that of a binary, which names none."""
    program = made_program(tmp_path, line)
    assert parse(["--no-python", program], {}).argv == (program,)


def made_program(folder: Path, first_line: str) -> str:
    """An executable file `prog`, its path."""
    program = folder / "prog"
    program.write_bytes(first_line.encode())
    program.chmod(0o755)
    return str(program)


# -- the program ---------------------------------------------------------------------------------------------------


def agent(*args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from elastic_agent.launcher.cli import entry; entry()", *args]
    return subprocess.run(
        command, env={**os.environ, **(env or {})}, cwd=cwd, capture_output=True, check=False, text=True, timeout=60
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
