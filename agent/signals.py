"""Signals that stop the agent: handlers that only enqueue, and give way again afterwards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable


def catch(signums: Iterable[int], received: Callable[[int], None]) -> Callable[[], None]:
    """Call `received` with each of these signals from now on; returns what restores the handlers as they were.

    What was ignored stays ignored, as nohup means it for SIGHUP. Outside the main thread, where Python allows no
    handlers, nothing is caught. `received` runs between any two steps of the main thread, so it may only enqueue.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    old = {}
    for signum in signums:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            old[signum] = signal.signal(signum, lambda number, frame: received(number))

    def restore() -> None:
        for signum, handler in old.items():
            signal.signal(signum, handler)

    return restore


def ignore(signums: Iterable[int]) -> None:
    """Ignore these signals to the end of the process. The interpreter, as it ends, gives handlers back to the kernel's
    defaults, but leaves what is ignored alone. Outside the main thread nothing is done."""
    if threading.current_thread() is threading.main_thread():
        for signum in signums:
            signal.signal(signum, signal.SIG_IGN)
