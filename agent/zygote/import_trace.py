"""`--preload auto`, once a worker has run: what the script imported is imported before the next worker is forked.

The worker of local rank 0 records the names it imports, for its first minute, in memory that it shares with the zygote:
this takes no thread, no descriptor and no file, and nothing is lost when the worker is killed. The zygote imports those
that belong to installed packages; never the script's own modules, which may be edited between two rounds.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from _frozen_importlib_external import PathFinder  # which Python has before any import, unlike importlib.machinery
from _thread import allocate_lock

from .import_tree import is_below
from .preimport import import_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType
    from typing import Any

    from .child import ForkRequest

QUIET_S = 3.0
"""The zygote imports what was recorded once the worker has imported nothing for so long: beside one that has found its
pace. Then it looks again after twice the time, in case the worker had only loaded something large."""
LONGEST_S = 60.0
"""How long a worker records what it imports."""
ROOM_BYTES = 1 << 20
HEADER_BYTES = 16
"""How many bytes are in use, and when the last were written (monotonic, ns), 8 bytes each."""
TRACED_KEY = "0"
"""The key of the worker that records: local rank 0."""


class Recorder:
    """A finder that finds nothing, and records the names it is asked for."""

    def __init__(self, memory: mmap.mmap, installed_below: tuple[str, ...]) -> None:
        self._memory = memory
        self._installed_below = installed_below
        self._pid = os.getpid()
        self._lock = allocate_lock()
        self._until = 0.0
        self._at = HEADER_BYTES
        self._env: dict[bytes, bytes] = {}
        self._changes: dict[str, str] = {}
        self._set_by_script: set[str] = set()
        self._path: list[str] = []
        self._added: dict[str, bool] = {}
        """What `_is_added` found, by package: of each a thousand modules may follow."""
        self._undo: list[tuple[str, object]] = []

    def install(self) -> None:
        """Begin to record, as the first of `sys.meta_path`."""
        self._env, self._path = dict(raw_environment()), list(sys.path)
        self._until = time.monotonic() + LONGEST_S
        self._watch_changes()
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The method of a finder: always None, which leaves the module to the finders behind this one."""
        if os.getpid() != self._pid:
            return None  # a child of the worker, whose imports are its own
        if time.monotonic() > self._until:
            # A new list: an import that iterates over the old one now would skip the finder behind this one.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            while self._undo:
                method, original = self._undo.pop()
                setattr(os._Environ, method, original)
            return None
        if sys.path != self._path:
            package = name.partition(".")[0]
            if package not in self._added:
                self._added[package] = self._is_added(package)
            if self._added[package]:
                return None
        with self._lock:
            now = raw_environment()
            changes = changed(self._env, now) if now != self._env else {}
            if changes != self._changes:
                self._changes = changes
                marked = (f"{'!' * (each in self._set_by_script)}{each}={changes[each]}" for each in sorted(changes))
                self._write("=" + "\0".join(marked))
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
        self._memory[8:16] = time.monotonic_ns().to_bytes(8, "big")
        self._memory[:8] = end.to_bytes(8, "big")
        self._at = end

    def _watch_changes(self) -> None:
        """Record which variables the script itself changes, rather than an installed module: torch sets
        TORCHINDUCTOR_CACHE_DIR while others import it, and means nothing by it for the next import."""
        for method in ("__setitem__", "__delitem__"):
            original = getattr(os._Environ, method)

            def changing(environ: Any, name: Any, *value: Any, original: Any = original) -> Any:  # noqa: ANN401 - as it
                if not self._is_installed(sys._getframe(1)):
                    self._set_by_script.add(os.fsdecode(name))
                return original(environ, name, *value)

            self._undo.append((method, original))
            setattr(os._Environ, method, changing)

    def _is_added(self, package: str) -> bool:
        """Whether the script has put a folder with this package before the installed ones: a copy of its own, while the
        zygote would import the installed one of that name."""
        added = []
        for entry in sys.path:
            if entry.startswith(self._installed_below):
                break
            if entry not in self._path:
                added.append(entry)
        found = PathFinder.find_spec(package, added) if added else None
        return found is not None and found.loader is not None  # a folder alone does not hide an installed package

    def _is_installed(self, frame: FrameType | None) -> bool:
        """Whether the innermost frame that is not of Python's own library is that of an installed module."""
        while frame is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc"):
            frame = frame.f_back
        return (
            frame is not None
            and frame.f_globals.get("__name__") != "__main__"
            and frame.f_code.co_filename.startswith(self._installed_below)
        )


