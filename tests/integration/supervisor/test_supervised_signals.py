"""Signals through the supervisor: to groups, to those who left them, to leftovers and to stopped processes."""

from __future__ import annotations

import signal
import sys

import pytest

from elastic_agent.agent.errors import InternalError
from elastic_agent.agent.lifecycle.events import SignalNotForwarded, WorkersGone
from elastic_agent.agent.processes.protocol import Exited, Started
from elastic_agent.agent.processes.supervisor import Supervisor
from support.rigs.nursery import (
    BOUND_S,
    FAMILY,
    alive_after,
    children_of,
    facts_until,
    family_of,
    launch,
    line_from,
    nursery_of,
    shell,
    watched,
)


def test_the_group_is_signalled_after_its_leader_exited(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """A child left by a worker that exited gets the signal, and its exit empties the batch."""
    supervisor.start([shell("(echo ready; sleep 1000) & exit 3", out=pipe[1])])
    facts_until(supervisor, Exited)
    assert line_from(pipe[0]) == "ready"
    assert supervisor.observe() == []
    supervisor.signal(signal.SIGTERM)
    facts_until(supervisor, WorkersGone)


def test_signal_reaches_processes_that_left_the_group(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """SIGTERM ends the worker and its children in any group, all but the one that ignores it; SIGKILL ends that."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    with watched(family_of(pipe[0])) as fds:
        supervisor.signal(signal.SIGTERM)
        assert alive_after(fds[:-1], BOUND_S) == 0
        assert alive_after(fds[-1:], 0) == 1
        supervisor.kill()
        facts_until(supervisor, WorkersGone)
        assert alive_after(fds, 0) == 0


def test_leftovers_of_a_crashed_worker_are_gone_after_kill(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """All five children outlive the crash, none outlives kill(), and WorkersGone is reported only then."""
    supervisor.start([launch(*FAMILY, "--crash", out=pipe[1])])
    assert [fact.exit_code for fact in facts_until(supervisor, Exited) if isinstance(fact, Exited)] == [3]
    with watched(family_of(pipe[0])[1:]) as fds:
        supervisor.kill()
        assert facts_until(supervisor, WorkersGone) == [WorkersGone()]
        assert alive_after(fds, 0) == 0


def test_kill_clears_a_hundred_children(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """100 processes that ignore SIGTERM, in sessions of their own, are gone when WorkersGone is reported."""
    script = "trap '' TERM; for i in $(seq 100); do setsid sleep 1000 & done; echo ready; wait"
    supervisor.start([shell(script, out=pipe[1])])
    assert line_from(pipe[0]) == "ready"
    supervisor.kill()
    facts_until(supervisor, WorkersGone)
    assert children_of(nursery_of(supervisor)) == []


def test_kill_ends_chains_of_processes_that_fork_and_exit(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """Eight chains, each a process that starts its successor in a new session and exits, are killed."""
    code = (
        "import os, sys\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0: break\n"
        "else: os.write(1, b'ready\\n')\n"
        "while os.fork() == 0: os.setsid()\n"
    )
    supervisor.start([launch(sys.executable, "-S", "-c", code, out=pipe[1])])
    assert line_from(pipe[0]) == "ready"
    supervisor.kill()
    facts_until(supervisor, WorkersGone)
    assert children_of(nursery_of(supervisor)) == []


def test_a_stopped_worker_handles_the_signal(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """SIGTERM is followed by SIGCONT, so a worker that SIGSTOP holds runs its handler."""
    script = "trap 'echo handled; exit 5' TERM; echo ready; while :; do sleep 1000 & wait; done"
    supervisor.start([shell(script, out=pipe[1])])
    assert line_from(pipe[0]) == "ready"
    supervisor.forward(signal.SIGSTOP)
    supervisor.signal(signal.SIGTERM)
    assert line_from(pipe[0]) == "handled"
    exits = [fact for fact in facts_until(supervisor, Exited) if isinstance(fact, Exited)]
    assert [fact.exit_code for fact in exits] == [5]


def test_a_stopped_worker_that_ignores_everything_is_killed(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """SIGKILL ends it without a SIGCONT."""
    supervisor.start([shell("trap '' TERM; echo ready; while :; do kill -STOP $$; done", out=pipe[1])])
    assert line_from(pipe[0]) == "ready"
    supervisor.signal(signal.SIGTERM)
    supervisor.kill()
    assert [fact.exit_code for fact in facts_until(supervisor, WorkersGone) if isinstance(fact, Exited)] == [-9]


def test_forward_reaches_workers_and_not_their_children(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """SIGUSR1, which kills by default, leaves the children of a worker that handles it alive."""
    script = "trap 'echo handled' USR1; sleep 1000 & echo $!; while :; do wait; done"
    supervisor.start([shell(script, out=pipe[1])])
    with watched([int(line_from(pipe[0]))]) as fds:
        supervisor.forward(signal.SIGUSR1)
        assert line_from(pipe[0]) == "handled"
        assert alive_after(fds, 0) == 1


def test_forward_leaves_out_a_worker_that_the_signal_would_end(supervisor: Supervisor) -> None:
    """A worker without a handler goes on, and SignalNotForwarded names it; a harmless signal is just passed on."""
    supervisor.start([launch("sleep", "1000", key=3)])
    facts_until(supervisor, Started)
    supervisor.forward(signal.SIGWINCH)
    supervisor.forward(signal.SIGUSR1)
    assert facts_until(supervisor, SignalNotForwarded) == [SignalNotForwarded(3, signal.SIGUSR1)]
    assert supervisor.alive() == (3,)


def test_a_signal_also_reaches_workers_whose_start_is_not_reported_yet(supervisor: Supervisor) -> None:
    """So what it ends is not taken for killed by somebody else."""
    supervisor.start([launch("sleep", "1000", key=key) for key in range(2)])
    assert (supervisor.alive(), supervisor.unfinished()) == ((), (0, 1))
    supervisor.signal(signal.SIGTERM)
    exits = [fact for fact in facts_until(supervisor, Exited, 2) if isinstance(fact, Exited)]
    assert {fact.exit_code for fact in exits} == {-signal.SIGTERM}
    assert supervisor.unfinished() == ()


def test_kill_group_ends_one_worker_with_its_group(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """The other worker goes on."""
    supervisor.start([shell("sleep 1000 & echo $!; wait", key=key, out=pipe[1]) for key in range(2)])
    line_from(pipe[0])
    line_from(pipe[0])
    facts_until(supervisor, Started, 2)
    supervisor.kill_group(1)
    exits = [fact for fact in facts_until(supervisor, Exited) if isinstance(fact, Exited)]
    assert [(fact.key, fact.exit_code) for fact in exits] == [(1, -9)]
    assert supervisor.alive() == (0,)


def test_a_kill_with_nothing_left_does_not_apply_to_the_next_batch(supervisor: Supervisor) -> None:
    """kill and signal orders that come after WorkersGone do nothing."""
    supervisor.start([launch("true")])
    facts_until(supervisor, WorkersGone)
    supervisor.kill()
    supervisor.signal(signal.SIGTERM)
    supervisor.start([shell("exit 6")])
    exits = [fact for fact in facts_until(supervisor, WorkersGone) if isinstance(fact, Exited)]
    assert [fact.exit_code for fact in exits] == [6]


def test_a_key_in_use_cannot_be_started(supervisor: Supervisor) -> None:
    """Between kill() and WorkersGone no worker can be started; afterwards the key can be used again."""
    supervisor.start([launch("sleep", "1000")])
    with pytest.raises(InternalError, match=r"keys \[0\] are in use"):
        supervisor.start([launch("sleep", "1000")])
    supervisor.kill()
    with pytest.raises(InternalError, match="being killed"):
        supervisor.start([launch("true", key=1)])
    facts_until(supervisor, WorkersGone)
    supervisor.start([launch("true")])
    facts_until(supervisor, WorkersGone)
