"""A worker that calls a function: `run_path.py function_worker.py FOLDER`; see `functions.py`.

An exception goes through to `run_path`, which writes it to the worker's error file, as torchrun does for functions.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from string import Template
from typing import Any


def main(folder: str) -> None:
    """Call the function, and leave what it returned for the agent."""
    function, args = _load(folder)
    local_rank = os.environ["LOCAL_RANK"]
    try:
        result = function(*(_fill_in(arg, local_rank) for arg in args))
    except SystemExit as leaving:
        if leaving.code:
            raise
        result = None
    _keep(folder, getattr(function, "__qualname__", repr(function)), result)


def _load(folder: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    from multiprocessing import process, spawn

    with open(os.path.join(folder, "call.pickle"), "rb") as file:
        preparation, call = (file.read(int.from_bytes(file.read(8), "big")) for _ in range(2))
    # As multiprocessing marks a process whose main module is still being imported: launching from there is refused, or
    # each worker would start workers of its own without end.
    current: Any = process.current_process()
    current._inheriting = True
    # Sets sys.path and imports the launcher's main module, without which the function may not be found.
    spawn.prepare(pickle.loads(preparation))  # noqa: S301 - written by our own agent in a private directory
    del current._inheriting
    function, args = pickle.loads(call)  # noqa: S301 - as above
    return function, args


def _fill_in(arg: object, local_rank: str) -> object:
    return Template(arg).safe_substitute(local_rank=local_rank) if isinstance(arg, str) else arg


def _keep(folder: str, title: str, result: object) -> None:
    name = f"result_{os.environ['ELASTIC_AGENT_ROUND']}_{os.environ['RANK']}.pickle"
    path = os.path.join(folder, name)
    with open(path + ".part", "wb") as file:
        try:
            pickle.dump(result, file)
        except Exception as error:
            raise TypeError(f"what {title} returned cannot be handed back: {type(error).__name__}: {error}") from error
    os.replace(path + ".part", path)


if __name__ == "__main__":
    main(sys.argv[1])
