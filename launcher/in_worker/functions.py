"""Workers that call a Python function. Function and results are passed in private files of this user on this host.

As with the spawn method of `multiprocessing`, whose preparation is used, a worker gets this process's sys.path,
directory and arguments, and imports its main module under another name. Nothing here is sent to another host.
"""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from ...agent.errors import InternalError, UsageError

PAYLOAD = "call.pickle"


class FunctionCall:
    """A function and its arguments, written to files for the workers, and the results that the workers wrote."""

    def __init__(self, function: Callable[..., Any], args: tuple[object, ...]) -> None:
        """Raises UsageError if the function or an argument cannot be pickled (a lambda, a function defined in another,
        one typed at a prompt), or the files cannot be written."""
        self.title = title_of(function)
        known, typed = _preparation(self.title)
        parts = (
            pickle.dumps((known, self.title)),
            self._pickled_by_value(function, args) if typed else self._pickled(function, args),
        )
        self.job = (self.title, *_bound(function), *(shown(arg) for arg in args))
        """What must be the same on all nodes of a job. It does not have the function's module, whose name depends on
        how the program was started."""
        self._folder = ""
        try:
            self._folder = tempfile.mkdtemp(prefix="elastic_agent_call_")
            with open(os.path.join(self._folder, PAYLOAD), "wb") as file:
                for part in parts:
                    file.write(len(part).to_bytes(8, "big") + part)
        except OSError as error:
            self.close()
            raise UsageError(
                f"{self.title} cannot be written for the workers: {error}; free space, or set TMPDIR"
            ) from error
        here = os.path.dirname(os.path.abspath(__file__))
        script, runner = os.path.join(here, "function_worker.py"), os.path.join(here, "run_path.py")
        # By path, so that a worker finds them however this process has found the package.
        self.argv: tuple[str, ...] = (sys.executable, "-u", runner, script, self._folder)

    def _pickled(self, function: Callable[..., Any], args: tuple[object, ...]) -> bytes:
        try:
            # Not multiprocessing's pickler, with which torch shares a tensor's memory: each worker, in every round,
            # needs a copy of its own.
            return pickle.dumps((function, args))
        except Exception as error:  # pickling runs the caller's own code, which may raise anything
            raise UsageError(
                f"{self.title} cannot be pickled for the workers: {_line(error)}; use a function of a module, and "
                "arguments that can be pickled"
            ) from error

    def _pickled_by_value(self, function: Callable[..., Any], args: tuple[object, ...]) -> bytes:
        """For a main program that workers cannot import, a notebook or a prompt: what it defines goes as code."""
        try:
            from cloudpickle import dumps
        except ImportError:
            if getattr(function, "__module__", "") != "__main__":
                return self._pickled(function, args)
            raise UsageError(
                f"{self.title} was typed at a prompt or read from standard input, and workers cannot import it; "
                "install cloudpickle, which passes functions as code, or use a function of a module"
            ) from None
        try:
            pickled: bytes = dumps((function, args))
        except Exception as error:  # as above
            raise UsageError(f"{self.title} cannot be pickled for the workers: {_line(error)}") from error
        return pickled

    def result(self, round: int, rank: int) -> object:  # noqa: A002 - the field's word
        """The result of the worker with that global rank. Raises UsageError if there is none, or it cannot be unpickled
        here."""
        try:
            file = open(os.path.join(self._folder, f"result_{round}_{rank}.pickle"), "rb")  # noqa: SIM115 - closed below
        except OSError as error:
            if isinstance(error, FileNotFoundError) and os.path.exists(os.path.join(self._folder, PAYLOAD)):
                raise UsageError(
                    f"{self.title} on rank {rank} ended its process with 0 before it returned, so there is no result; "
                    "return from it, or call sys.exit(0), instead of os._exit(0)"
                ) from error
            raise InternalError(f"the result of rank {rank} is missing: {error}; please report it") from error
        with file:
            try:
                return pickle.load(file)  # noqa: S301 - written by this agent's worker in a private directory
            except Exception as error:  # unpickling runs the caller's own code
                result = f"the result of {self.title} on rank {rank}"
                raise UsageError(f"{result} cannot be unpickled: {_line(error)}; return plain values") from error

    def close(self) -> None:
        """Remove the files. May be called again."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def title_of(function: Callable[..., Any]) -> str:
    """How messages and other nodes call a function: the same in every process, as a `repr` with an address is not. Of a
    `functools.partial` the function in it, of an object that can be called its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _bound(function: Callable[..., Any]) -> Iterator[str]:
    """The arguments that a `functools.partial` has already, as `shown`."""
    while isinstance(function, functools.partial):
        yield from map(shown, function.args)
        yield from (f"{name}={shown(value)}" for name, value in sorted(function.keywords.items()))
        function = function.func


def shown(arg: object) -> str:
    """An argument as text that is the same in every process: a plain value in full, of others only the type."""
    return repr(arg) if isinstance(arg, (str, bytes, int, float, bool, type(None))) else type(arg).__name__


def _preparation(title: str) -> tuple[dict[str, object], bool]:
    """What `multiprocessing` would pass on to a new process, and whether the main program is one that it cannot import:
    typed at a prompt or in a notebook, or read from standard input."""
    from multiprocessing import spawn

    try:
        known = spawn.get_preparation_data("worker")
    except RuntimeError:  # raised for this reason only, with a text of seventeen lines
        raise UsageError(
            f"{title} is launched by a worker, which imports the main program; launch it below "
            "`if __name__ == '__main__':`"
        ) from None
    path = known.get("init_main_from_path")
    if path is not None and not os.path.isfile(path):
        del known["init_main_from_path"]  # the program came from standard input, and Python calls its file "<stdin>"
    # The key of this process's own connections is of no use to workers and must not be written to a file.
    known.pop("authkey", None)
    return known, not {"init_main_from_name", "init_main_from_path"} & known.keys()


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
