"""Signals by which a scheduler asks for the end, as the agent passes them on (`--forward-signals`)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping

from ...proto.endings import FORWARDED, numbers_of


class Asked:
    """Whether a forwarded signal has come. SLURM sends it to every process and the agent passes its own copy on: one
    or several mean the same."""

    def __init__(self, environment: Mapping[str, str], note: Callable[[], None] = lambda: None) -> None:
        """note: called when one has come.

        Takes the signals that the agent forwards, but for those that the script handles. Outside the main thread,
        where Python allows no handlers, it takes none."""
        self._note, self.first = note, 0
        """The signal that came first; 0: none has come."""
        self.taken: list[int] = []
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in numbers_of(environment.get(FORWARDED, "")):
            # Ignored from the start of the worker's process, by the agent: that is no choice of the script's.
            if signal.getsignal(signum) in (signal.SIG_IGN, signal.SIG_DFL):
                signal.signal(signum, self._receive)
                self.taken.append(signum)

    def drop(self) -> None:
        """What comes from now on is ignored, also while the interpreter ends and no longer calls handlers: a late copy
        would kill the process then. Outside the main thread it does nothing."""
        if threading.current_thread() is threading.main_thread():
            for signum in self.taken:
                signal.signal(signum, signal.SIG_IGN)

    def _receive(self, signum: int, frame: object) -> None:
        self.first = self.first or signum
        self._note()
