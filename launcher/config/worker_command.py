"""A worker's command, made from the script and its arguments as typed, and checked before anything starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from ...agent.errors import UsageError

LOCAL_RANK = "--local-rank=${local_rank}"
"""The argument that `torch.distributed.launch` gives each script."""
FIRST_LINE_BYTES = 256
"""Of a script, which the kernel reads (BINPRM_BUF_SIZE)."""


def worker_command(
    script: str, args: Sequence[str], env: Mapping[str, str], *, module: bool, no_python: bool, run_path: bool
) -> tuple[str, ...]:
    """A worker's command, as torchrun builds it: `python -u [-m] SCRIPT ARGS`, or SCRIPT itself with `no_python`.

    PYTHON_EXEC in `env` replaces this interpreter. `run_path` takes precedence over `no_python`. Raises UsageError for
    a script or program that does not exist, and for flags that exclude each other.
    """
    here = working_directory()
    if module and (run_path or no_python):
        other = "--run-path" if run_path else "--no-python"
        raise UsageError(f"--module and {other} exclude each other: {script!r} is a module or a file, not both")
    if run_path:
        _check_file(script, here)
        return (sys.executable, "-u", "-m", "elastic_agent.launcher.in_worker.run_path", script, *args)
    if no_python:
        _check_program("the program", script, env, here)
        return (script, *args)
    python = env.get("PYTHON_EXEC") or sys.executable
    if python != sys.executable:
        _check_program("PYTHON_EXEC", python, env, here)
    if module:
        return (python, "-u", "-m", script, *args)
    _check_file(script, here)
    return (python, "-u", script, *args)


def job_command(argv: Sequence[str], title: str) -> tuple[str, ...]:
    """The part of a worker's command that all nodes of a job must have in common: script and arguments. The interpreter
    and its path may differ, and so may two spellings of the script's path."""
    command = tuple(argv)
    if title not in command:
        return (title,)
    at = command.index(title)
    if command[at - 1 : at] == ("-m",):
        return command[at - 1 :]
    # At 0 it is a program, and ./program is not the same as program, which is looked up on PATH.
    return (os.path.normpath(title) if at else title, *command[at + 1 :])


def working_directory() -> str:
    """Absolute path of the current directory. Raises UsageError if it was deleted or cannot be read."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the working directory was deleted or cannot be read ({error.strerror}); cd to another one"
        ) from error


def _check_file(script: str, here: str) -> None:
    # "-" is standard input, and a name with ${local_rank} is a different file for each worker.
    if script == "-" or "$" in script:
        return
    if not os.path.exists(script):
        raise UsageError(f"the script {script!r} does not exist (from {here!r}); correct the path, or use -m")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise UsageError(f"the script {script!r} is a directory without a __main__.py; give the script in it")
    if not os.access(script, os.R_OK):
        raise UsageError(f"the script {script!r} cannot be read by this user; check its permissions (ls -l)")


def check_module(argv: Sequence[str]) -> None:
    """Raise UsageError if the module in `argv`, a worker's command as `worker_command` returns it, cannot be found.

    Commands that do not run a module with this interpreter are not checked."""
    top = argv[3].partition(".")[0] if tuple(argv[:3]) == (sys.executable, "-u", "-m") else ""
    if not top.isidentifier() or top in sys.modules:
        return
    here = working_directory()
    # A worker searches its working directory first; this process, a console script, does not. Only the first name is
    # looked up, because to find a module in a package Python runs the package.
    sys.path.insert(0, here)
    try:
        found = any(finder.find_spec(top, None) is not None for finder in sys.meta_path)
    finally:
        sys.path.remove(here)
    if not found:
        raise UsageError(
            f"the module {top!r} cannot be found from {here!r}; correct the name, or set PYTHONPATH to its directory"
        )


def _check_program(what: str, program: str, env: Mapping[str, str], here: str) -> None:
    if "/" in program:
        if not os.path.exists(program):
            raise UsageError(f"{what} {program!r} does not exist (from {here!r}); correct the path")
        if os.path.isdir(program) or not os.access(program, os.X_OK):
            raise UsageError(f"{what} {program!r} is not executable; give a program, or make it executable (chmod +x)")
        _check_interpreter(what, program)
        return
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            _check_interpreter(what, path)
            return
    hint = f"; write ./{program} for the file in this directory" if os.path.exists(program) else "; give its path"
    raise UsageError(f"{what} {program!r} is not on PATH{hint}")


def _check_interpreter(what: str, path: str) -> None:
    """Raise UsageError for a script whose first line names an interpreter that is not there: of that the kernel says
    only that there is no such file, as if the script itself were missing (execve(2))."""
    try:
        with open(path, "rb") as file:
            line = file.readline(FIRST_LINE_BYTES)
    except OSError:
        return  # a program may be run by those who may not read it
    if not line.startswith(b"#!"):
        return
    found = line[2:].partition(b"\n")[0].replace(b"\t", b" ").lstrip(b" ").partition(b" ")[0]
    interpreter = os.fsdecode(found)
    if not found or os.path.exists(interpreter):
        return
    fix = "correct that line"
    if interpreter.endswith("\r"):
        fix = "its lines end as on Windows: take the carriage returns out (sed -i 's/\\r$//')"
    raise UsageError(
        f"{what} {path!r} is to be run by {interpreter!r}, as its first line says, which does not exist; {fix}"
    )