class ImportTrace:
    """The zygote's end: the memory that it shares with the worker that records, and when to read it."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._earlier: list[str] = []
        """Lines of workers that were replaced before their trace was read."""
        self._until_s = self._looked_s = 0.0
        self._pause_s = QUIET_S
        self._known = 0
        """How many lines there were when it was last read."""

    def allocate(self, request: ForkRequest) -> None:
        """Before a fork: make the memory to share, if this worker is the one to record."""
        if request.key == TRACED_KEY:
            self._earlier += self._lines()
            self._memory = mmap.mmap(-1, ROOM_BYTES)
            self._known, self._pause_s = 0, QUIET_S

    def recorder(self, request: ForkRequest) -> Recorder | None:
        """In the worker: its recorder, if it is the one to record."""
        if request.key != TRACED_KEY or self._memory is None:
            return None
        return Recorder(self._memory, (*package_folders(), os.path.dirname(os.__file__) + os.sep))

    def forked(self, key: str) -> None:
        """After a fork, in the zygote: a worker records, if this is the one."""
        if key == TRACED_KEY:
            self._looked_s = time.monotonic()
            self._until_s = self._looked_s + LONGEST_S + QUIET_S

    def due_ms(self) -> float | None:
        """How long until the trace is to be read, as far as is known now; None: no worker records."""
        if self._memory is None or self._looked_s > self._until_s:
            return None
        last_s = int.from_bytes(self._memory[8:16], "big") / 1e9
        return max(0.0, max(last_s + QUIET_S, self._looked_s + self._pause_s) - time.monotonic()) * 1000

    def read(self) -> list[str]:
        """What was recorded by all workers so far, if there is something new: names, and `=NAME=VALUE...` where one had
        changed its environment, with a `!` before the name if its script had."""
        lines = self._lines()
        self._looked_s = time.monotonic()
        self._pause_s *= 2
        if len(lines) == self._known:
            return []
        self._known = len(lines)
        return [*self._earlier, "=", *lines]

    def forget(self) -> None:
        """What was read last came to nothing: read it again when it is due."""
        self._known = -1

    def _lines(self) -> list[str]:
        if self._memory is None:
            return []
        end = int.from_bytes(self._memory[:8], "big")
        lines = self._memory[HEADER_BYTES:end].split(b"\n")[:-1]
        return [bytes.fromhex(line.decode()).decode(errors="surrogateescape") for line in lines]


def raw_environment() -> dict[bytes, bytes]:
    """The dict behind `os.environ`; comparing `os.environ` itself would slow down a worker's imports by a tenth."""
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return data


def changed(before: Mapping[bytes, bytes], now: Mapping[bytes, bytes]) -> dict[str, str]:
    """Variables whose value has changed, with the new one; empty for those that are gone."""
    names = (name for name in {*before, *now} if before.get(name) != now.get(name))
    return {os.fsdecode(name): os.fsdecode(now.get(name, b"")) for name in names}


def replay(
    lines: Sequence[str], before: Mapping[bytes, bytes], tried: set[str], left_out: Collection[str] = ()
) -> tuple[list[str], str]:
    """Import what the lines of a trace name and what is installed, in that order, but for what was `tried` already or
    is in a package that is `left_out`. Return the packages that were imported, and a warning, if it had to stop before
    the end.

    `before` is this process's environment before any import. If a script sets a variable and imports after that, the
    import is meant to read it: those imports are left to the script. What an installed module has set is set here for
    the imports that came after it, and no longer.
    """
    changes: dict[str, str] = {}
    imported: dict[str, None] = {}
    lent: dict[str, str | None] = {}
    warning = ""
    for line in lines:
        if line.startswith("="):
            changes = dict(pair.split("=", 1) for pair in line[1:].split("\0") if pair)
        elif to_import(line, tried, left_out):
            ours = changed(before, raw_environment())
            by_script = {name[1:]: value for name, value in changes.items() if name.startswith("!")}
            if name := min((each for each in by_script if ours.get(each) != by_script[each]), default=""):
                warning = (
                    f"the script sets {name} before it imports {line}, so {line} is not preloaded; "
                    f"set {name} for the whole job instead"
                )
                break
            lend({name: value for name, value in changes.items() if name[:1] != "!"}, lent)
            tried.add(line)
            import_all([line], tolerant=True)
            imported[line.partition(".")[0]] = None
    lend({}, lent)
    return list(imported), warning


def to_import(line: str, tried: Collection[str], left_out: Collection[str]) -> bool:
    """Whether a line of a trace names a module that is to be imported here."""
    if line.startswith("=") or line in sys.modules or line in tried or is_below(line, left_out):
        return False
    return installed(line)


def lend(changes: Mapping[str, str], lent: dict[str, str | None]) -> None:
    """Set these variables, an empty one meaning that it is gone, and set back what was lent before and is not among
    them. `lent` holds what each was before the first time."""
    for name in (*changes, *(each for each in lent if each not in changes)):
        before = lent.setdefault(name, os.environ.get(name))
        if value := changes.get(name, before):
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def installed(name: str) -> bool:
    """Whether this module's package is in a folder where packages are installed."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    where = (spec.origin or next(iter(spec.submodule_search_locations or ()), "")) if spec else ""
    return where.startswith(package_folders())


def package_folders() -> tuple[str, ...]:
    """Where packages are installed, each ending in a slash; also in an environment whose folder a .pth file adds."""
    import site

    lent = (folder for folder in sys.path if os.path.basename(folder) in ("site-packages", "dist-packages"))
    folders = dict.fromkeys((*site.getsitepackages(), site.getusersitepackages(), *lent))
    return tuple(folder + os.sep for folder in folders)
