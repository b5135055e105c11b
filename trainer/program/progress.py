"""One progress bar for a whole trainer, in the program's terminal."""

from __future__ import annotations

import sys
from typing import Any


class Bar:
    """Draws with tqdm, where that is installed and stderr is a terminal or a notebook; else nothing."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._pass = ""

    def show(self, what: dict[str, Any]) -> None:
        """Called from a thread of the call server with what rank 0 says of the pass that is going on."""
        made = self._of(what)
        if made is None:
            return
        made.n = what["batch"]
        made.set_postfix({name: f"{value:.4g}" for name, value in what["last"].items()}, refresh=False)
        made.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _of(self, what: dict[str, Any]) -> Any:
        if self._bar is None or self._pass != what["pass"]:
            self.close()
            from tqdm.auto import tqdm

            self._pass = what["pass"]
            self._bar = tqdm(total=what["of"], desc=self._pass, leave=False, file=sys.stderr, mininterval=0)
        return self._bar


def drawable(wanted: bool) -> bool:
    """Whether a bar can be drawn."""
    from importlib.util import find_spec

    terminal = bool(getattr(sys.stderr, "isatty", bool)()) or "ipykernel" in sys.modules
    return wanted and terminal and find_spec("tqdm") is not None
