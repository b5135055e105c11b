"""Signals to the agent: handlers that only enqueue, and are put back afterwards. Also signals to the program from its
first line on, before there is an agent that handles them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals whose default would end the program in the midst of its imports, without a message."""

SIGACTION_BYTES = 1024
"""More than a struct sigaction has on any Linux (152 with glibc on x86-64)."""

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
        # All wait until the last handler stands: a signal between two of these calls would still end the program.
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD.union(STOPS))
        # What was ignored stays ignored: nohup relies on that for SIGHUP.
        self.caught = {signum for signum in STOPS if signal.getsignal(signum) is not signal.SIG_IGN}
        for signum in self.caught:
            signal.signal(signum, self._receive)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask | HELD)

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


def catch(
    signums: Iterable[int], received: Callable[[int], None], waker: int, *, named: Collection[int] = ()
) -> Callable[[bool], None]:
    """Call `received` with each of these signals from now on. Return a function that puts the handlers back as they
    were, or, called with True, ignores these signals until the process ends. (While it exits, the interpreter resets
    handlers to the kernel's defaults, but leaves ignored signals ignored.)

    What was ignored stays ignored: nohup relies on that for SIGHUP, and a shell ignores SIGINT for what it starts in
    the background. `named`: those that the user has named, of which only SIGHUP stays ignored: a SLURM script ignores
    the signal that it has its agents forward, as it would end an agent that is still starting. Outside the main thread,
    where Python allows no handlers, nothing is caught. `received` runs between any two steps of the main thread, so it
    may only enqueue. A byte is written to `waker` for each signal, because the kernel may deliver it to another thread
    than the main one, which runs the handler but would not be woken.
    """
    global _early  # noqa: PLW0603 - as in `begin`
    if threading.current_thread() is not threading.main_thread():
        return lambda ignored: None
    signums = tuple(signums)
    old = {}
    foreign = ForeignHandlers(signums)
    before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for signum in signums:
        if signal.getsignal(signum) is not signal.SIG_IGN or (signum in named and signum != signal.SIGHUP):
            old[signum] = signal.signal(signum, lambda number, frame: received(number))
    if _early is not None:
        _early.hand_over(signums, received)
        _early = None

    def give_back(ignored: bool) -> None:
        for signum, handler in old.items():
            # Python knows no handler where a library has installed one; see `ForeignHandlers`.
            signal.signal(signum, signal.SIG_IGN if ignored else handler or signal.SIG_DFL)
        if not ignored:
            foreign.put_back()
        signal.set_wakeup_fd(before)

    return give_back


class ForeignHandlers:
    """The handlers that a library has installed by sigaction(2), past Python, which can neither name them nor put them
    back."""

    def __init__(self, signums: Iterable[int]) -> None:
        """Remembers those of these signals; loads ctypes only where there are any."""
        self._saved: dict[int, object] = {}
        caught = _caught()
        for signum in signums:
            if caught >> (signum - 1) & 1 and signal.getsignal(signum) in (signal.SIG_DFL, signal.SIG_IGN, None):
                from ctypes import CDLL, create_string_buffer

                self._sigaction = CDLL(None).sigaction
                action = create_string_buffer(SIGACTION_BYTES)
                if self._sigaction(signum, None, action) == 0:
                    self._saved[signum] = action

    def put_back(self) -> None:
        for signum, action in self._saved.items():
            self._sigaction(signum, action, None)


def _caught() -> int:
    """The mask of the signals that this process handles; proc(5), SigCgt. 0 if that cannot be read."""
    try:
        with open("/proc/self/status", "rb") as file:
            return next((int(line.split()[1], 16) for line in file if line.startswith(b"SigCgt:")), 0)
    except OSError:
        return 0
