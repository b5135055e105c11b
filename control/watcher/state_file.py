"""What a run of `--once` keeps for the next: since when what is over, what was measured, what was not delivered."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...agent.errors import UsageError
from ..decisions.trend import Sample
from ..decisions.watches import WatchState

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Times in the file are of a clock that begins at the start of the host: of another start they mean nothing."""
FORMAT = 1
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
ROOM = 8192
"""Bytes of which the file has a multiple, and half as many more: on a disk that is full it is written in place. A watch
of that disk must know the next time that it has fired."""


@dataclass
class Remembered:
    """The content of a state file."""

    states: dict[str, WatchState] = field(default_factory=dict)
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    unsent: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    """(key, text, count) by channel."""


@contextlib.contextmanager
def locked(path: str) -> Iterator[bool]:
    """Whether this process may use the file: not while another does. Raises UsageError if it cannot be written."""
    try:
        lock = open(f"{path}.lock", "a")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(
            f"{path}.lock: {error.strerror}; give --state PATH in a directory that can be written"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def load(path: str) -> Remembered:
    """What the last run saved; nothing where there was none, or the host was started anew since, or it is damaged."""
    try:
        found = json.loads(Path(path).read_text())
        if found["format"] != FORMAT or found["boot"] != BOOT_ID.read_text().strip():
            unsent = {name: [tuple(each) for each in events] for name, events in found["unsent"].items()}
            return Remembered(unsent=unsent) if found["format"] == FORMAT else Remembered()
        return Remembered(
            {title: WatchState(**state) for title, state in found["states"].items()},
            {
                title: {name: [(at, value) for at, value in samples] for name, samples in kept.items()}
                for title, kept in found["samples"].items()
            },
            {name: [(key, text, number) for key, text, number in events] for name, events in found["unsent"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Remembered()


def save(path: str, remembered: Remembered) -> None:
    """Replace the file as a whole. Raises UsageError if it cannot be written."""
    content = {
        "format": FORMAT,
        "boot": BOOT_ID.read_text().strip(),
        "states": {title: asdict(state) for title, state in remembered.states.items()},
        "samples": remembered.samples,
        "unsent": remembered.unsent,
    }
    text = json.dumps(content).encode()
    aside = f"{path}.new"
    try:
        Path(aside).write_bytes(text.ljust(-(-len(text) // ROOM) * ROOM + ROOM // 2))
        os.replace(aside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        if not (error.errno in NO_ROOM and _in_place(path, text)):
            raise UsageError(f"{path}: {error.strerror}; give --state PATH where there is room") from None


def _in_place(path: str, text: bytes) -> bool:
    """Write over the file, which must have the room. Whether it had."""
    try:
        size = os.path.getsize(path)
        if len(text) > size:
            return False
        with open(path, "r+b") as file:
            file.write(text.ljust(size))
    except OSError:
        return False
    return True
