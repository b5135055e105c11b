"""`--preload auto`: what the script imported last time is imported before the next worker is forked.

The worker of local rank 0 records the names it imports, for its first seconds, in memory that it shares with the
zygote: this takes no thread, no descriptor and no file, and nothing is lost when the worker is killed. The zygote
imports those that belong to installed packages; never the script's own modules, which may be edited between two rounds.
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

    from .child import ForkRequest

TRACE_S = 5.0
"""How long a worker records what it imports. Then, or when it is started again before, the zygote imports that."""
ROOM_BYTES = 1 << 20
LENGTH_BYTES = 4
TRACED_KEY = "0"
"""The key of the worker that records: local rank 0."""


class Recorder:
    """A finder that finds nothing, and records the names it is asked for."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._pid = os.getpid()
        self._lock = allocate_lock()
        self._until = 0.0
        self._at = LENGTH_BYTES
        self._env: dict[bytes, bytes] = {}
        self._changes: dict[str, str] = {}

    def install(self) -> None:
        """Begin to record, as the first of `sys.meta_path`."""
        self._env = dict(raw_environment())
        self._until = time.monotonic() + TRACE_S
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The method of a finder: always None, which leaves the module to the finders behind this one."""
        if os.getpid() != self._pid:
            return None  # a child of the worker, whose imports are its own
        if time.monotonic() > self._until:
            # A new list: an import that iterates over the old one now would skip the finder behind this one.
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
        # The length last: the bytes it counts are complete, whenever this process is killed.
        self._memory[:LENGTH_BYTES] = end.to_bytes(LENGTH_BYTES, "big")
        self._at = end


class ImportTrace:
    """The zygote's end: the memory that it shares with the worker that records, and when to read it."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._due = 0.0
        self.key = ""
        """The key of the worker that records; empty if none does."""

    def allocate(self, request: ForkRequest) -> None:
        """Before a fork: make the memory to share, if this worker is the one to record."""
        if request.key == TRACED_KEY:
            self._memory = mmap.mmap(-1, ROOM_BYTES)

    def recorder(self, request: ForkRequest) -> Recorder | None:
        """In the worker: its recorder, if it is the one to record."""
        return Recorder(self._memory) if request.key == TRACED_KEY and self._memory is not None else None

    def forked(self, key: str) -> None:
        """After a fork, in the zygote: the trace of this worker is due in `TRACE_S`, if it is the one to record."""
        if key == TRACED_KEY:
            self.key = key
            self._due = time.monotonic() + TRACE_S

    def close(self) -> None:
        """The trace was read; none is due until the next worker that records is forked."""
        self.key = ""

    def due_ms(self) -> float | None:
        """How long until the trace is to be read; None: no worker records."""
        return max(0.0, self._due - time.monotonic()) * 1000 if self.key else None

    def lines(self) -> list[str]:
        """The lines so far: names, and `=NAME=VALUE...` where the worker had changed its environment."""
        if self._memory is None:
            return []
        end = int.from_bytes(self._memory[:LENGTH_BYTES], "big")
        lines = self._memory[LENGTH_BYTES:end].split(b"\n")[:-1]
        return [bytes.fromhex(line.decode()).decode(errors="surrogateescape") for line in lines]


def raw_environment() -> dict[bytes, bytes]:
    """The dict behind `os.environ`; comparing `os.environ` itself would slow down a worker's imports by a tenth."""
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return data


def changed(before: Mapping[bytes, bytes], now: Mapping[bytes, bytes]) -> dict[str, str]:
    """Variables whose value has changed, with the new one; empty for those that are gone."""
    names = (name for name in {*before, *now} if before.get(name) != now.get(name))
    return {os.fsdecode(name): os.fsdecode(now.get(name, b"")) for name in names}


def replay(lines: Sequence[str], before: Mapping[bytes, bytes]) -> tuple[list[str], str, str]:
    """Import what the lines of a trace name and what is installed, in that order. Return the packages that were
    imported; a warning, if it had to stop before the end; and why nothing may be forked any more.

    `before` is this process's environment before any import. If a script sets a variable and imports after that, the
    import is meant to read it: those imports are left to the script.
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
                    f"the script sets {name} before it imports {line}, so {line} is not preloaded; "
                    f"set {name} for the whole job instead"
                )
                return list(imported), why, ""
            if trouble := import_all([line], tolerant=True):
                return list(imported), "", trouble
            imported[line.partition(".")[0]] = None
    return list(imported), "", ""


def installed(name: str) -> bool:
    """Whether this module's package is in a folder where packages are installed."""
    import site
    from importlib.util import find_spec

    try:
        spec = find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    where = (spec.origin or next(iter(spec.submodule_search_locations or ()), "")) if spec else ""
    return where.startswith(tuple(folder + os.sep for folder in (*site.getsitepackages(), site.getusersitepackages())))
