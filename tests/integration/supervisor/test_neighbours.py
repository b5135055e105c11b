"""Who sees on its own host that no process of a killed agent is left."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from elastic_agent.agent.nursery import cgroups
from elastic_agent.agent.processes import neighbours
from elastic_agent.agent.processes.neighbours import KEPT_S, LOOKED_AT, Neighbours
from support.procfs import wait_exit

AGENT = """
import sys, threading
from elastic_agent.agent.processes.fence_page import FencePage
from elastic_agent.agent.processes.neighbours import Neighbours
from elastic_agent.agent.processes.protocol import Started
from elastic_agent.agent.processes.supervisor import Supervisor
from support.rigs.nursery import facts_until, shell

neighbours, page = Neighbours(sys.argv[1], "killed"), FencePage()
supervisor = Supervisor(float(sys.argv[2]))
supervisor.open()
supervisor.fence(page.fd, neighbours.fd)
page.move(page.now() + 600.0, 1)
supervisor.begin(1)
supervisor.start([shell(sys.argv[3])])
(started,) = [fact for fact in facts_until(supervisor, Started) if isinstance(fact, Started)]
line = f"{neighbours.presence} {started.pid} {supervisor._nursery} {supervisor._guardian}\\n"
print(line, end="", flush=True)  # in one write: the worker writes to the same pipe
threading.Event().wait()
"""
SOON_S = 20.0
MOMENT_S = 1.0
STUBBORN = "trap '' TERM; echo child $$; sleep 600"

Found = queue.SimpleQueue[Mapping[str, str]]


class Killed:
    """An agent with a worker, to be killed."""

    def __init__(self, job: str, command: str = "sleep 600", grace_s: float = 0.0) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, job, str(grace_s), command], stdout=subprocess.PIPE, text=True, env=env
        )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().split() for _ in range(1 + command.count("echo"))]
        ((self.presence, *pids),) = (line for line in lines if line[0] != "child")
        self.worker, self.nursery, self.guardian = map(int, pids)
        self.children = [int(line[1]) for line in lines if line[0] == "child"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def job() -> str:
    return os.urandom(8).hex()


@pytest.fixture
def other(job: str) -> Iterator[Neighbours]:
    """Another agent of the job on this host."""
    with closing(Neighbours(job, "other")) as made:
        yield made


@pytest.fixture
def start(job: str) -> Iterator[Callable[..., Killed]]:
    made: list[Killed] = []

    def begin(*args: object) -> Killed:
        made.append(Killed(job, *args))  # type: ignore[arg-type]
        return made[-1]

    yield begin
    for each in made:
        each.close()


def nothing(found: Found) -> bool:
    try:
        found.get(timeout=MOMENT_S)
    except queue.Empty:
        return True
    return False


def test_a_killed_agent_is_found_once_its_workers_are_gone(other: Neighbours, start: Callable[..., Killed]) -> None:
    """Not while they have their grace, although the agent is dead."""
    killed, found = start(STUBBORN, 5.0), Found()
    killed.process.kill()
    killed.process.wait()
    other.look(found.put)
    assert nothing(found)
    os.kill(killed.worker, 0)
    assert found.get(timeout=SOON_S) == {killed.presence: "killed"}
    with pytest.raises(ProcessLookupError):
        os.kill(killed.worker, 0)


def test_an_agent_that_lives_is_not_found(other: Neighbours, start: Callable[..., Killed]) -> None:
    """Also one that is stopped; once it is killed, the next look finds it."""
    killed, found = start(), Found()
    killed.process.send_signal(signal.SIGSTOP)
    other.look(found.put)
    assert nothing(found)
    killed.close()
    other.look(found.put)
    assert found.get(timeout=SOON_S) == {killed.presence: "killed"}


def test_of_several_that_have_ended_the_newest_are_found_last(other: Neighbours, start: Callable[..., Killed]) -> None:
    """A record lists the last of them only, and earlier jobs of this run id may have left many."""
    killed, found = [start() for _ in range(5)], Found()
    for each in killed:
        each.close()
    deadline = time.monotonic() + SOON_S
    for each in killed:
        for pid in (each.worker, each.nursery, each.guardian):
            wait_exit(pid, deadline)  # `found` has only what has ended when it is looked at
    other.look(found.put)
    assert list(found.get(timeout=SOON_S)) == [each.presence for each in killed]


def test_agents_of_another_job_are_not_looked_at(start: Callable[..., Killed]) -> None:
    found = Found()
    start().close()
    with closing(Neighbours("another job", "other")) as other:
        other.look(found.put)
        assert nothing(found)


def test_what_escapes_a_nursery_that_is_killed_with_its_guardian_is_waited_for(
    other: Neighbours, start: Callable[..., Killed]
) -> None:
    """Agent, guardian and nursery are killed in one instant: what a worker had started has their mark."""
    killed, found = start("sleep 600 & echo child $!; wait"), Found()
    (escaped,) = killed.children
    if parent := cgroups.delegated():  # where the next agent on this host, maybe another test's, kills it
        cgroups.move(b"%d" % escaped, f"{parent}/cgroup.procs")
    for pid in (killed.process.pid, killed.guardian, killed.nursery):
        os.kill(pid, signal.SIGSTOP)
    for pid in (killed.guardian, killed.nursery, killed.process.pid):
        os.kill(pid, signal.SIGKILL)
    killed.process.wait()
    try:
        other.look(found.put)
        assert nothing(found)
        os.kill(escaped, 0)
    finally:
        os.kill(escaped, signal.SIGKILL)
    assert found.get(timeout=SOON_S) == {killed.presence: "killed"}


def test_a_presence_of_another_namespace_of_processes_is_not_believed(job: str, other: Neighbours) -> None:
    """Numbers of processes mean nothing there."""
    found = Found()
    killed = Neighbours(job, "elsewhere")
    os.truncate(killed.fd, 0)
    os.write(killed.fd, b"pid:[1] elsewhere\n1 1 -\n")
    os.close(killed.fd)
    other.look(found.put)
    assert nothing(found)
    killed.fd = -1
    killed.close()


def test_an_agent_that_ends_in_order_leaves_no_presence(job: str, other: Neighbours) -> None:
    folder = f"/dev/shm/elastic-agent.{os.geteuid()}"
    ended = Neighbours(job, "ended")
    names = {name for name in os.listdir(folder) if name.endswith((ended.presence, other.presence))}
    assert len(names) == 2
    ended.close()
    assert len(names & set(os.listdir(folder))) == 1


def test_what_no_agent_has_written_is_not_believed(job: str, other: Neighbours) -> None:
    """Neither a file that is empty nor one with other lines ends the look at the rest."""
    ended = [Neighbours(job, "elsewhere") for _ in range(3)]
    for each, content in zip(ended, (b"", b"pid:[1]\n", b"%s x\nnot a process\n"), strict=True):
        os.truncate(each.fd, 0)
        os.write(each.fd, content.replace(b"%s", os.fsencode(os.readlink("/proc/self/ns/pid"))))
        os.close(each.fd)
        each.fd = -1
    found = Found()
    other.look(found.put)
    assert nothing(found)
    other.look(found.put)
    assert nothing(found)
    for each in ended:
        each.close()


def test_later_agents_remove_what_killed_ones_left_a_day_ago_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each looked at all of them at its start: 40 ms of its processor time with 3,000, where jobs are killed."""
    with tempfile.TemporaryDirectory(dir=neighbours.MEMORY) as memory:
        monkeypatch.setattr(neighbours, "MEMORY", memory)
        with closing(Neighbours("job", "first")) as held:
            folder, day_ago = Path(memory, f"elastic-agent.{os.geteuid()}"), time.time() - KEPT_S - 60
            (own,) = folder.iterdir()
            left, fresh = [folder / f"job-{number}" for number in range(40)], folder / "job-fresh"
            for path in (*left, fresh):
                path.touch()
            for path in (*left, own):
                os.utime(path, (day_ago, day_ago))
            counts = [40]
            while counts[-1] and len(counts) < 2000:
                Neighbours("job", "later").close()
                counts.append(sum(path.exists() for path in left))
            assert max(before - after for before, after in pairwise(counts)) <= LOOKED_AT
            assert sorted(folder.iterdir()) == sorted([own, fresh])
            assert held.presence
