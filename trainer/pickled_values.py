"""Python objects on their way between a program and the workers on its own host: through private files only.

cloudpickle takes what the main program defines as code, so that workers need not import it. Nothing of this is sent to
another host, and nothing that came from one is read here.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from typing import Any

from ..agent.errors import UsageError


def private(path: str, flags: int) -> int:
    """An `opener` of files for this user only."""
    return os.open(path, flags, 0o600)


def write(folder: str, name: str, what: str, thing: Any) -> None:
    """Into a file of that name, whole or not at all, for this user only. what: how messages name the thing. Raises
    UsageError where it cannot be pickled, or the file cannot be written."""
    try:
        data = _pickled(thing)
    except Exception as error:  # pickling runs the user's own code
        hint = "" if _has_cloudpickle() else "; install cloudpickle, which passes what is defined in a program as code"
        raise UsageError(f"{what} cannot be passed to the workers: {type(error).__name__}: {error}{hint}") from error
    try:
        descriptor, aside = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(aside, os.path.join(folder, name))
    except OSError as error:
        raise UsageError(f"{what} cannot be written for the workers: {error}; free space, or set TMPDIR") from error


def read(folder: str, name: str) -> Any:
    """What `write` wrote. Raises what unpickling raises."""
    with open(os.path.join(folder, name), "rb") as file:
        return pickle.load(file)  # noqa: S301 - written by a process of this user into a private directory


def take(folder: str, name: str) -> Any:
    """As `read`, and removes the file."""
    value = read(folder, name)
    os.unlink(os.path.join(folder, name))
    return value


def _pickled(thing: Any) -> bytes:
    if _has_cloudpickle():
        import cloudpickle

        data: bytes = cloudpickle.dumps(thing)
        return data
    return pickle.dumps(thing)


def _has_cloudpickle() -> bool:
    from importlib.util import find_spec

    return find_spec("cloudpickle") is not None
