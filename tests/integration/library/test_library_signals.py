"""The library: signals of the program while it launches, and its handlers afterwards."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from elastic_agent import (
    AgentEvent,
    Phase,
    StoppedBySignal,
    UsageError,
    launch,
)
from support.rigs.embedded import HANDLED, ONE, failure_of, run_program
from support.workers import calls


def test_a_signal_that_the_kernel_delivers_to_another_thread_is_handled() -> None:
    """It wakes the main thread, whose wait it did not interrupt."""
    main = threading.main_thread()

    def interrupt() -> None:
        # By then the main thread waits; if it does not yet, the test passes without having tested anything.
        threading.Event().wait(0.3)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def began(event: AgentEvent) -> None:
        if event.phase is Phase.WORKING and event.happened == "RoundSeen":
            thread.start()

    assert threading.current_thread() is main
    thread = threading.Thread(target=interrupt)
    with pytest.raises(StoppedBySignal):
        launch(ONE, calls.wait_for_ever, on_event=began)
    thread.join()


def test_ctrl_c_stops_the_job_and_handlers_are_as_before() -> None:
    """In the main thread SIGINT ends the job with status 130, instead of a KeyboardInterrupt in the middle of the
    run."""
    before = [signal.getsignal(signum) for signum in HANDLED]

    def interrupt(event: AgentEvent) -> None:
        if event.phase is Phase.WORKING:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(StoppedBySignal) as caught:
        launch(ONE, calls.wait_for_ever, on_event=interrupt)
    assert (caught.value.signum, caught.value.exit_code) == (signal.SIGINT, 130)
    assert [signal.getsignal(signum) for signum in HANDLED] == before


def test_handlers_are_as_before_after_success_failure_and_misuse() -> None:
    """After any end, Ctrl-C has its previous effect on the program."""
    before = [signal.getsignal(signum) for signum in HANDLED]
    launch(ONE, calls.identity)
    failure_of(ONE, calls.leave, 1)
    with pytest.raises(UsageError):
        launch(ONE, "no/such/script.py")
    assert [signal.getsignal(signum) for signum in HANDLED] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_program_that_ignores_the_ends_of_its_children_launches_like_any_other(tmp_path: Path) -> None:
    """What it ignores went on to the guardian, for which the kernel then left no child to wait for: it ended before it
    had looked for what workers left behind, and said that this node cannot run the nursery."""
    done = run_program(
        tmp_path,
        "import signal\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "    print(launch(LaunchConfig(), os.path.basename, 'a/b'))\n",
    )
    assert (done.stdout, done.stderr, done.returncode) == ("{0: 'b'}\n", "", 0)


def test_what_a_handler_of_the_program_raises_is_raised_as_it_is() -> None:
    """Its time limit is a TimeoutError, and so an OSError: it was taken for a limit of this host."""

    def expire(*_: object) -> None:
        raise TimeoutError("the program's own limit")

    before = signal.signal(signal.SIGALRM, expire)
    try:
        with pytest.raises(TimeoutError, match="the program's own limit"):
            launch(ONE, os.kill, os.getpid(), signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
