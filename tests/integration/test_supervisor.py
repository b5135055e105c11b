"""The supervisor and its nursery, with real processes: what ends, what is told, and that nothing stays behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from elastic_agent.agent.errors import InternalError, UsageError
from elastic_agent.agent.nursery import cgroups, descendants
from elastic_agent.agent.processes.protocol import (
    MARK,
    Emptied,
    Exited,
    Fact,
    Launch,
    NurseryLost,
    SpawnFailed,
    Started,
    Unheard,
)
from elastic_agent.agent.processes.supervisor import Supervisor
from support.source_tree import ROOT
from support.workers import WORKERS

FAMILY = (sys.executable, "-S", str(WORKERS / "sup_family.py"))
BOUND_S = 20.0
"""For events that must come; only a failing test waits so long."""


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """One with a nursery."""
    made = Supervisor()
    made.open()
    yield made
    made.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe: read end, write end."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def launch(*argv: str, key: int = 0, out: int | None = None, env: dict[str, str] | None = None) -> Launch:
    return Launch(key, argv, dict(os.environ) if env is None else env, str(Path.cwd()), out, None)


def shell(script: str, key: int = 0, out: int | None = None) -> Launch:
    return launch("/bin/sh", "-c", script, key=key, out=out)


def facts_until(supervisor: Supervisor, last: type[Fact], count: int = 1) -> list[Fact]:
    """Everything observed until `count` facts of this type were."""
    seen: list[Fact] = []
    poll = select.poll()
    poll.register(supervisor.fileno(), select.POLLIN)
    while sum(isinstance(fact, last) for fact in seen) < count:
        assert poll.poll(BOUND_S * 1000), f"no {last.__name__} within {BOUND_S} s after {seen}"
        seen += supervisor.observe()
    return seen


def line_from(fd: int) -> str:
    """The next line that a worker wrote into the pipe."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        assert poll.poll(BOUND_S * 1000), f"no line within {BOUND_S} s, only {line!r}"
        piece = os.read(fd, 1)
        assert piece, f"end of file after {line!r}"
        line += piece
    return line.decode().strip()


def nursery_of(supervisor: Supervisor) -> int:
    """Its pid, once it has told. What else is told meanwhile is lost."""
    while not supervisor._nursery:
        wait_readable(supervisor.fileno())
        supervisor.observe()
    return supervisor._nursery


def guardian_of(supervisor: Supervisor) -> int:
    return supervisor._guardian


