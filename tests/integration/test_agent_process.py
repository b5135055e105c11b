"""The agent as a process: signals, stopping, and that no process of its job is left."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_agent.agent.lifecycle.restart_policy import MAX_HOST_FAILURES
from support.desk import WORKER, Desk
from support.harness import ProcessNode
from support.procfs import parent_of, wait_exit

SLOW_GRACE_S = 60


class Host:
    """One host, one agent, no store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.desk = Desk(folder)
        self._nodes: list[ProcessNode] = []

    def start(self, *flags: str, **env: str) -> ProcessNode:
        base = {
            **os.environ,
            "TEST_NODE": "one",
            "TEST_DESK": self.desk.path,
            "LOGLEVEL": "INFO",
            "OMP_NUM_THREADS": "1",
        }
        logs = ("--log-dir", str(self.folder / "logs"))
        node = ProcessNode("one", ["--standalone", *logs, *flags, WORKER], {**base, **env}, self.folder)
        self._nodes.append(node)
        return node

    def close(self) -> None:
        for node in self._nodes:
            node.end()
        self.desk.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def spawned(host: Host, worker_index: int = 0) -> int:
    """Have a worker start a child that outlives it; return the child's pid."""
    worker = host.desk.workers[worker_index]
    worker.order("spawn")
    lines = host.desk.wait(lambda: [line for line in worker.sent if line.startswith("spawned")], "a child")
    return int(lines[0].split()[1])


def wait_gone(pids: list[int], bound_s: float) -> None:
    deadline = time.monotonic() + bound_s
    for pid in pids:
        wait_exit(pid, deadline)
    assert not [pid for pid in pids if alive(pid)]


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
    assert agent.wait(SLOW_GRACE_S / 4) == 1


def test_a_worker_is_killed_when_its_grace_is_over_and_not_before(host: Host) -> None:
    """A worker that ignores SIGTERM is killed after --shutdown-timeout."""
    agent = host.start("--shutdown-timeout", "1")
    worker = host.desk.wait_world(1)[0]
    worker.order("ignore 15")
    host.desk.wait(lambda: "done ignore" in worker.sent, "a worker that ignores SIGTERM")
    began = time.monotonic()
    agent.terminate()
    assert agent.wait() == 143
    assert 1.0 <= time.monotonic() - began < 4.0


def test_the_grace_holds_after_a_failure_too(host: Host) -> None:
    """--shutdown-timeout also bounds how long a worker that ignores SIGTERM delays the restart after a failure."""
    agent = host.start("--nproc-per-node", "2", "--max-restarts", "1", "--shutdown-timeout", "1")
    world = host.desk.wait_world(2)
    world[0].order("ignore 15")
    host.desk.wait(lambda: "done ignore" in world[0].sent, "a worker that ignores SIGTERM")
    began = time.monotonic()
    world[1].order("exit 5")
    again = host.desk.wait_world(2, after=1)
    assert 1.0 <= time.monotonic() - began < 5.0
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
    assert agent.wait(10) == 130
    assert not alive(worker.pid)
    assert not alive(child)


def test_killing_the_agent_ends_its_workers_and_their_children_within_a_second(host: Host) -> None:
    """kill -9 of the agent: its workers and what they started are gone within 1 s."""
    agent = host.start("--nproc-per-node", "2")
    world = host.desk.wait_world(2)
    child = spawned(host)
    agent.process.kill()
    wait_gone([*(worker.pid for worker in world), child], 1.0)
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


LEAVES = """
import subprocess, sys
code = "sleep " + sys.argv[1] + "; echo finished > " + sys.argv[2]
child = subprocess.Popen(
    ["sh", "-c", code], stdin=-3, stdout=-3, stderr=-3, start_new_session=True
)
print(child.pid, flush=True)
"""


