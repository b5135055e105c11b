"""The command that a worker is, from what was typed; checked before anything starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from ...agent.errors import UsageError


def worker_command(
    script: str, args: Sequence[str], env: Mapping[str, str], *, module: bool, no_python: bool, run_path: bool
) -> tuple[str, ...]:
    """A worker's command, as torchrun builds it: `python -u [-m] SCRIPT ARGS`, or SCRIPT itself with `no_python`.

    PYTHON_EXEC in `env` is used instead of this interpreter. `run_path` beats `no_python`. Raises UsageError for a
    script or program that is not there, and for flags that exclude each other.
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
    """What the nodes of a job have in common of a worker's command: script and arguments. The interpreter and the way
    to it are each node's own, and so is how the way to a script is spelled."""
    words = tuple(argv)
    if title not in words:
        return (title,)
    at = words.index(title)
    if words[at - 1 : at] == ("-m",):
        return words[at - 1 :]
    # The first word is a program, for which ./program is another one than the one on PATH.
    return (os.path.normpath(title) if at else title, *words[at + 1 :])


def working_directory() -> str:
    """Absolute path of the current directory. Raises UsageError if it was deleted, or may not be read."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the working directory cannot be used, was it deleted? ({error.strerror}); cd to one that is there"
        ) from error


def _check_file(script: str, here: str) -> None:
    # "-" is standard input, and a name with ${local_rank} is another one for each worker.
    if script == "-" or "$" in script:
        return
    if not os.path.exists(script):
        raise UsageError(f"the script {script!r} is not there (seen from {here!r}); correct the path, or use -m")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise UsageError(f"the script {script!r} is a directory without a __main__.py; name the script in it")
    if not os.access(script, os.R_OK):
        raise UsageError(f"the script {script!r} may not be read by this user; see its permissions (ls -l)")


def check_module(argv: Sequence[str]) -> None:
    """Raise UsageError if the module of a worker's command, as `worker_command` gave it, is not to be found.

    Anything but a module run by this interpreter passes."""
    top = argv[3].partition(".")[0] if tuple(argv[:3]) == (sys.executable, "-u", "-m") else ""
    if not top.isidentifier() or top in sys.modules:
        return
    here = working_directory()
    # A worker looks in its working directory first; we, as a console script, do not. Only the first name is looked
    # for: to find what is in a package, Python runs the package.
    sys.path.insert(0, here)
    try:
        found = any(finder.find_spec(top, None) is not None for finder in sys.meta_path)
    finally:
        sys.path.remove(here)
    if not found:
        raise UsageError(
            f"the module {top!r} is not to be found from {here!r}; correct the name, or set PYTHONPATH to where it is"
        )


def _check_program(what: str, program: str, env: Mapping[str, str], here: str) -> None:
    if "/" in program:
        if not os.path.exists(program):
            raise UsageError(f"{what} {program!r} is not there (looked from {here!r}); correct the path")
        if os.path.isdir(program) or not os.access(program, os.X_OK):
            raise UsageError(f"{what} {program!r} is not executable; name a program, or make it one (chmod +x)")
        return
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return
    hint = f"; write ./{program} for the one in this directory" if os.path.exists(program) else "; give its path"
    raise UsageError(f"{what} {program!r} is not on PATH{hint}")
