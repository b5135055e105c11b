"""`--preload auto`: what the script imported last time is imported ahead of the next.

The worker of local rank 0 notes what is looked for by import, for its first seconds, in memory that it shares with the
zygote: no thread, no descriptor, no file, and nothing is lost when it is killed. The zygote repeats what came from
installed packages; never the script's own modules, which may be edited between two rounds.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from _thread import allocate_lock

from .preimport import import_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec

    from .child import Birth

LEARN_S = 5.0
"""How long a worker notes what it imports; then, or when it is started again before, the zygote learns from it."""
ROOM_BYTES = 1 << 20
LENGTH_BYTES = 4
TAUGHT_BY = "0"
"""The key of the worker that notes: local rank 0."""


class Recorder:
    """A finder that finds nothing, and notes what it is asked for."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._pid = os.getpid()
        self._lock = allocate_lock()
        self._until = 0.0
        self._at = LENGTH_BYTES
        self._env: dict[bytes, bytes] = {}
        self._changes: dict[str, str] = {}

    def listen(self) -> None:
        """Begin, as the first of `sys.meta_path`."""
        self._env = dict(raw_environment())
        self._until = time.monotonic() + LEARN_S
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """As of any finder: None, somebody else has it."""
        if os.getpid() != self._pid:
            return None  # a child of the worker, whose imports are its own
        if time.monotonic() > self._until:
            # A new list: who walks along the old one now would miss the finder behind us.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            return None
        with self._lock:
            now = raw_environment()
            changes = changed(self._env, now) if now != self._env else {}
            if changes != self._changes:
                self._changes = changes
                self._write("=" + "\0".join(f"{each}={value}" for each, value in sorted(changes.items())))
            self._write(name)
        return None

    def _write(self, text: str) -> None:
        line = text.encode(errors="surrogateescape").hex().encode() + b"\n"
        end = self._at + len(line)
        if end > ROOM_BYTES:
            self._until = 0.0
            return
        self._memory[self._at : end] = line
        # The length last: what it covers is whole, whenever this process is killed.
        self._memory[:LENGTH_BYTES] = end.to_bytes(LENGTH_BYTES, "big")
        self._at = end


class Lessons:
    """What the zygote knows of its last worker's imports."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._due = 0.0
        self.key = ""
        """The worker that notes; empty before there is one."""

    def begin(self, birth: Birth) -> Recorder | None:
        """In a worker: what it notes with, if it is the one to."""
        return Recorder(self._memory) if birth.key == TAUGHT_BY and self._memory is not None else None

    def expect(self, birth: Birth) -> None:
        """Before a fork: make the memory that the worker will share."""
        if birth.key == TAUGHT_BY:
            self._memory = mmap.mmap(-1, ROOM_BYTES)

    def began(self, key: str) -> None:
        """After a fork."""
        if key == TAUGHT_BY:
            self.key = key
            self._due = time.monotonic() + LEARN_S

    def wait(self) -> None:
        """Nothing was learnt of the last worker; wait for the next."""
        self.key = ""

    def due_ms(self) -> float | None:
        """Until it is time to learn; None: there is nobody to learn from."""
        return max(0.0, self._due - time.monotonic()) * 1000 if self.key else None

    def noted(self) -> list[str]:
        """The lines so far: names, and `=NAME=VALUE...` where the worker had changed its environment."""
        if self._memory is None:
            return []
        end = int.from_bytes(self._memory[:LENGTH_BYTES], "big")
        lines = self._memory[LENGTH_BYTES:end].split(b"\n")[:-1]
        return [bytes.fromhex(line.decode()).decode(errors="surrogateescape") for line in lines]


def raw_environment() -> dict[bytes, bytes]:
    """What is behind `os.environ`; comparing that itself would cost a worker's imports a tenth of their time."""
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return data


def changed(before: Mapping[bytes, bytes], now: Mapping[bytes, bytes]) -> dict[str, str]:
    """Variables that are not what they were, and their values; those that are gone have none."""
    names = (name for name in {*before, *now} if before.get(name) != now.get(name))
    return {os.fsdecode(name): os.fsdecode(now.get(name, b"")) for name in names}


def replay(lines: Sequence[str], before: Mapping[bytes, bytes]) -> tuple[list[str], str, str]:
    """Import what a worker's notes name and what is installed, in its order. Return the packages that were imported;
    what to say, if the notes could not be followed to their end; and why nothing may be forked any more.

    `before` is this process's environment before any import. A script that sets a variable and imports after that
    means the import to see it: those imports are left to the script.
    """
    changes: dict[str, str] = {}
    imported: dict[str, None] = {}
    for line in lines:
        if line.startswith("="):
            changes = dict(pair.split("=", 1) for pair in line[1:].split("\0") if pair)
        elif line not in sys.modules and installed(line):
            ours = changed(before, raw_environment())
            if ours != changes:
                name = min(each for each in {*ours, *changes} if ours.get(each) != changes.get(each))
                why = (
                    f"the script sets {name} before it imports {line}, which is left to it; set {name} for all instead"
                )
                return list(imported), why, ""
            if trouble := import_all([line], tolerant=True):
                return list(imported), "", trouble
            imported[line.partition(".")[0]] = None
    return list(imported), "", ""


def installed(name: str) -> bool:
    """Whether the package that this module is of lies where packages are installed."""
    import site
    from importlib.util import find_spec

    try:
        spec = find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    where = (spec.origin or next(iter(spec.submodule_search_locations or ()), "")) if spec else ""
    return where.startswith(tuple(folder + os.sep for folder in (*site.getsitepackages(), site.getusersitepackages())))
