"""Signals to the agent: handlers that only enqueue, and give way again afterwards; and signals to a program from its
first line on, before there is an agent to enqueue for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What stops a program by default, and would end it in the midst of its imports without a word."""

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
_JOB_CONTROL = {signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
HELD = signal.valid_signals() - {*STOPS, *_FAULTS, *_JOB_CONTROL, signal.SIGPIPE}
"""What may be meant for the workers (--forward-signals), and would end a program that has not read its flags."""


class Beginning:
    """Signals between the first line of a program and its agent, which knows what each of them means.

    Until `wait`, a signal that stops ends the process at once, with status 128+n: nothing has been started. After it,
    such a signal is kept for the agent, for there may be a log directory. Whatever else could end us is blocked.
    """

    def __init__(self) -> None:
        self.came: list[int] = []
        self.waiting = False
        # What was ignored stays so, as nohup means it for SIGHUP.
        self.caught = {signum for signum in STOPS if signal.getsignal(signum) is not signal.SIG_IGN}
        for signum in self.caught:
            signal.signal(signum, self._receive)
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)

    def wait(self) -> None:
        """Keep what comes from now on for `over`."""
        self.waiting = True

    def over(self, wanted: Iterable[int], received: Callable[[int], None]) -> None:
        """The agent handles `wanted` itself now: hand it what came; all else has its default again."""
        came, self.came = self.came, []
        for signum in came:
            if signum in wanted:
                received(signum)
        for signum in self.caught - set(wanted):
            signal.signal(signum, signal.SIG_DFL)
            if signum in came:
                os.kill(os.getpid(), signum)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def _receive(self, signum: int, frame: object) -> None:
        if self.waiting:
            self.came.append(signum)
            return
        text = f"elastic-agent: exit {128 + signum}: the agent was stopped by signal {signum} before anything began\n"
        try:
            os.write(2, text.encode())
        finally:  # a closed stderr says nothing, and changes nothing
            os._exit(128 + signum)


_beginning: Beginning | None = None


def begin() -> None:
    """The first thing a program does; `catch` in its main thread ends the beginning."""
    global _beginning  # noqa: PLW0603 - handlers belong to the process, and so does this
    _beginning = Beginning()


def ready() -> None:
    """From here on the program makes things that only the agent puts away; see `Beginning.wait`."""
    if _beginning is not None:
        _beginning.wait()


def catch(signums: Iterable[int], received: Callable[[int], None], waker: int) -> Callable[[bool], None]:
    """Call `received` with each of these signals from now on; returns what gives the handlers back as they were, or,
    told True, has these signals ignored to the end of the process. (The interpreter, as it ends, gives handlers back to
    the kernel's defaults, but leaves what is ignored alone.)

    What was ignored stays ignored, as nohup means it for SIGHUP. Outside the main thread, where Python allows no
    handlers, nothing is caught. `received` runs between any two steps of the main thread, so it may only enqueue.
    A byte is written to `waker` for each signal: the kernel may hand one to any thread, and Python runs its handler in
    the main thread, but wakes that only if it was the one.
    """
    global _beginning  # noqa: PLW0603 - as in `begin`
    if threading.current_thread() is not threading.main_thread():
        return lambda ignored: None
    signums = tuple(signums)
    old = {}
    before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for signum in signums:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            old[signum] = signal.signal(signum, lambda number, frame: received(number))
    if _beginning is not None:
        _beginning.over(signums, received)
        _beginning = None

    def give_back(ignored: bool) -> None:
        for signum, handler in old.items():
            signal.signal(signum, signal.SIG_IGN if ignored else handler)
        signal.set_wakeup_fd(before)

    return give_back