def wait_readable(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(BOUND_S * 1000)


@contextlib.contextmanager
def watched(pids: Sequence[int]) -> Iterator[list[int]]:
    """Pidfds of these processes, which all live."""
    fds = [os.pidfd_open(pid) for pid in pids]
    try:
        assert alive_after(fds, 0) == len(fds)
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def alive_after(pidfds: Sequence[int], limit_s: float) -> int:
    """How many of them have not exited within the limit; returns as soon as all have."""
    until = time.monotonic() + limit_s
    left = list(pidfds)
    poll = select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left and (ready := poll.poll(max(0.0, until - time.monotonic()) * 1000)):
        for fd, _ in ready:
            poll.unregister(fd)
            left.remove(fd)
    return len(left)


def family_of(fd: int) -> list[int]:
    """The pids that a family worker printed."""
    word, *pids = line_from(fd).split()
    assert word == "family"
    return [int(pid) for pid in pids]


# -- exits and starts are told truthfully ------------------------------------------------------------------------------
def test_exit_codes_and_signals_are_reported_as_subprocess_reports_them(supervisor: Supervisor) -> None:
    """Codes 0, 7 and 255 and three signals arrive unchanged, each with the key and pid of its worker."""
    scripts = {0: "exit 0", 1: "exit 7", 2: "exit 255", 3: "kill -9 $$", 4: "kill -SEGV $$", 5: "kill -TERM $$"}
    supervisor.start([shell(script, key) for key, script in scripts.items()])
    facts = facts_until(supervisor, Emptied)
    pids = {fact.key: fact.pid for fact in facts if isinstance(fact, Started)}
    exits = {fact.key: (fact.pid, fact.exit_code) for fact in facts if isinstance(fact, Exited)}
    codes = {0: 0, 1: 7, 2: 255, 3: -9, 4: -11, 5: -15}
    assert exits == {key: (pids[key], code) for key, code in codes.items()}


def test_no_exit_is_lost_among_many_short_workers(supervisor: Supervisor) -> None:
    """200 workers that exit at once, each with its own code, are all reported, then Emptied, once."""
    supervisor.start([launch("/bin/sh", "-c", f"exit {key}", key=key) for key in range(200)])
    facts = facts_until(supervisor, Emptied)
    assert {fact.key: fact.exit_code for fact in facts if isinstance(fact, Exited)} == {key: key for key in range(200)}
    assert facts.count(Emptied()) == 1
    assert facts[-1] == Emptied()
    assert supervisor.alive() == ()


def test_started_comes_before_exited_and_alive_follows(supervisor: Supervisor) -> None:
    """A worker is alive between Started and Exited."""
    supervisor.start([launch("sleep", "1000")])
    facts_until(supervisor, Started)
    assert supervisor.alive() == (0,)
    supervisor.kill()
    assert [type(fact) for fact in facts_until(supervisor, Emptied)] == [Exited, Emptied]
    assert supervisor.alive() == ()


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("foo-that-is-not",), "No such file or directory: 'foo-that-is-not'"),
        (("/nowhere/foo",), "No such file or directory: '/nowhere/foo'"),
        (("/etc/passwd",), "Permission denied: '/etc/passwd'"),
    ],
)
def test_exec_failure_is_reported_with_its_reason(supervisor: Supervisor, argv: tuple[str, ...], reason: str) -> None:
    """A command that cannot run gives SpawnFailed in the kernel's words, then Emptied, and no Exited."""
    supervisor.start([launch(*argv, key=4)])
    assert facts_until(supervisor, Emptied) == [SpawnFailed(4, reason), Emptied()]


def test_a_machine_without_room_for_a_worker_is_told_from_a_wrong_command(supervisor: Supervisor) -> None:
    """No descriptor for the pipe that each birth takes: the machine's failure, whatever the command."""
    nursery = nursery_of(supervisor)
    used = len(os.listdir(f"/proc/{nursery}/fd"))
    least = used + 1  # to look at its children; a pipe takes two
    resource.prlimit(nursery, resource.RLIMIT_NOFILE, (least, least))
    supervisor.start([launch("true", key=4)])
    reason = "Too many open files: cannot fork"
    assert facts_until(supervisor, Emptied) == [SpawnFailed(4, reason, machine=True), Emptied()]


def test_a_missing_working_directory_is_named(supervisor: Supervisor) -> None:
    """A cwd that is not there gives SpawnFailed naming it."""
    supervisor.start([Launch(0, ("true",), dict(os.environ), "/nowhere")])
    reason = "No such file or directory: '/nowhere' (working directory)"
    assert facts_until(supervisor, Emptied) == [SpawnFailed(0, reason), Emptied()]


def test_the_command_is_looked_up_on_the_workers_own_path(supervisor: Supervisor, tmp_path: Path) -> None:
    """PATH of the launch's environment decides, not the agent's."""
    shutil.copy("/bin/true", tmp_path / "only-here")
    supervisor.start([launch("only-here", env={"PATH": f"/nowhere:{tmp_path}"}, key=0), launch("only-here", key=1)])
    facts = facts_until(supervisor, Emptied)
    assert [fact.key for fact in facts if isinstance(fact, Exited) and fact.exit_code == 0] == [0]
    assert [fact.key for fact in facts if isinstance(fact, SpawnFailed)] == [1]


