"""The worker that calls a function: `run_path.py function_worker.py FOLDER`; see `functions.py`.

`run_path` writes an exception of the function to the worker's error file, as torchrun does for functions.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from string import Template
from typing import Any

NO_RESTART = 93
"""As `elastic_agent.agent.exit_status` has it, which a worker cannot always import."""


class NoResult(TypeError):
    """What the function returned cannot be handed to the agent."""


def main(folder: str) -> None:
    """Call the function of `folder`, and write its result there for the agent. A function that calls `sys.exit(0)` has
    returned None."""
    function, args, title = _load(folder)
    local_rank = os.environ["LOCAL_RANK"]
    # Now: the function may change its environment.
    path = os.path.join(folder, f"result_{os.environ['ELASTIC_AGENT_ROUND']}_{os.environ['RANK']}.pickle")
    try:
        result = function(*(_fill_in(arg, local_rank) for arg in args))
    except SystemExit as exit_call:
        if exit_call.code:
            raise
        result = None
    try:
        _write_result(path, title, result)
    except NoResult as problem:
        # Another start would only call the function once more, from its beginning, and come to the same end.
        print(problem, file=sys.stderr)
        raise SystemExit(NO_RESTART) from problem


def _load(folder: str) -> tuple[Callable[..., Any], tuple[Any, ...], str]:
    from multiprocessing import process, spawn

    with open(os.path.join(folder, "call.pickle"), "rb") as file:
        preparation, call = (file.read(int.from_bytes(file.read(8), "big")) for _ in range(2))
    # The mark with which multiprocessing refuses to start processes while the main module is still being imported.
    # Without it a main module that launches on import would start workers of workers without end.
    current: Any = process.current_process()
    current._inheriting = True
    # Sets sys.path and imports the launching program's main module, in which the function may be.
    known, title = pickle.loads(preparation)  # noqa: S301 - written by this worker's agent in a private directory
    spawn.prepare(known)
    del current._inheriting
    function, args = pickle.loads(call)  # noqa: S301 - as above
    return function, args, title


def _fill_in(arg: object, local_rank: str) -> object:
    return Template(arg).safe_substitute(local_rank=local_rank) if isinstance(arg, str) else arg


def _write_result(path: str, title: str, result: object) -> None:
    """Raises NoResult."""
    try:
        with open(path + ".part", "wb") as file:
            pickle.dump(result, file)
        os.replace(path + ".part", path)
    except OSError as error:
        raise NoResult(f"the result of {title} cannot be written: {error}; free space, or set TMPDIR") from error
    except Exception as error:  # pickling runs the user's own code
        problem = f"cannot be pickled for the agent: {type(error).__name__}: {error}"
        raise NoResult(f"the result of {title} {problem}; return plain values") from error


if __name__ == "__main__":
    main(sys.argv[1])
