"""Signals to the agent: handlers that only enqueue, and are put back afterwards. Also signals to the program from its
first line on, before there is an agent that handles them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals whose default would end the program in the midst of its imports, without a message."""

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
_JOB_CONTROL = {signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
HELD = signal.valid_signals() - {*STOPS, *_FAULTS, *_JOB_CONTROL, signal.SIGPIPE}
"""Signals that may be meant for the workers (--forward-signals), and would end a program that has not read its flags
yet."""


class EarlySignals:
    """Handles signals from the first line of the program until its agent does.

    Until `keep`, one of `STOPS` ends the process at once, with status 128+n: nothing has been started. After `keep` it
    is kept for the agent, which must clean up: there may be a log directory. All of `HELD` are blocked.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.keeping = False
        # What was ignored stays ignored: nohup relies on that for SIGHUP.
        self.caught = {signum for signum in STOPS if signal.getsignal(signum) is not signal.SIG_IGN}
        for signum in self.caught:
            signal.signal(signum, self._receive)
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)

    def keep(self) -> None:
        """Keep signals from now on, for `hand_over`."""
        self.keeping = True

    def hand_over(self, wanted: Iterable[int], handler: Callable[[int], None]) -> None:
        """The agent handles `wanted` itself from now on: call `handler` with those that were kept. All others have
        their default again, which then applies to those of them that were kept."""
        received, self.received = self.received, []
        for signum in received:
            if signum in wanted:
                handler(signum)
        for signum in self.caught - set(wanted):
            signal.signal(signum, signal.SIG_DFL)
            if signum in received:
                os.kill(os.getpid(), signum)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def _receive(self, signum: int, frame: object) -> None:
        if self.keeping:
            self.received.append(signum)
            return
        because = f"the agent was stopped by signal {signum} before it started anything"
        text = f"elastic-agent: exit {128 + signum}: {because}\n"
        try:
            os.write(2, text.encode())
        finally:  # even if stderr is closed
            os._exit(128 + signum)


_early: EarlySignals | None = None


def begin() -> None:
    """Handle early signals. The first thing the program does; `catch` in its main thread ends it."""
    global _early  # noqa: PLW0603 - handlers belong to the process, and so does this
    _early = EarlySignals()


def abandon() -> None:
    """Undo `begin`: another program takes this one's place, and inherits the mask."""
    global _early  # noqa: PLW0603 - as in `begin`
    if _early is not None:
        _early.hand_over((), lambda signum: None)
        _early = None


def ready() -> None:
    """From here on the program creates what only the agent cleans up; see `EarlySignals.keep`."""
    if _early is not None:
        _early.keep()


def catch(signums: Iterable[int], received: Callable[[int], None], waker: int) -> Callable[[bool], None]:
    """Call `received` with each of these signals from now on. Return a function that puts the handlers back as they
    were, or, called with True, ignores these signals until the process ends. (While it exits, the interpreter resets
    handlers to the kernel's defaults, but leaves ignored signals ignored.)

    What was ignored stays ignored: nohup relies on that for SIGHUP. Outside the main thread, where Python allows no
    handlers, nothing is caught. `received` runs between any two steps of the main thread, so it may only enqueue.
    A byte is written to `waker` for each signal, because the kernel may deliver it to another thread than the main one,
    which runs the handler but would not be woken.
    """
    global _early  # noqa: PLW0603 - as in `begin`
    if threading.current_thread() is not threading.main_thread():
        return lambda ignored: None
    signums = tuple(signums)
    old = {}
    before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for signum in signums:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            old[signum] = signal.signal(signum, lambda number, frame: received(number))
    if _early is not None:
        _early.hand_over(signums, received)
        _early = None

    def give_back(ignored: bool) -> None:
        for signum, handler in old.items():
            signal.signal(signum, signal.SIG_IGN if ignored else handler)
        signal.set_wakeup_fd(before)

    return give_back
