"""A Python function as what workers run: handed over and answered through private files of this user, on this host.

As `multiprocessing` does with its spawn method, whose preparation is used: a worker gets this process's
sys.path, directory and arguments, and imports its main module (under another name). Nothing here crosses a host.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from ...agent.errors import InternalError, UsageError

PAYLOAD = "call.pickle"


class FunctionCall:
    """A function and its arguments, written where workers find them, and what each worker returned."""

    def __init__(self, function: Callable[..., Any], args: tuple[object, ...]) -> None:
        """Raises UsageError if it cannot be handed over: a lambda, a function made inside another, one typed at a
        prompt; or if there is no room for it."""
        self.title: str = getattr(function, "__qualname__", None) or repr(function)
        parts = (_preparation(self.title, function), self._pickled(function, args))
        self.job = (self.title, *(shown(arg) for arg in args))
        """What nodes of one job have in common of it. Not its module: who launches it decides how that is called."""
        self._folder = ""
        try:
            self._folder = tempfile.mkdtemp(prefix="elastic_agent_call_")
            with open(os.path.join(self._folder, PAYLOAD), "wb") as file:
                for part in parts:
                    file.write(len(part).to_bytes(8, "big") + part)
        except OSError as error:
            self.close()
            raise UsageError(f"{self.title} cannot be handed to workers: {error}; make room, or set TMPDIR") from error
        here = os.path.dirname(os.path.abspath(__file__))
        script, runner = os.path.join(here, "function_worker.py"), os.path.join(here, "run_path.py")
        # By path, so that a worker finds them however this process came to find the package.
        self.argv: tuple[str, ...] = (sys.executable, "-u", runner, script, self._folder)

    def _pickled(self, function: Callable[..., Any], args: tuple[object, ...]) -> bytes:
        try:
            # Not multiprocessing's own pickler, through which torch would share a tensor's memory: each worker gets a
            # copy, in later rounds too.
            return pickle.dumps((function, args))
        except Exception as error:  # pickling runs the caller's own code, which may raise anything
            raise UsageError(
                f"{self.title} cannot be handed to workers: {_line(error)}; use a function of a module, and arguments "
                "that can be pickled"
            ) from error

    def result(self, round: int, rank: int) -> object:  # noqa: A002 - the field's word
        """What that worker returned. Raises UsageError if it cannot be read back here."""
        try:
            file = open(os.path.join(self._folder, f"result_{round}_{rank}.pickle"), "rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise InternalError(f"the result of rank {rank} is not there: {error}; please report it") from error
        with file:
            try:
                return pickle.load(file)  # noqa: S301 - written by our own worker in a private directory
            except Exception as error:  # unpickling runs the caller's own code
                returned = f"what {self.title} returned on rank {rank}"
                raise UsageError(f"{returned} cannot be read back: {_line(error)}; return plain values") from error

    def close(self) -> None:
        """Remove the files. Idempotent."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def shown(arg: object) -> str:
    """An argument as far as it looks the same in every process: a plain value in full, of others the type."""
    return repr(arg) if isinstance(arg, (str, bytes, int, float, bool, type(None))) else type(arg).__name__


def _preparation(title: str, function: Callable[..., Any]) -> bytes:
    from multiprocessing import spawn

    try:
        known = spawn.get_preparation_data("worker")
    except RuntimeError:  # it means this one thing, in seventeen lines
        raise UsageError(
            f"{title} is launched again by a worker that imports the program that launches it; launch below "
            "`if __name__ == '__main__':`"
        ) from None
    importable = "init_main_from_name" in known or "init_main_from_path" in known
    if getattr(function, "__module__", "") == "__main__" and not importable:
        raise UsageError(f"{title} was typed at a prompt, where workers cannot import it; use a function of a module")
    # The key of this process's own connections: workers have none of those, and it would lie in a file.
    known.pop("authkey", None)
    return pickle.dumps(known)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
