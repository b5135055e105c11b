"""The agent as a process: signals, stopping, and that no process of its job is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.procfs import slowed
from support.rigs.one_host import SLOW_GRACE_S, Host, alive, spawned, wait_gone


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_is_forwarded_and_the_agent_exits_128_plus_its_number(host: Host, signum: int) -> None:
    """A signal to the agent is sent to the workers as well, and the last line and the exit status name it."""
    agent = host.start("--nproc-per-node", "2")
    world = host.desk.wait_world(2)
    agent.terminate(signum)
    assert agent.wait() == 128 + signum
    assert all(worker.gone.is_set() or not alive(worker.pid) for worker in world)
    assert agent.text().splitlines()[-1].startswith(f"elastic-agent: exit {128 + signum}: ")
    assert "elastic_agent/" not in agent.text()  # a traceback of ours would name our modules


def test_a_signal_to_agent_and_workers_at_once_is_a_request_to_stop_and_no_failure(host: Host) -> None:
    """Schedulers signal all processes of a step, workers too: if the agent finds both at once, it is preemption."""
    agent = host.start("--nproc-per-node", "2")
    world = host.desk.wait_world(2)
    agent.terminate(signal.SIGSTOP)
    for worker in world:
        os.kill(worker.pid, signal.SIGTERM)
    host.desk.wait_gone(world)
    agent.terminate(signal.SIGTERM)
    agent.terminate(signal.SIGCONT)
    assert agent.wait() == 143
    assert "worker failed" not in agent.text()


def test_a_signal_that_reaches_the_workers_first_is_no_failure_either(host: Host) -> None:
    """A scheduler may pause between two processes of a step: the agent waits 1 s for its own signal, and restarts
    nothing."""
    agent = host.start("--nproc-per-node", "2", "--max-restarts", "0")
    world = host.desk.wait_world(2)
    for worker in world:
        os.kill(worker.pid, signal.SIGTERM)
    agent.wait_text("waiting 1 s for the same signal to this agent")
    agent.terminate(signal.SIGTERM)
    assert agent.wait() == 143


def test_a_stop_signal_to_a_worker_alone_is_a_failure(host: Host) -> None:
    """The agent waits for a signal of its own no longer than 1 s, then counts the exit as a failure."""
    agent = host.start("--max-restarts", "0")
    os.kill(host.desk.wait_world(1)[0].pid, signal.SIGTERM)
    assert agent.wait(SLOW_GRACE_S / 2) == 1


def test_a_worker_is_killed_when_its_grace_is_over_and_not_before(host: Host) -> None:
    """A worker that ignores SIGTERM is killed after --shutdown-timeout."""
    agent = host.start("--shutdown-timeout", "1")
    worker = host.desk.wait_world(1)[0]
    worker.order("ignore 15")
    host.desk.wait(lambda: "done ignore" in worker.sent, "a worker that ignores SIGTERM")
    began = time.monotonic()
    agent.terminate()
    assert agent.wait() == 143
    assert 1.0 <= time.monotonic() - began < slowed(4.0)


def test_the_grace_holds_after_a_failure_too(host: Host) -> None:
    """--shutdown-timeout also bounds how long a worker that ignores SIGTERM delays the restart after a failure."""
    agent = host.start("--nproc-per-node", "2", "--max-restarts", "1", "--shutdown-timeout", "1")
    world = host.desk.wait_world(2)
    world[0].order("ignore 15")
    host.desk.wait(lambda: "done ignore" in world[0].sent, "a worker that ignores SIGTERM")
    began = time.monotonic()
    world[1].order("exit 5")
    again = host.desk.wait_world(2, after=1)
    assert 1.0 <= time.monotonic() - began < slowed(5.0)
    for worker in again:
        worker.order("exit 0")
    assert agent.wait() == 0


def test_a_second_signal_shortens_the_grace_and_leaves_no_process(host: Host) -> None:
    """A second SIGINT kills the workers at once; they and their children are gone when the agent exits."""
    agent = host.start("--shutdown-timeout", str(SLOW_GRACE_S))
    worker = host.desk.wait_world(1)[0]
    for number in (2, 15):
        worker.order(f"ignore {number}")
    host.desk.wait(lambda: worker.sent.count("done ignore") == 2, "a worker that ignores both")
    child = spawned(host)
    agent.terminate(signal.SIGINT)
    agent.wait_text("stopped by signal 2")
    agent.terminate(signal.SIGINT)
    assert agent.wait(SLOW_GRACE_S / 2) == 130
    assert not alive(worker.pid)
    assert not alive(child)


def test_killing_the_agent_ends_its_workers_and_their_children_within_a_second(host: Host) -> None:
    """kill -9 of the agent: its workers and what they started are gone within 1 s."""
    agent = host.start("--nproc-per-node", "2")
    world = host.desk.wait_world(2)
    child = spawned(host)
    agent.process.kill()
    wait_gone([*(worker.pid for worker in world), child], slowed(1.0))
    agent.wait()


def test_children_of_a_crashed_worker_are_gone_before_the_next_round(host: Host) -> None:
    """A child of a worker that crashed does not run when the worker of the next round does."""
    agent = host.start("--max-restarts", "1")
    worker = host.desk.wait_world(1)[0]
    child = spawned(host)
    worker.order("kill 9")
    again = host.desk.wait_world(1, after=1)
    assert not alive(child)
    again[0].order("exit 0")
    assert agent.wait() == 0


def test_children_of_a_successful_worker_are_stopped_and_the_node_succeeds(host: Host) -> None:
    """A child left by a worker that exited with 0 does not outlive the agent, and does not change its exit status."""
    agent = host.start("--leftovers", "stop:0")
    worker = host.desk.wait_world(1)[0]
    child = spawned(host)
    worker.order("exit 0")
    assert agent.wait() == 0
    assert not alive(child)
    assert f"stopping 1 process that the workers left behind: {child} (" in agent.text()


def test_a_stopped_worker_can_still_be_stopped(host: Host) -> None:
    """A worker that SIGSTOP holds is woken, and ends by SIGTERM."""
    agent = host.start("--shutdown-timeout", str(SLOW_GRACE_S))
    worker = host.desk.wait_world(1)[0]
    os.kill(worker.pid, signal.SIGSTOP)
    agent.terminate()
    assert agent.wait(SLOW_GRACE_S / 2) == 143


def test_an_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    """Under nohup SIGHUP ends neither agent nor worker."""
    script = tmp_path / "job.py"
    script.write_text("import signal\nprint(repr(signal.getsignal(signal.SIGHUP)), flush=True)\ninput()\n")
    agent = subprocess.Popen(
        ["nohup", sys.executable, "-m", "elastic_agent", "--standalone", str(script)],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert agent.stdout is not None
    assert agent.stdin is not None
    for line in agent.stdout:
        if "SIG_IGN" in line:
            break
    agent.send_signal(signal.SIGHUP)
    agent.stdin.write("go on\n")
    agent.stdin.close()
    rest = agent.stdout.read()
    agent.stdout.close()
    assert agent.wait(20) == 0, rest


@pytest.mark.parametrize("named", [True, False])
def test_a_signal_that_is_named_is_handled_even_if_it_was_ignored_at_the_start(host: Host, named: bool) -> None:
    """A shell ignores SIGINT for what it starts in the background; a user who names it wants it handled."""
    flags = ("--signals-to-handle", "SIGTERM,SIGINT") if named else ()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        agent = host.start(*flags)
    finally:
        signal.signal(signal.SIGINT, before)
    host.desk.wait_world(1)
    agent.terminate(signal.SIGINT)
    if not named:
        agent.terminate()
    assert agent.wait() == 128 + (signal.SIGINT if named else signal.SIGTERM)


def test_a_signal_that_was_ignored_at_the_start_is_forwarded_if_that_is_asked(host: Host) -> None:
    """A SLURM script ignores USR1 until its agent has started, as the signal would end one before its first line."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        agent = host.start("--forward-signals", "USR1")
    finally:
        signal.signal(signal.SIGUSR1, before)
    (worker,) = host.desk.wait_world(1)
    worker.order("handle 10")
    host.desk.wait(lambda: "done handle" in worker.sent, "a worker that handles SIGUSR1")
    agent.terminate(signal.SIGUSR1)
    host.desk.wait(lambda: "signal 10" in worker.sent, "the signal at the worker")
    worker.order("exit 0")
    assert agent.wait() == 0