def test_a_failed_spawn_leaves_the_rest_of_the_batch_alone(supervisor: Supervisor) -> None:
    """One batch is emptied once, whatever became of its members."""
    supervisor.start([launch("foo-that-is-not", key=0), shell("exit 5", key=1)])
    facts = facts_until(supervisor, Emptied)
    assert {type(fact) for fact in facts} == {SpawnFailed, Started, Exited, Emptied}
    assert supervisor.observe() == []


# -- what a worker gets ------------------------------------------------------------------------------------------------
def test_stdout_and_stderr_go_where_the_launch_says(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """Each descriptor becomes the worker's stream, and the nursery keeps no copy."""
    reader, writer = os.pipe()
    supervisor.start([Launch(0, ("sh", "-c", "echo out; echo err >&2"), os.environ, "/", writer, pipe[1])])
    os.close(writer)
    facts_until(supervisor, Emptied)
    assert line_from(reader) == "out"
    assert line_from(pipe[0]) == "err"
    assert os.read(reader, 1) == b"", "the write end is open somewhere after the worker's end"
    os.close(reader)


def test_only_stdio_is_open_in_a_worker(pipe: tuple[int, int]) -> None:
    """Neither the agent's descriptors, inheritable ones included, nor the nursery's reach a worker."""
    os.set_inheritable(pipe[0], True)
    code = (
        "import fcntl\n"
        "for fd in range(256):\n"
        "    try: fcntl.fcntl(fd, fcntl.F_GETFD); print(fd, end=' ')\n"
        "    except OSError: pass\n"
        "print()\n"
    )
    supervisor = Supervisor()
    supervisor.open()
    supervisor.start([launch(sys.executable, "-I", "-S", "-c", code, out=pipe[1])])
    assert line_from(pipe[0]).split() == ["0", "1", "2"]
    facts_until(supervisor, Emptied)
    nursery = nursery_of(supervisor)
    own = 8 + (2 if supervisor._cgroup else 0)
    assert open_files(nursery) == own, "stdio, socket, pidfds of agent and guardian, wake-up pipe; lock and procs"
    supervisor.close()


def test_a_worker_gets_its_environment_directory_and_arguments(supervisor: Supervisor, tmp_path: Path) -> None:
    """Odd but legal strings arrive byte for byte; of the agent's environment nothing else does."""
    odd = "tab\t nl\n 'ä\udcff= "
    code = "import os, sys; print(ascii((sys.argv[1:], os.getcwd(), os.environ['ODD'], sorted(os.environ))))"
    env = {"ODD": odd, "EMPTY": "", "LC_ALL": "C.UTF-8"}
    out = tmp_path / "out"
    with out.open("w") as file:
        argv = (sys.executable, "-I", "-S", "-c", code, "", odd, "")
        supervisor.start([Launch(0, argv, env, str(tmp_path), file.fileno())])
    facts_until(supervisor, Emptied)
    assert out.read_text().strip() == ascii((["", odd, ""], str(tmp_path), odd, sorted([*env, MARK])))


def test_a_large_environment_is_sent_whole(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """Several megabytes, far more than the socket holds, arrive in full."""
    env = {f"V{at}": "x" * 100_000 for at in range(12)} | {"PATH": os.environ["PATH"]}
    supervisor.start([launch("sh", "-c", "echo ${#V11}", env=env, key=key, out=pipe[1]) for key in range(3)])
    assert [line_from(pipe[0]) for _ in range(3)] == ["100000"] * 3
    facts_until(supervisor, Emptied)


def test_a_worker_leads_its_session_with_default_signals_and_an_empty_mask(
    supervisor: Supervisor, pipe: tuple[int, int]
) -> None:
    """Nothing of the nursery's own signal handling is inherited."""
    script = "echo $$ $(cut -d' ' -f5,6 /proc/$$/stat); grep -E 'Sig(Blk|Ign)' /proc/self/status"
    supervisor.start([shell(script, out=pipe[1])])
    pid, pgid, sid = line_from(pipe[0]).split()
    assert pid == pgid == sid
    blocked, ignored = (int(line_from(pipe[0]).split()[1], 16) for _ in range(2))
    assert blocked == 0
    # glibc's posix_spawn ignores the two signals that it keeps for itself, 32 and 33, and takes them back on first use.
    assert ignored & ~(1 << 31 | 1 << 32) == 0
    facts_until(supervisor, Emptied)


# -- stopping ----------------------------------------------------------------------------------------------------------
def test_the_group_is_signalled_after_its_leader_died(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """A leftover child of a worker that exited gets the signal, and its end empties the batch."""
    supervisor.start([shell("(echo ready; sleep 1000) & exit 3", out=pipe[1])])
    facts_until(supervisor, Exited)
    assert line_from(pipe[0]) == "ready"
    assert supervisor.observe() == []
    supervisor.signal(signal.SIGTERM)
    facts_until(supervisor, Emptied)


def test_signal_reaches_what_left_the_group(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """TERM ends the worker, its group and its strays, all but the one that ignores it; KILL ends that."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    with watched(family_of(pipe[0])) as fds:
        supervisor.signal(signal.SIGTERM)
        assert alive_after(fds[:-1], BOUND_S) == 0
        assert alive_after(fds[-1:], 0) == 1
        supervisor.kill()
        facts_until(supervisor, Emptied)
        assert alive_after(fds, 0) == 0


def test_leftovers_of_a_crashed_worker_are_gone_after_kill(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """All five children outlive the crash, none outlives kill(), and Emptied is told only then."""
    supervisor.start([launch(*FAMILY, "--crash", out=pipe[1])])
    assert [fact.exit_code for fact in facts_until(supervisor, Exited) if isinstance(fact, Exited)] == [3]
    with watched(family_of(pipe[0])[1:]) as fds:
        supervisor.kill()
        assert facts_until(supervisor, Emptied) == [Emptied()]
        assert alive_after(fds, 0) == 0


def test_kill_clears_a_hundred_children(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """100 TERM-ignoring processes in sessions of their own are gone by Emptied."""
    script = "trap '' TERM; for i in $(seq 100); do setsid sleep 1000 & done; echo ready; wait"
    supervisor.start([shell(script, out=pipe[1])])
    assert line_from(pipe[0]) == "ready"
    supervisor.kill()
    facts_until(supervisor, Emptied)
    assert children_of(nursery_of(supervisor)) == []


def test_kill_outruns_a_chain_of_processes_that_fork_and_die(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """Eight chains, each a process that starts its successor in a new session and exits, are caught."""
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
    facts_until(supervisor, Emptied)
    assert children_of(nursery_of(supervisor)) == []


def test_a_stopped_worker_sees_the_signal(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """SIGTERM is followed by SIGCONT, so a worker that SIGSTOP holds runs its handler."""
    script = "trap 'echo heard; exit 5' TERM; echo ready; while :; do sleep 1000 & wait; done"
    supervisor.start([shell(script, out=pipe[1])])
    assert line_from(pipe[0]) == "ready"
    supervisor.forward(signal.SIGSTOP)
    supervisor.signal(signal.SIGTERM)
    assert line_from(pipe[0]) == "heard"
    exits = [fact for fact in facts_until(supervisor, Exited) if isinstance(fact, Exited)]
    assert [fact.exit_code for fact in exits] == [5]


def test_a_stopped_worker_that_ignores_everything_is_killed(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """SIGKILL needs no SIGCONT."""
    supervisor.start([shell("trap '' TERM; echo ready; while :; do kill -STOP $$; done", out=pipe[1])])
    assert line_from(pipe[0]) == "ready"
    supervisor.signal(signal.SIGTERM)
    supervisor.kill()
    assert [fact.exit_code for fact in facts_until(supervisor, Emptied) if isinstance(fact, Exited)] == [-9]


def test_forward_reaches_workers_and_not_their_helpers(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """SIGUSR1, which kills by default, leaves the children of a worker that handles it alive."""
    script = "trap 'echo heard' USR1; sleep 1000 & echo $!; while :; do wait; done"
    supervisor.start([shell(script, out=pipe[1])])
    with watched([int(line_from(pipe[0]))]) as fds:
        supervisor.forward(signal.SIGUSR1)
        assert line_from(pipe[0]) == "heard"
        assert alive_after(fds, 0) == 1


def test_forward_passes_by_a_worker_that_would_end_of_it(supervisor: Supervisor) -> None:
    """No handler yet: the worker lives, Unheard names it, and what changes nothing is passed on without a word."""
    supervisor.start([launch("sleep", "1000", key=3)])
    facts_until(supervisor, Started)
    supervisor.forward(signal.SIGWINCH)
    supervisor.forward(signal.SIGUSR1)
    assert facts_until(supervisor, Unheard) == [Unheard(3, signal.SIGUSR1)]
    assert supervisor.alive() == (3,)


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


def test_a_kill_with_nothing_left_does_not_hit_the_next_batch(supervisor: Supervisor) -> None:
    """An order that came too late is forgotten."""
    supervisor.start([launch("true")])
    facts_until(supervisor, Emptied)
    supervisor.kill()
    supervisor.signal(signal.SIGTERM)
    supervisor.start([shell("exit 6")])
    exits = [fact for fact in facts_until(supervisor, Emptied) if isinstance(fact, Exited)]
    assert [fact.exit_code for fact in exits] == [6]


def test_a_key_in_use_cannot_be_started(supervisor: Supervisor) -> None:
    """Nor can anything between kill() and Emptied; afterwards it can."""
    supervisor.start([launch("sleep", "1000")])
    with pytest.raises(InternalError, match=r"those of \[0\] live"):
        supervisor.start([launch("sleep", "1000")])
    supervisor.kill()
    with pytest.raises(InternalError, match="being killed"):
        supervisor.start([launch("true", key=1)])
    facts_until(supervisor, Emptied)
    supervisor.start([launch("true")])
    facts_until(supervisor, Emptied)


# -- when one side dies ------------------------------------------------------------------------------------------------
def test_nothing_survives_the_agents_kill_9_by_a_second() -> None:
    """Two families and the nursery are gone: own group, setsid, double fork, deaf to SIGTERM."""
    argv = [sys.executable, str(WORKERS / "sup_agent.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        families = [family_of(agent.stdout.fileno()) for _ in range(2)]
        guardian, *others = children_of(agent.pid)
        assert not others
        with watched([*families[0], *families[1], guardian, *children_of(guardian)]) as fds:
            agent.kill()
            assert alive_after(fds, 1.0) == 0


@pytest.mark.parametrize("victims", list(itertools.permutations(("agent", "guardian", "nursery"), 2)), ids="-".join)
def test_nothing_survives_any_two_of_agent_guardian_and_nursery(victims: tuple[str, str]) -> None:
    """Whichever is left clears up; the agent finds what has kept its environment, the others everything."""
    argv = [sys.executable, str(WORKERS / "sup_agent.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        families = [family_of(agent.stdout.fileno()) for _ in range(2)]
        (guardian,) = children_of(agent.pid)
        (nursery,) = nurseries_of(guardian)
        with watched([*families[0], *families[1], guardian, nursery, agent.pid]) as fds:
            pidfds = dict(zip(("guardian", "nursery", "agent"), fds[-3:], strict=True))
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):  # it may be gone already, because of the first
                    signal.pidfd_send_signal(pidfds[victim], signal.SIGKILL)
            if "agent" not in victims:
                bare = {fds[4], fds[10]}
                assert alive_after([fd for fd in fds[:-1] if fd not in bare], 1.0) == 0
                for pid in (families[0][4], families[1][4]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            assert alive_after(fds[:-1], 1.0) == 0
        agent.kill()


def test_a_nursery_that_hangs_when_its_agent_is_gone_is_cleared_away() -> None:
    """A stopped nursery obeys nobody; its guardian needs it not."""
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
    """With orphan_grace_s a worker whose agent is killed hears SIGTERM and may finish; who ignores it is killed."""
    code = (
        "import os, select, sys; from elastic_agent.agent.processes.supervisor import *\n"
        "s = Supervisor(orphan_grace_s=1.5); s.open()\n"
        "s.start([Launch(k, ('/bin/sh', '-c', w), dict(os.environ), '/') for k, w in enumerate(sys.argv[1:])])\n"
        "while True: select.select([s.fileno()], [], []); s.observe()\n"
    )
    tidy = "trap 'sleep 0.3; echo saved; exit' TERM; echo ready $$; while :; do sleep 1000 & wait; done"
    deaf = "trap '' TERM; echo ready $$; while :; do sleep 1000; done"
    with subprocess.Popen([sys.executable, "-c", code, tidy, deaf], stdout=pipe[1]) as agent:
        pids = [int(line_from(pipe[0]).split()[1]) for _ in range(2)]
        with watched(pids) as fds:
            agent.kill()
            began = time.monotonic()
            assert line_from(pipe[0]) == "saved"
            assert alive_after(fds, BOUND_S) == 0
            assert 1.4 < time.monotonic() - began < 3.0


def test_nothing_survives_an_agent_whose_socket_was_inherited(supervisor: Supervisor) -> None:
    """A forked child of the agent holds its socket open, so no end of file comes; the pidfd tells."""
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
            assert alive_after(fds, 1.0) == 0
        for pid in forked:
            os.kill(pid, signal.SIGKILL)


def test_workers_die_with_the_nursery_and_its_loss_is_told(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """kill -9 of the nursery: NurseryLost names it, nobody is left, and a new nursery can be opened."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    facts_until(supervisor, Started)
    with watched(family_of(pipe[0])) as fds:
        pid = nursery_of(supervisor)
        os.kill(pid, signal.SIGKILL)
        facts = facts_until(supervisor, NurseryLost)
        assert facts[-1] == NurseryLost(f"the nursery (pid {pid}) was killed by signal 9 (Killed)")
        assert alive_after(fds, 1.0) == 0
    assert supervisor.alive() == ()
    supervisor.open()
    supervisor.start([launch("true")])
    facts_until(supervisor, Emptied)


def test_orders_to_a_dead_nursery_are_answered_by_its_loss(supervisor: Supervisor) -> None:
    """start, signal and kill do not raise; NurseryLost says what became of them."""
    os.kill(nursery_of(supervisor), signal.SIGKILL)
    wait_readable(supervisor.fileno())
    supervisor.start([launch("true")])
    supervisor.signal(signal.SIGTERM)
    supervisor.kill()
    assert [type(fact) for fact in facts_until(supervisor, NurseryLost)] == [NurseryLost]


def test_a_nursery_that_does_not_read_is_given_up(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its socket stays full it is killed and its loss reported, so the agent's loop never hangs."""
    monkeypatch.setattr("elastic_agent.agent.processes.supervisor.SEND_TIMEOUT_S", 0.1)
    supervisor.start([launch("true")])
    facts_until(supervisor, Emptied)
    os.kill(nursery_of(supervisor), signal.SIGSTOP)
    env = {f"V{at}": "x" * 100_000 for at in range(20)}
    supervisor.start([launch("true", env=env)])
    assert [type(fact) for fact in facts_until(supervisor, NurseryLost)] == [NurseryLost]


def test_ctrl_c_reaches_neither_nursery_nor_workers(tmp_path: Path) -> None:
    """SIGINT, SIGQUIT, SIGHUP and SIGTERM to the agent's whole process group are the agent's alone to judge."""
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
            assert alive_after(fds, 1.0) == 0


def test_the_nursery_survives_signals_sent_to_itself(supervisor: Supervisor) -> None:
    """TERM, INT, HUP and QUIT are blocked there, and reach workers all the same."""
    supervisor.start([launch("sleep", "1000")])
    facts_until(supervisor, Started)
    for signum in (1, 2, 3, 15):
        os.kill(nursery_of(supervisor), signum)
    supervisor.signal(signal.SIGINT)
    assert [fact.exit_code for fact in facts_until(supervisor, Emptied) if isinstance(fact, Exited)] == [-2]


def test_close_leaves_nobody(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """close() ends a family that ignores it, returns when it is gone, and may be called again."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    with watched([*family_of(pipe[0]), nursery_of(supervisor)]) as fds:
        supervisor.close()
        assert alive_after(fds, 0) == 0
    supervisor.close()
    supervisor.kill()
    with pytest.raises(InternalError, match="no nursery"):
        supervisor.start([launch("true")])


def test_close_is_bounded_when_the_nursery_does_not_answer(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """A stopped nursery is killed by its guardian, and all that was below it, within the time allowed."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    with watched([*family_of(pipe[0]), nursery_of(supervisor)]) as fds:
        os.kill(nursery_of(supervisor), signal.SIGSTOP)
        supervisor.close()
        assert alive_after(fds, 0) == 0


def test_nohup_reaches_workers_and_no_other_ignored_signal_does() -> None:
    """SIGHUP ignored by whoever started the agent stays ignored in workers, SIGINT does not; stdout is inherited."""
    code = (
        "import select; from elastic_agent.agent.processes.supervisor import *\n"
        "s = Supervisor(); s.open(); s.start([Launch(0, ('grep', 'SigIgn', '/proc/self/status'), {}, '/')])\n"
        "p = select.poll(); p.register(s.fileno(), select.POLLIN)\n"
        "while p.poll() and Emptied() not in s.observe(): pass\n"
        "s.close()\n"
    )
    argv = ["/bin/sh", "-c", 'trap \'\' HUP INT; exec "$0" -c "$1"', sys.executable, code]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_S, check=True)
    ignored = int(ran.stdout.split()[1], 16)
    assert ignored & 0x7FFFFFFF == 1 << (signal.SIGHUP - 1)


# -- a cgroup, where there may be one ----------------------------------------------------------------------------------
cgroup_only = pytest.mark.skipif(not cgroups.delegated(), reason="this host lets nobody make cgroups of his own")


@cgroup_only
def test_workers_are_in_a_cgroup_of_their_own_which_goes_with_the_nursery(
    supervisor: Supervisor, pipe: tuple[int, int]
) -> None:
    """Found out and used without being asked; the nursery is not in it, and nothing of it is left."""
    supervisor.start([launch("/bin/sh", "-c", "grep ^0:: /proc/self/cgroup; sleep 1000", out=pipe[1])])
    inside = line_from(pipe[0]).removeprefix("0::")
    nursery_of(supervisor)
    path = Path(supervisor._cgroup)
    assert path.name == Path(inside).name
    assert str(nursery_of(supervisor)) not in (path / "cgroup.procs").read_text().split()
    supervisor.close()
    assert not path.exists()


@cgroup_only
def test_with_a_cgroup_nobody_survives_guardian_and_nursery_killed_at_once(
    supervisor: Supervisor, pipe: tuple[int, int]
) -> None:
    """Nor does one whose environment says nothing: the agent has the cgroup to go by."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    with watched(family_of(pipe[0])) as fds:
        nursery_of(supervisor)
        left = Path(supervisor._cgroup)
        os.kill(guardian_of(supervisor), signal.SIGSTOP)
        os.kill(nursery_of(supervisor), signal.SIGKILL)
        os.kill(guardian_of(supervisor), signal.SIGKILL)
        facts_until(supervisor, NurseryLost)
        assert alive_after(fds, 1.0) == 0
    assert not left.exists()


@cgroup_only
def test_what_a_dead_agent_left_in_its_cgroup_is_cleared_by_the_next(pipe: tuple[int, int]) -> None:
    """Killed all three at once, its strays live on; the next agent on this host finds them, and touches no live one."""
    argv = [sys.executable, str(WORKERS / "sup_agent.py")]
    with contextlib.ExitStack() as stack:
        beside, dead = (stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE)) for _ in range(2))
        innocents = [pid for _ in range(2) for pid in family_of(fd_of(beside))]
        families = [pid for _ in range(2) for pid in family_of(fd_of(dead))]
        (guardian,) = children_of(dead.pid)
        nursery = nurseries_of(guardian)[0]
        with watched(innocents) as live, watched(families) as fds:
            for pid in (guardian, nursery, dead.pid):
                os.kill(pid, signal.SIGSTOP)
            for pid in (guardian, nursery, dead.pid):
                os.kill(pid, signal.SIGKILL)
            assert alive_after(fds[:1] + fds[6:7], 1.0) == 0
            later = Supervisor()
            later.open()
            try:
                assert alive_after(fds, BOUND_S) == 0
                assert alive_after(live, 0) == len(live)
            finally:
                later.close()
        beside.kill()


# -- cost --------------------------------------------------------------------------------------------------------------
def test_two_hundred_restarts_leak_no_descriptor(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """Agent and nursery hold as many descriptors after 200 batches as after the first."""
    counts = []
    for _ in range(200):
        supervisor.start([launch("/bin/true", key=0, out=pipe[1]), launch("foo-that-is-not", key=1, out=pipe[1])])
        facts_until(supervisor, Emptied)
        counts.append((open_files(os.getpid()), open_files(nursery_of(supervisor))))
    # The least of some: it may have one more open for a moment, while it looks for children.
    assert min(counts[:20]) == min(counts[-20:])


def test_the_nursery_is_small_and_imports_next_to_nothing(supervisor: Supervisor) -> None:
    """Less than 14 MiB resident, and not one module of ours but its own five."""
    supervisor.start([launch("true")])
    facts_until(supervisor, Emptied)
    status = Path(f"/proc/{nursery_of(supervisor)}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 14 * 1024
    code = "import sys; sys.path.append(sys.argv[1]); import agent.nursery.guardian; print(*sorted(sys.modules))"
    argv = [sys.executable, "-I", "-S", "-c", code, str(ROOT)]
    names = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in names if name.startswith("agent")] == [
        "agent",
        "agent.nursery",
        *(f"agent.nursery.{name}" for name in ("cgroups", "descendants", "frames", "guardian", "server", "spawn")),
    ]
    assert not {"socket", "signal", "enum", "re", "typing", "dataclasses", "subprocess"} & set(names)


def test_processes_are_found_on_a_kernel_without_lists_of_children(
    supervisor: Supervisor, pipe: tuple[int, int]
) -> None:
    """Reading all of /proc gives the same children as reading each process's own list."""
    supervisor.start([launch(*FAMILY, out=pipe[1])])
    pids = family_of(pipe[0])
    found = descendants.family()
    for pid in (os.getpid(), nursery_of(supervisor), *pids):
        assert sorted(found[pid]) == sorted(descendants.children_of(pid))
    assert {pids[0], pids[3]} <= set(found[nursery_of(supervisor)])


def test_a_string_with_a_nul_is_refused_before_anything_starts(supervisor: Supervisor) -> None:
    """No system call could carry it; the error names it."""
    with pytest.raises(UsageError, match=r"worker 1 cannot start: 'a\\x00b' holds a NUL"):
        supervisor.start([launch("true"), launch("echo", "a\0b", key=1)])
    supervisor.start([launch("true")])
    facts_until(supervisor, Emptied)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def nurseries_of(guardian: int) -> list[int]:
    return [pid for pid in children_of(guardian) if comm_of(pid) == b"elastic-nursery\n"]


def fd_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return process.stdout.fileno()


def comm_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/comm").read_bytes()


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
