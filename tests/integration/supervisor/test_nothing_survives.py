"""No process of a job is left behind, whoever of agent, guardian and nursery is killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic_agent.agent.errors import InternalError
from elastic_agent.agent.lifecycle.events import NurseryLost, WorkersGone
from elastic_agent.agent.processes.protocol import Exited, Started
from elastic_agent.agent.processes.supervisor import Supervisor
from support.procfs import slowed
from support.rigs.nursery import (
    BOUND_S,
    FAMILY,
    alive_after,
    children_of,
    comm_of,
    facts_until,
    family_of,
    launch,
    line_from,
    nurseries_of,
    nursery_of,
    wait_readable,
    watched,
)
from support.workers import WORKERS


def test_nothing_survives_a_kill_9_of_the_agent_by_a_second() -> None:
    """Two families and the nursery are gone: children by setsid, by double fork, and one that ignores SIGTERM."""
    argv = [sys.executable, str(WORKERS / "sup_agent.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        families = [family_of(agent.stdout.fileno()) for _ in range(2)]
        guardian, *others = children_of(agent.pid)
        assert not others
        with watched([*families[0], *families[1], guardian, *children_of(guardian)]) as fds:
            agent.kill()
            assert alive_after(fds, slowed(1.0)) == 0


@pytest.mark.parametrize("victims", list(itertools.permutations(("agent", "guardian", "nursery"), 2)), ids="-".join)
def test_nothing_survives_any_two_of_agent_guardian_and_nursery(victims: tuple[str, str]) -> None:
    """The one that is left clears up; the agent finds what has kept its environment, the others everything."""
    argv = [sys.executable, str(WORKERS / "sup_agent.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        families = [family_of(agent.stdout.fileno()) for _ in range(2)]
        (guardian,) = children_of(agent.pid)
        (nursery,) = nurseries_of(guardian)
        with watched([*families[0], *families[1], guardian, nursery, agent.pid]) as fds:
            pidfds = dict(zip(("guardian", "nursery", "agent"), fds[-3:], strict=True))
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):  # it may have exited already, because of the first
                    signal.pidfd_send_signal(pidfds[victim], signal.SIGKILL)
            if "agent" not in victims:
                bare = {fds[4], fds[10]}
                assert alive_after([fd for fd in fds[:-1] if fd not in bare], slowed(1.0)) == 0
                for pid in (families[0][4], families[1][4]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            assert alive_after(fds[:-1], slowed(1.0)) == 0
        agent.kill()


def test_a_nursery_that_hangs_when_its_agent_is_gone_is_killed() -> None:
    """The guardian kills a stopped nursery and all below it."""
    argv = [sys.executable, str(WORKERS / "sup_agent.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        families = [family_of(agent.stdout.fileno()) for _ in range(2)]
        (guardian,) = children_of(agent.pid)
        nursery = children_of(guardian)[0]
        with watched([*families[0], *families[1], guardian, nursery]) as fds:
            os.kill(nursery, signal.SIGSTOP)
            agent.kill()
            assert alive_after(fds, BOUND_S) == 0


def test_orphans_get_the_grace_that_was_asked_for(pipe: tuple[int, int]) -> None:
    """With orphan_grace_s a worker whose agent is killed gets SIGTERM and may finish; one that ignores it is killed."""
    code = (
        "import os, select, sys; from elastic_agent.agent.processes.supervisor import *\n"
        "s = Supervisor(orphan_grace_s=1.5); s.open()\n"
        "s.start([Launch(k, ('/bin/sh', '-c', w), dict(os.environ), '/') for k, w in enumerate(sys.argv[1:])])\n"
        "while True: select.select([s.fileno()], [], []); s.observe()\n"
    )
    tidy = "trap 'sleep 0.3; echo saved; exit' TERM; echo ready $$; while :; do sleep 1000 & wait; done"
    stubborn = "trap '' TERM; echo ready $$; while :; do sleep 1000; done"
    with subprocess.Popen([sys.executable, "-c", code, tidy, stubborn], stdout=pipe[1]) as agent:
        pids = [int(line_from(pipe[0]).split()[1]) for _ in range(2)]
        with watched(pids) as fds:
            agent.kill()
            began = time.monotonic()
            assert line_from(pipe[0]) == "saved"
            assert alive_after(fds, BOUND_S) == 0
            assert 1.4 < time.monotonic() - began < 1.5 + slowed(4.0)


def test_nothing_survives_an_agent_whose_socket_was_inherited(supervisor: Supervisor) -> None:
    """A forked child of the agent keeps the socket open, so it does not end; the agent's pidfd shows the exit."""
    code = (
        "import os, runpy, signal, sys\n"
        "from elastic_agent.agent.processes import supervisor as s\n"
        "class Leaky(s.Supervisor):\n"
        "    def open(self):\n"
        "        super().open()\n"
        "        if os.fork() == 0: signal.pause()\n"
        "s.Supervisor = Leaky\n"
        f"runpy.run_path({str(WORKERS / 'sup_agent.py')!r})\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        families = [family_of(agent.stdout.fileno()) for _ in range(2)]
        forked = [pid for pid in children_of(agent.pid) if b"elastic-guard" not in comm_of(pid)]
        with watched([*families[0], *families[1]]) as fds:
            agent.kill()
            assert alive_after(fds, slowed(1.0)) == 0
        for pid in forked:
            os.kill(pid, signal.SIGKILL)


def test_workers_end_with_the_nursery_and_that_is_reported(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """After kill -9 of the nursery NurseryLost names it, no process is left, and a new nursery can be opened."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    facts_until(supervisor, Started)
    with watched(family_of(pipe[0])) as fds:
        pid = nursery_of(supervisor)
        os.kill(pid, signal.SIGKILL)
        facts = facts_until(supervisor, NurseryLost)
        assert facts[-1] == NurseryLost(f"the nursery (pid {pid}) was killed by signal 9 (Killed)")
        assert alive_after(fds, slowed(1.0)) == 0
    assert supervisor.alive() == ()
    supervisor.open()
    supervisor.start([launch("true")])
    facts_until(supervisor, WorkersGone)


def test_orders_to_a_killed_nursery_are_answered_by_nursery_ended(supervisor: Supervisor) -> None:
    """start, signal and kill do not raise; NurseryLost is the only answer."""
    os.kill(nursery_of(supervisor), signal.SIGKILL)
    wait_readable(supervisor.fileno())
    supervisor.start([launch("true")])
    supervisor.signal(signal.SIGTERM)
    supervisor.kill()
    assert [type(fact) for fact in facts_until(supervisor, NurseryLost)] == [NurseryLost]


def test_a_nursery_that_does_not_read_is_given_up(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its socket stays full it is killed and reported as ended, so the agent's loop never hangs."""
    monkeypatch.setattr("elastic_agent.agent.processes.supervisor.SEND_TIMEOUT_S", 0.1)
    supervisor.start([launch("true")])
    facts_until(supervisor, WorkersGone)
    os.kill(nursery_of(supervisor), signal.SIGSTOP)
    env = {f"V{at}": "x" * 100_000 for at in range(20)}
    supervisor.start([launch("true", env=env)])
    assert [type(fact) for fact in facts_until(supervisor, NurseryLost)] == [NurseryLost]


def test_ctrl_c_reaches_neither_nursery_nor_workers(tmp_path: Path) -> None:
    """SIGINT, SIGQUIT, SIGHUP and SIGTERM to the agent's process group are handled by the agent alone."""
    code = (
        "import os, signal, sys\n"
        "for n in (1, 2, 3, 15): signal.signal(n, lambda n, _: os.write(1, b'got %d\\n' % n))\n"
        "import runpy\n"
        f"runpy.run_path({str(WORKERS / 'sup_agent.py')!r})\n"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as agent:
        assert agent.stdout is not None
        families = [family_of(agent.stdout.fileno()) for _ in range(2)]
        with watched([*families[0], *families[1], *children_of(agent.pid)]) as fds:
            for signum in (1, 2, 3, 15):
                os.killpg(agent.pid, signum)
                assert line_from(agent.stdout.fileno()) == f"got {signum}"
            assert alive_after(fds, 0) == len(fds)
            agent.kill()
            assert alive_after(fds, slowed(1.0)) == 0


def test_the_nursery_survives_signals_sent_to_itself(supervisor: Supervisor) -> None:
    """TERM, INT, HUP and QUIT are blocked in the nursery; a SIGINT that is ordered reaches the worker all the same."""
    supervisor.start([launch("sleep", "1000")])
    facts_until(supervisor, Started)
    for signum in (1, 2, 3, 15):
        os.kill(nursery_of(supervisor), signum)
    supervisor.signal(signal.SIGINT)
    assert [fact.exit_code for fact in facts_until(supervisor, WorkersGone) if isinstance(fact, Exited)] == [-2]


def test_close_leaves_no_process(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """close() kills a family that ignores SIGTERM, returns when it is gone, and may be called again."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    with watched([*family_of(pipe[0]), nursery_of(supervisor)]) as fds:
        supervisor.close()
        assert alive_after(fds, 0) == 0
    supervisor.close()
    supervisor.kill()
    with pytest.raises(InternalError, match="no nursery"):
        supervisor.start([launch("true")])


def test_close_is_bounded_when_the_nursery_does_not_answer(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """A stopped nursery and all below it are killed by the guardian, within the time allowed."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    with watched([*family_of(pipe[0]), nursery_of(supervisor)]) as fds:
        os.kill(nursery_of(supervisor), signal.SIGSTOP)
        supervisor.close()
        assert alive_after(fds, 0) == 0


def test_workers_inherit_an_ignored_sighup_and_no_other_ignored_signal() -> None:
    """Under nohup SIGHUP is ignored in workers; an ignored SIGINT has its default again; stdout is inherited."""
    code = (
        "import select; from elastic_agent.agent.processes.supervisor import *\n"
        "s = Supervisor(); s.open(); s.start([Launch(0, ('grep', 'SigIgn', '/proc/self/status'), {}, '/')])\n"
        "p = select.poll(); p.register(s.fileno(), select.POLLIN)\n"
        "while p.poll() and WorkersGone() not in s.observe(): pass\n"
        "s.close()\n"
    )
    argv = ["/bin/sh", "-c", 'trap \'\' HUP INT; exec "$0" -c "$1"', sys.executable, code]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_S, check=True)
    ignored = int(ran.stdout.split()[1], 16)
    assert ignored & 0x7FFFFFFF == 1 << (signal.SIGHUP - 1)
