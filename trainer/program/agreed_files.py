"""`save` and `load` on several nodes: what is wrong with one node's file is the same error on all, and changes none."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from typing import Any

from ...worker.errors import CheckpointDamaged, WorkerLibraryError, WrongState
from .. import files, plain
from ..names import LOAD, SAVE
from .call_server import Answer

log = logging.getLogger("elastic_agent")
Call = Callable[[str, dict[str, Any], str, str], Answer]
"""Makes a call of this program: its name, arguments, the name of its parcel, why this node cannot take part."""
Parcel = Callable[[bytes], str]
"""Keeps a parcel for this host's workers, and names it."""


def save(path: str | os.PathLike[str], state: bytes, parcel: Parcel, call: Call) -> bool:
    """Each node writes its file beside the one that is there; when all have, each worker of a first rank puts it in its
    place. state: empty where the call is done already. Returns whether there is a file now. Raises OSError, on every
    node the same."""
    target = os.path.abspath(path)
    aside = name = refused = ""
    try:
        try:
            if state:
                aside = files.write_aside(target, {"state": plain.from_bytes(state)})
                name = parcel(json.dumps([aside, target]).encode())
        except OSError as error:
            refused = f"{error.errno}: {error.strerror}"
        answer = call(SAVE, {}, name, refused)
    finally:
        if aside and os.path.exists(aside):
            os.unlink(aside)
    if answer.value is not None:
        number, _, text = answer.value.partition(": ")
        raise OSError(int(number), text)
    return not answer.recorded or os.path.exists(target)


def load(path: str | os.PathLike[str], parcel: Parcel, call: Call) -> None:
    """The file of the first node that has it. Raises CheckpointDamaged, WrongState, OSError, on every node the same."""
    name = refused = ""
    try:
        if os.path.exists(path):
            name = parcel(plain.to_bytes(files.load(path)["state"]))
    except (OSError, WorkerLibraryError) as error:
        refused = f"{type(error).__name__}: {error}"
    take(call(LOAD, {}, name, refused))


def take(answer: Answer) -> None:
    """What a call to load was answered. Raises the error that it says."""
    if answer.value is not None:
        kind, _, text = answer.value.partition(": ")
        kinds = {each.__name__: each for each in (CheckpointDamaged, WrongState)}
        raise kinds.get(kind, OSError)(text)