class Leaver:
    """An agent whose worker exits 0 at once and leaves a shell running, in a session of its own."""

    def __init__(self, folder: Path, sleep_s: float, *flags: str) -> None:
        script = folder / "leaves.py"
        script.write_text(LEAVES)
        self.done = folder / "done"
        command = [sys.executable, "-m", "elastic_agent", "--standalone", *flags]
        self.agent = subprocess.Popen(
            [*command, str(script), str(sleep_s), str(self.done)],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.agent.stdout is not None
        self.child = int(self.agent.stdout.readline())

    def read_until(self, part: str) -> str:
        assert self.agent.stderr is not None
        for line in self.agent.stderr:
            if part in line:
                return line
        raise AssertionError(f"the agent ended without {part!r}")

    def end(self) -> tuple[int, str]:
        """Exit status and the rest of its messages."""
        _, err = self.agent.communicate(timeout=40)
        return self.agent.returncode, err


def test_an_uploader_that_a_finished_worker_left_may_end_by_itself(tmp_path: Path) -> None:
    """It has 30 s by default, and a line names it and says how long it has."""
    leaver = Leaver(tmp_path, 4)
    line = leaver.read_until("left behind")
    assert (
        f"waiting 28 s before stopping 2 processes that the workers left behind: {leaver.child} (sh -c sleep 4;" in line
    )
    code, err = leaver.end()
    assert code == 0, err
    assert leaver.done.exists()


def test_what_a_finished_worker_left_is_waited_for_until_a_signal(tmp_path: Path) -> None:
    """--leftovers wait: without limit; a request to stop reaches it at once."""
    leaver = Leaver(tmp_path, 1000, "--leftovers", "wait")
    assert f"waiting for 2 processes that the workers left behind: {leaver.child} (sh" in leaver.read_until(
        "left behind"
    )
    leaver.agent.send_signal(signal.SIGTERM)
    assert leaver.end()[0] == 143
    assert not alive(leaver.child)


def test_what_a_finished_worker_left_can_be_kept(tmp_path: Path) -> None:
    """--leftovers keep: it outlives the agent, as under torchrun, and ends by itself."""
    leaver = Leaver(tmp_path, 6, "--leftovers", "keep")
    assert f"leaving 2 processes that the workers left behind: {leaver.child} (sh" in leaver.read_until("left behind")
    code, err = leaver.end()
    assert code == 0, err
    assert alive(leaver.child)
    wait_gone([leaver.child], 20)
    assert leaver.done.exists()


def test_what_a_failed_worker_left_is_never_kept(tmp_path: Path) -> None:
    """--leftovers is about workers that exited 0."""
    (tmp_path / "fails.py").write_text(LEAVES + "sys.exit(3)\n")
    command = [sys.executable, "-m", "elastic_agent", "--standalone", "--leftovers", "keep", str(tmp_path / "fails.py")]
    done = subprocess.run(
        [*command, "1000", "x"], cwd=tmp_path, capture_output=True, text=True, timeout=40, check=False
    )
    assert done.returncode == 1
    assert not alive(int(done.stdout))


def test_a_stopped_worker_can_still_be_stopped(host: Host) -> None:
    """A worker that SIGSTOP holds is woken, and ends by SIGTERM."""
    agent = host.start("--shutdown-timeout", str(SLOW_GRACE_S))
    worker = host.desk.wait_world(1)[0]
    os.kill(worker.pid, signal.SIGSTOP)
    agent.terminate()
    assert agent.wait(10) == 143


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


BLOCKING_TYPING = """\
import os, sys
print("importing", flush=True)
sys.stdin.readline()
sys.path.remove(os.path.dirname(__file__))
del sys.modules["typing"]
import typing
"""
"""A module `typing`, which the agent needs, whose import waits for a line on stdin, and then imports the real one."""


@pytest.fixture
def importing(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """An agent in the midst of its imports."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "typing.py").write_text(BLOCKING_TYPING)
    (tmp_path / "job.py").write_text("print('trained', flush=True)\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path / 'slow'}{os.pathsep}{os.environ['PYTHONPATH']}"}
    flags = ["--standalone", "--log-dir", os.devnull, "--forward-signals", "usr1"]
    with subprocess.Popen(
        [sys.executable, "-m", "elastic_agent", *flags, str(tmp_path / "job.py")], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as agent:  # fmt: skip
        assert agent.stdout is not None
        assert agent.stdout.readline() == "importing\n"
        yield agent
        agent.kill()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_during_the_imports_ends_in_the_documented_way(
    importing: subprocess.Popen[str], signum: signal.Signals
) -> None:
    """Handlers are installed from the first line on: the agent prints one line and exits with 128+n at once."""
    importing.send_signal(signum)
    out, err = importing.communicate(timeout=20)
    assert importing.returncode == 128 + signum
    because = f"the agent was stopped by signal {signum} before it started anything"
    assert err == f"elastic-agent: exit {128 + signum}: {because}\n"
    assert out == ""


def test_a_forwarded_signal_during_the_imports_ends_nothing(importing: subprocess.Popen[str]) -> None:
    """SIGUSR1, which is meant for the workers, does not end an agent that has not read its flags yet."""
    importing.send_signal(signal.SIGUSR1)
    out, err = importing.communicate("go on\n", timeout=20)
    assert importing.returncode == 0, err
    assert out == "trained\n"
    assert "signal 10 arrived while no worker of this node ran; it was dropped" in err


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


def test_a_killed_nursery_costs_no_restart_and_the_job_goes_on(host: Host) -> None:
    """If the parent of the workers is killed, the agent reports it, starts another and goes on, even with
    --max-restarts 0."""
    agent = host.start("--max-restarts", "0")
    worker = host.desk.wait_world(1)[0]
    assert parent_of(worker.pid) != agent.process.pid
    os.kill(parent_of(worker.pid), signal.SIGKILL)
    again = host.desk.wait_world(1, after=1)
    assert again[0].restarts == 0
    assert "a failure of this host, not of the script: the process that owns the workers died" in agent.text()
    assert "costs this node no restart" in agent.text()
    again[0].order("exit 0")
    assert agent.wait() == 0


def test_a_host_that_kills_its_nursery_three_times_in_a_row_ends_the_agent(host: Host) -> None:
    """Whatever the restart budget; the exit status blames the host."""
    agent = host.start("--max-restarts", "9")
    seen = []
    for after in range(MAX_HOST_FAILURES):
        seen += host.desk.wait_world(1, after=after)
        os.kill(parent_of(seen[-1].pid), signal.SIGKILL)
    assert agent.wait() == 71
    last = agent.text().splitlines()[-1]
    assert last.startswith("elastic-agent: exit 71: ")
    assert "3 times in a row" in last
    assert not any(alive(worker.pid) for worker in seen)


def test_a_host_without_descriptors_ends_the_agent(host: Host) -> None:
    """If another nursery cannot be started, the last line gives the reason, and the exit status blames the host."""
    agent = host.start()
    worker = host.desk.wait_world(1)[0]
    least = len(os.listdir(f"/proc/{agent.process.pid}/fd"))
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (least, least))
    os.kill(parent_of(worker.pid), signal.SIGKILL)
    assert agent.wait() == 71, agent.text()
    assert "Too many open files" in agent.text().splitlines()[-1]
    assert not alive(worker.pid)


def test_logs_of_every_round_are_kept_under_their_own_name(host: Host) -> None:
    """No file of an earlier attempt is overwritten or deleted."""
    agent = host.start("--max-restarts", "2", "--redirects", "3")
    for after in range(3):
        worker = host.desk.wait_world(1, after=after)[0]
        worker.order(f"raise attempt {after}" if after < 2 else "exit 0")
    assert agent.wait() == 0
    texts = sorted(path.read_text() for path in (host.folder / "logs").glob("*/attempt_*/0/stderr.log"))
    assert len(texts) == 3
    assert ["attempt 0" in texts[1], "attempt 1" in texts[2]] == [True, True]


def test_ten_signals_at_once_end_in_the_documented_way(host: Host) -> None:
    """Ten SIGTERMs at once neither hang the agent nor leave a worker."""
    agent = host.start("--nproc-per-node", "2")
    world = host.desk.wait_world(2)
    for _ in range(10):
        agent.terminate(signal.SIGTERM)
    assert agent.wait(15) == 143
    assert not any(alive(worker.pid) for worker in world)
