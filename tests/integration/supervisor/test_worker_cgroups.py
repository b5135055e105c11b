"""Workers in a cgroup of their own, where the host lets us make one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_agent.agent.lifecycle.events import NurseryLost, WorkersGone
from elastic_agent.agent.nursery import cgroups
from elastic_agent.agent.processes.protocol import Exited, Started
from elastic_agent.agent.processes.supervisor import Supervisor
from support.procfs import slowed
from support.rigs.nursery import (
    BOUND_S,
    FAMILY,
    alive_after,
    children_of,
    facts_until,
    family_of,
    fd_of,
    guardian_of,
    launch,
    line_from,
    nurseries_of,
    nursery_of,
    watched,
)
from support.source_tree import ROOT
from support.workers import WORKERS

cgroup_only = pytest.mark.skipif(not cgroups.delegated(), reason="this host does not let us make cgroups")


@cgroup_only
def test_workers_are_in_a_cgroup_of_their_own_which_is_removed_with_the_nursery(
    supervisor: Supervisor, pipe: tuple[int, int]
) -> None:
    """Without any setting; the nursery is not in it, and close() removes it."""
    supervisor.start([launch("/bin/sh", "-c", "grep ^0:: /proc/self/cgroup; sleep 1000", out=pipe[1])])
    inside = line_from(pipe[0]).removeprefix("0::")
    nursery_of(supervisor)
    path = Path(supervisor._cgroup)
    assert path.name == Path(inside).name
    assert str(nursery_of(supervisor)) not in (path / "cgroup.procs").read_text().split()
    supervisor.close()
    assert not path.exists()


@cgroup_only
@pytest.mark.parametrize("refused", [False, True], ids=["forked into it", "moved into it"])
def test_a_worker_is_forked_into_its_cgroup_where_the_kernel_can(refused: bool) -> None:
    """Moving one takes the kernel 5 to 30 ms, at each restart. Where clone3 is refused, as seccomp filters do, a worker
    is forked as ever, and moved."""
    # In a process with one thread, as the nursery is.
    code = (
        "import os, sys; sys.path.append(sys.argv[1]); from agent.nursery import cgroups; "
        "cgroups.NR_CLONE3 = -1 if int(sys.argv[2]) else cgroups.NR_CLONE3; "
        "made = cgroups.create(cgroups.delegated()); pid, inside = made.fork(); "
        "pid or (inside or made.enter(), print(inside, open('/proc/self/cgroup').read(), flush=True), os._exit(7)); "
        "print('exit', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])); made.remove(); print(made.path)"
    )
    argv = [sys.executable, "-I", "-S", "-c", code, str(ROOT), str(int(refused))]
    first, *lines, ended, path = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    own = next(line for line in [first, *lines] if "0::/" in line)
    assert (first.startswith(str(not refused)), Path(own).name, ended) == (True, Path(path).name, "exit 7")
    assert not Path(path).exists()


@cgroup_only
def test_a_cgroup_is_made_while_another_agent_removes_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if that one removes it between its making and its locking."""
    parent, lock = cgroups.delegated(), cgroups.lock
    swept: list[str] = []

    def lock_late(path: str) -> int:
        if not swept:
            swept.append(path)
            os.rmdir(path)
        return lock(path)

    monkeypatch.setattr(cgroups, "lock", lock_late)
    monkeypatch.setattr(cgroups, "may_enter", lambda cgroup: True)  # it forks: for a process with one thread
    made = cgroups.create(parent)
    assert made is not None
    assert swept
    assert not os.path.exists(swept[0])
    os.close(made.lock)
    os.close(made.procs)
    made.remove()
    assert not os.path.exists(made.path)


@cgroup_only
def test_workers_start_in_a_cgroup_that_was_killed(supervisor: Supervisor) -> None:
    """Linux 6.18 kills what is forked into such a one."""
    for _ in range(2):
        supervisor.start([launch("sleep", "1000")])
        facts_until(supervisor, Started)
        supervisor.kill()
        facts_until(supervisor, WorkersGone)
    supervisor.start([launch("/bin/sh", "-c", "exit 7")])
    assert [fact.exit_code for fact in facts_until(supervisor, WorkersGone) if isinstance(fact, Exited)] == [7]


@cgroup_only
def test_with_a_cgroup_no_process_survives_guardian_and_nursery_killed_at_once(
    supervisor: Supervisor, pipe: tuple[int, int]
) -> None:
    """Not even one that has cleared its environment: the agent kills the whole cgroup."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    with watched(family_of(pipe[0])) as fds:
        nursery_of(supervisor)
        left = Path(supervisor._cgroup)
        os.kill(guardian_of(supervisor), signal.SIGSTOP)
        os.kill(nursery_of(supervisor), signal.SIGKILL)
        os.kill(guardian_of(supervisor), signal.SIGKILL)
        facts_until(supervisor, NurseryLost)
        assert alive_after(fds, slowed(1.0)) == 0
    assert not left.exists()


@cgroup_only
def test_what_a_killed_agent_left_in_its_cgroup_is_killed_by_the_next(pipe: tuple[int, int]) -> None:
    """When agent, guardian and nursery are killed at once, what left the workers' groups goes on. The next agent on
    this host kills it, and nothing of a running agent."""
    argv = [sys.executable, str(WORKERS / "sup_agent.py")]
    with contextlib.ExitStack() as stack:
        running, killed = (stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE)) for _ in range(2))
        untouched = [pid for _ in range(2) for pid in family_of(fd_of(running))]
        families = [pid for _ in range(2) for pid in family_of(fd_of(killed))]
        (guardian,) = children_of(killed.pid)
        nursery = nurseries_of(guardian)[0]
        with watched(untouched) as live, watched(families) as fds:
            for pid in (guardian, nursery, killed.pid):
                os.kill(pid, signal.SIGSTOP)
            for pid in (guardian, nursery, killed.pid):
                os.kill(pid, signal.SIGKILL)
            assert alive_after(fds[:1] + fds[6:7], slowed(1.0)) == 0
            later = Supervisor()
            later.open()
            try:
                assert alive_after(fds, BOUND_S) == 0
                assert alive_after(live, 0) == len(live)
            finally:
                later.close()
        running.kill()