def test_forwarded_signals_reach_the_workers_and_stop_nothing(host: Host) -> None:
    """With --forward-signals each worker's handler runs, and a worker without one goes on."""
    agent = host.start("--nproc-per-node", "2", "--forward-signals", "USR1,SIGUSR2")
    world = host.desk.wait_world(2)
    world[0].order("handle 10")
    host.desk.wait(lambda: "done handle" in world[0].sent, "a worker that handles SIGUSR1")
    agent.terminate(signal.SIGUSR1)
    host.desk.wait(lambda: "signal 10" in world[0].sent, "the signal at the worker")
    agent.wait_text("signal 10 was not passed on to local rank 1, which has no handler for it")
    agent.terminate(signal.SIGUSR2)
    agent.wait_text("signal 12 was not passed on to local rank 0")
    for worker in world:
        worker.order("exit 0")
    assert agent.wait() == 0


def test_ten_signals_at_once_end_in_the_documented_way(host: Host) -> None:
    """Ten SIGTERMs at once neither hang the agent nor leave a worker."""
    agent = host.start("--nproc-per-node", "2")
    world = host.desk.wait_world(2)
    for _ in range(10):
        agent.terminate(signal.SIGTERM)
    assert agent.wait() == 143
    assert not any(alive(worker.pid) for worker in world)
