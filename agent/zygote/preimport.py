"""Importing before the script runs: where modules are searched for, and what they see."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType


class path_of_script:  # noqa: N801 - used as a function
    """While entered, `sys.path` begins as when the script runs (docs.python.org/3/library/sys.html#sys.path)."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._first = "" if getattr(sys.flags, "safe_path", False) else first_of_path(argv)

    def __enter__(self) -> None:
        if self._first:
            sys.path.insert(0, self._first)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._first in sys.path:
            sys.path.remove(self._first)


def first_of_path(argv: Sequence[str]) -> str:
    """The working directory for -m, a directory or an archive itself, otherwise the script's own directory."""
    if argv[2] == "-m":
        return os.getcwd()
    script = os.path.realpath(argv[2])
    if os.path.isdir(script) or (not script.endswith(".py") and is_archive(script)):
        return os.path.abspath(argv[2])
    return os.path.dirname(script)


def is_archive(path: str) -> bool:
    """Whether it is a zip file that Python can import from."""
    import zipimport

    try:
        zipimport.zipimporter(path)
    except ImportError:
        return False
    return True


class main_like:  # noqa: N801 - used as a function
    """While entered, `__main__` has a `__file__`, by which libraries distinguish a script from a prompt."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._file = "" if argv[2] == "-m" else os.path.abspath(argv[2])

    def __enter__(self) -> None:
        if self._file:
            vars(sys.modules["__main__"])["__file__"] = self._file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        vars(sys.modules["__main__"]).pop("__file__", None)


class rarely_collecting:  # noqa: N801 - used as a function
    """While entered, garbage is not looked for: an import makes objects that stay, and the hundreds of thousands of
    torch would be searched again and again. A module may set how often, or turn it off."""

    SELDOM = 1 << 30

    def __enter__(self) -> None:
        self._held = gc.get_threshold()
        gc.set_threshold(self.SELDOM, *self._held[1:])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if gc.get_threshold()[0] == self.SELDOM:
            gc.set_threshold(*self._held)


def import_all(modules: Sequence[str] | Mapping[str, Sequence[str]], *, tolerant: bool = False) -> dict[str, str]:
    """Import these; return why each of them that cannot be imported cannot, in one clause. A mapping names what is
    taken from each. `tolerant`: ImportError is ignored, as scripts do where a module is not needed."""
    failed = {}
    for name in modules:
        try:
            __import__(name, fromlist=modules[name] if isinstance(modules, dict) else ())
        except BaseException as error:  # noqa: BLE001 - a module may raise anything, SystemExit too
            if not (tolerant and isinstance(error, ImportError)):
                failed[name] = f"{name} cannot be imported: {type(error).__name__}: {error}"
    return failed
