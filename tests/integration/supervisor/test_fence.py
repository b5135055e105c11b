"""Workers end when the fence is passed, whatever becomes of the agent that would have moved it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from elastic_agent.agent.lifecycle.events import WorkersFenced, WorkersGone
from elastic_agent.agent.processes.fence_page import FencePage
from elastic_agent.agent.processes.protocol import Exited, SpawnFailed, Started
from elastic_agent.agent.processes.supervisor import Supervisor
from support.procfs import slowed, wait_exit
from support.rigs.nursery import facts_until, shell

AHEAD_S = 1.0
"""How far ahead the fence is moved."""
AGENT = """
import threading, time
from elastic_agent.agent.processes.fence_page import FencePage
from elastic_agent.agent.processes.protocol import Started
from elastic_agent.agent.processes.supervisor import Supervisor
from support.rigs.nursery import facts_until, shell

def move():
    while True:
        page.move(page.now() + 1.0, 1)
        time.sleep(0.1)

page, supervisor = FencePage(), Supervisor()
threading.Thread(target=move, daemon=True).start()
supervisor.open()
supervisor.fence(page.fd)
supervisor.begin(1)
supervisor.start([shell("setsid sleep 600 & sleep 600")])
(started,) = [fact for fact in facts_until(supervisor, Started) if isinstance(fact, Started)]
print(started.pid, flush=True)
threading.Event().wait()
"""


@pytest.fixture
def page() -> FencePage:
    return FencePage()


def begin(supervisor: Supervisor, page: FencePage, generation: int = 1) -> None:
    supervisor.fence(page.fd)
    supervisor.begin(generation)


def test_workers_of_a_stopped_agent_are_gone_before_its_fence_is_long_passed() -> None:
    """SIGSTOP to the agent: nothing of it moves the fence, and the nursery kills the workers by its own clock."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    with subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True, env=env) as agent:
        assert agent.stdout is not None
        worker = int(agent.stdout.readline())
        try:
            time.sleep(2 * AHEAD_S)  # as long as the fence is moved, its first places do not count
            os.kill(worker, 0)
            agent.send_signal(signal.SIGSTOP)
            stopped_s = time.monotonic()
            wait_exit(worker, stopped_s + AHEAD_S + slowed(1.0))
            assert time.monotonic() - stopped_s < AHEAD_S + slowed(1.0)
        finally:
            agent.kill()


def test_a_fence_that_is_passed_kills_all_and_says_so_first(supervisor: Supervisor, page: FencePage) -> None:
    """Also what left its parent: WorkersFenced comes before the exits."""
    page.move(page.now() + AHEAD_S, 1)
    begin(supervisor, page)
    supervisor.start([shell("setsid sleep 600 & sleep 600"), shell("sleep 600", key=1)])
    facts = facts_until(supervisor, WorkersGone)
    kinds = [type(fact) for fact in facts]
    assert kinds.index(WorkersFenced) < kinds.index(Exited)
    assert [fact.exit_code for fact in facts if isinstance(fact, Exited)] == [-9, -9]


def test_nothing_starts_behind_a_gap(supervisor: Supervisor, page: FencePage) -> None:
    """The fence was passed, and moved on again, after the agent had read that the round runs."""
    page.move(page.now() + 60.0, 2)
    begin(supervisor, page, generation=1)
    supervisor.start([shell("exit 0")])
    facts = facts_until(supervisor, SpawnFailed)
    assert isinstance(facts[0], WorkersFenced)
    assert not any(isinstance(fact, Started) for fact in facts)


def test_the_next_round_starts_in_the_next_generation(supervisor: Supervisor, page: FencePage) -> None:
    """A fence that was passed ends nothing that begins after it."""
    page.move(page.now() + 0.2, 1)
    begin(supervisor, page)
    supervisor.start([shell("sleep 600")])
    facts_until(supervisor, WorkersGone)
    page.move(page.now() + 60.0, 2)
    supervisor.begin(2)
    supervisor.start([shell("exit 3")])
    facts = facts_until(supervisor, WorkersGone)
    assert [fact.exit_code for fact in facts if isinstance(fact, Exited)] == [3]


def test_a_fence_that_moves_on_ends_nothing(supervisor: Supervisor, page: FencePage) -> None:
    """The timer is set anew as often as the fence was moved meanwhile."""
    ended = threading.Event()

    def move() -> None:
        while not ended.wait(0.05):
            page.move(page.now() + 2 * AHEAD_S, 1)

    page.move(page.now() + 2 * AHEAD_S, 1)
    mover = threading.Thread(target=move)
    mover.start()
    begin(supervisor, page)
    supervisor.start([shell("sleep 3; exit 4")])
    facts = facts_until(supervisor, WorkersGone)
    ended.set()
    mover.join()
    assert [fact.exit_code for fact in facts if isinstance(fact, Exited)] == [4]
