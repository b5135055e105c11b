"""The supervisor and its nursery, with real processes: starts, exits, signals, and that no process is left behind."""

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
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from elastic_agent.agent.errors import InternalError, UsageError
from elastic_agent.agent.lifecycle.events import NurseryLost, SignalNotForwarded, WorkersGone
from elastic_agent.agent.nursery import cgroups, descendants
from elastic_agent.agent.processes.nursery_process import MARK
from elastic_agent.agent.processes.protocol import Exited, Fact, Launch, SpawnFailed, Started
from elastic_agent.agent.processes.supervisor import Supervisor
from support.source_tree import ROOT
from support.workers import WORKERS

FAMILY = (sys.executable, "-S", str(WORKERS / "sup_family.py"))
BOUND_S = 20.0
"""The limit for what must happen; only a failing test waits so long."""


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """A supervisor with a nursery."""
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
    """Its pid, once the nursery has reported it. Facts that come meanwhile are dropped."""
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
    """Pidfds of these processes, all of which are running."""
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
    first, *pids = line_from(fd).split()
    assert first == "family"
    return [int(pid) for pid in pids]


# -- starts and exits are reported correctly ---------------------------------------------------------------------------
def test_exit_codes_and_signals_are_reported_as_subprocess_reports_them(supervisor: Supervisor) -> None:
    """Codes 0, 7 and 255 and three signals are reported unchanged, each with the key and pid of its worker."""
    scripts = {0: "exit 0", 1: "exit 7", 2: "exit 255", 3: "kill -9 $$", 4: "kill -SEGV $$", 5: "kill -TERM $$"}
    supervisor.start([shell(script, key) for key, script in scripts.items()])
    facts = facts_until(supervisor, WorkersGone)
    pids = {fact.key: fact.pid for fact in facts if isinstance(fact, Started)}
    exits = {fact.key: (fact.pid, fact.exit_code) for fact in facts if isinstance(fact, Exited)}
    codes = {0: 0, 1: 7, 2: 255, 3: -9, 4: -11, 5: -15}
    assert exits == {key: (pids[key], code) for key, code in codes.items()}


def test_no_exit_is_lost_among_many_short_workers(supervisor: Supervisor) -> None:
    """200 workers that exit at once, each with its own code, are all reported, then WorkersGone, once."""
    supervisor.start([launch("/bin/sh", "-c", f"exit {key}", key=key) for key in range(200)])
    facts = facts_until(supervisor, WorkersGone)
    assert {fact.key: fact.exit_code for fact in facts if isinstance(fact, Exited)} == {key: key for key in range(200)}
    assert facts.count(WorkersGone()) == 1
    assert facts[-1] == WorkersGone()
    assert supervisor.alive() == ()


def test_a_worker_is_alive_from_started_to_exited(supervisor: Supervisor) -> None:
    """Started is reported before Exited, and alive() lists the worker in between."""
    supervisor.start([launch("sleep", "1000")])
    facts_until(supervisor, Started)
    assert supervisor.alive() == (0,)
    supervisor.kill()
    assert [type(fact) for fact in facts_until(supervisor, WorkersGone)] == [Exited, WorkersGone]
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
    """A command that cannot run gives SpawnFailed with the kernel's reason, then WorkersGone, and no Exited."""
    supervisor.start([launch(*argv, key=4)])
    assert facts_until(supervisor, WorkersGone) == [SpawnFailed(4, reason), WorkersGone()]


def test_a_host_that_refuses_a_worker_is_distinguished_from_a_wrong_command(supervisor: Supervisor) -> None:
    """Without descriptors for the pipe that each start takes, SpawnFailed blames the host, whatever the command."""
    nursery = nursery_of(supervisor)
    used = len(os.listdir(f"/proc/{nursery}/fd"))
    least = used + 1  # to look at its children; a pipe takes two
    resource.prlimit(nursery, resource.RLIMIT_NOFILE, (least, least))
    supervisor.start([launch("true", key=4)])
    reason = "Too many open files: cannot fork"
    assert facts_until(supervisor, WorkersGone) == [SpawnFailed(4, reason, host=True), WorkersGone()]


def test_a_missing_working_directory_is_named(supervisor: Supervisor) -> None:
    """A cwd that does not exist gives SpawnFailed, which names it, and blames no command."""
    supervisor.start([Launch(0, ("true",), dict(os.environ), "/nowhere")])
    reason = "No such file or directory: '/nowhere' (working directory)"
    assert facts_until(supervisor, WorkersGone) == [SpawnFailed(0, reason, host=True), WorkersGone()]


@pytest.mark.parametrize("shift", ["", "x"])
def test_a_long_reason_may_be_cut_within_a_character(supervisor: Supervisor, shift: str) -> None:
    """A path of two-byte characters that is longer than the reason's limit: the nursery lives on."""
    supervisor.start([launch(f"/{shift}{'é' * 1500}")])
    (failed, _) = facts_until(supervisor, WorkersGone)
    assert isinstance(failed, SpawnFailed)
    assert failed.reason.startswith(f"File name too long: '/{shift}éé")
    supervisor.start([launch("true")])
    assert isinstance(facts_until(supervisor, WorkersGone)[-1], WorkersGone)


def test_a_batch_that_ends_early_is_emptied_once_what_was_started_is_gone(supervisor: Supervisor) -> None:
    """The host refuses descriptors for the third worker: the first two run, and the next batch can start."""

    def launches() -> Iterator[Launch]:
        yield from (shell("exit 3", key=key) for key in range(2))
        raise OSError(24, "Too many open files")

    with pytest.raises(OSError, match="Too many open files"):
        supervisor.start(launches(), range(5))
    assert supervisor.busy()
    exits = [fact for fact in facts_until(supervisor, WorkersGone) if isinstance(fact, Exited)]
    assert [(fact.key, fact.exit_code) for fact in sorted(exits, key=lambda fact: fact.key)] == [(0, 3), (1, 3)]
    assert not supervisor.busy()
    supervisor.start([launch("true", key=4)])
    assert isinstance(facts_until(supervisor, WorkersGone)[-1], WorkersGone)


def test_descriptors_may_be_closed_as_soon_as_the_next_launch_is_asked_for(supervisor: Supervisor) -> None:
    """A node with many workers holds those of one at a time."""

    def launches() -> Iterator[Launch]:
        for key in range(3):
            out, theirs = os.pipe()
            ends.append(out)
            yield shell("echo from $0", key=key, out=theirs)
            os.close(theirs)

    ends: list[int] = []
    supervisor.start(launches(), range(3))
    assert [line_from(end) for end in ends] == ["from /bin/sh"] * 3
    facts_until(supervisor, WorkersGone)
    for end in ends:
        os.close(end)


def test_pythonhome_reaches_guardian_and_nursery(tmp_path: Path) -> None:
    """A Python that finds its standard library only by that variable can start them; the rest of -I still holds."""
    home = tmp_path / "home" / "lib" / Path(sysconfig.get_path("stdlib")).name
    home.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("stdlib")).iterdir():
        if entry.name == "lib-dynload":
            shutil.copytree(entry, home / entry.name)
        else:
            (home / entry.name).symlink_to(entry)
    (tmp_path / "select.py").write_text("raise SystemExit('found in the working directory')\n")
    code = (
        "from elastic_agent.agent.processes.supervisor import Supervisor\n"
        "import os, select, sys\n"
        "os.chdir(sys.argv[1]); os.environ['PYTHONPATH'] = sys.argv[1]\n"
        "s = Supervisor(); s.open()\n"
        "poll = select.poll(); poll.register(s.fileno(), select.POLLIN)\n"
        "while not s._nursery:\n"
        "    assert poll.poll(20_000)\n"
        "    s.observe()\n"
        "for pid in (s._guardian, s._nursery): print(sys.argv[2] in open(f'/proc/{pid}/maps').read())\n"
        "s.close()\n"
    )
    env = {**os.environ, "PYTHONHOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(tmp_path), str(home)],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


def test_the_command_is_looked_up_on_the_workers_own_path(supervisor: Supervisor, tmp_path: Path) -> None:
    """PATH of the launch's environment decides, not the agent's."""
    shutil.copy("/bin/true", tmp_path / "only-here")
    supervisor.start([launch("only-here", env={"PATH": f"/nowhere:{tmp_path}"}, key=0), launch("only-here", key=1)])
    facts = facts_until(supervisor, WorkersGone)
    assert [fact.key for fact in facts if isinstance(fact, Exited) and fact.exit_code == 0] == [0]
    assert [fact.key for fact in facts if isinstance(fact, SpawnFailed)] == [1]


def test_a_failed_spawn_does_not_affect_the_rest_of_the_batch(supervisor: Supervisor) -> None:
    """The other worker runs, and the batch is reported as emptied once."""
    supervisor.start([launch("foo-that-is-not", key=0), shell("exit 5", key=1)])
    facts = facts_until(supervisor, WorkersGone)
    assert {type(fact) for fact in facts} == {SpawnFailed, Started, Exited, WorkersGone}
    assert supervisor.observe() == []


# -- what a worker gets ------------------------------------------------------------------------------------------------
def test_stdout_and_stderr_go_where_the_launch_says(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """Each descriptor becomes the worker's stream, and the nursery keeps no copy open."""
    reader, writer = os.pipe()
    supervisor.start([Launch(0, ("sh", "-c", "echo out; echo err >&2"), os.environ, "/", writer, pipe[1])])
    os.close(writer)
    facts_until(supervisor, WorkersGone)
    assert line_from(reader) == "out"
    assert line_from(pipe[0]) == "err"
    assert os.read(reader, 1) == b"", "the write end is still open after the worker exited"
    os.close(reader)


def test_only_stdio_is_open_in_a_worker(pipe: tuple[int, int]) -> None:
    """Workers inherit neither the agent's descriptors, inheritable ones included, nor the nursery's."""
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
    facts_until(supervisor, WorkersGone)
    nursery = nursery_of(supervisor)
    own = 8 + (2 if supervisor._cgroup else 0)
    assert open_files(nursery) == own, "stdio, socket, pidfds of agent and guardian, wake-up pipe; lock and procs"
    supervisor.close()


def test_a_worker_gets_its_environment_directory_and_arguments(supervisor: Supervisor, tmp_path: Path) -> None:
    """Odd but legal strings are passed byte for byte; nothing else of the agent's environment is."""
    odd = "tab\t nl\n 'ä\udcff= "
    code = "import os, sys; print(ascii((sys.argv[1:], os.getcwd(), os.environ['ODD'], sorted(os.environ))))"
    env = {"ODD": odd, "EMPTY": "", "LC_ALL": "C.UTF-8"}
    out = tmp_path / "out"
    with out.open("w") as file:
        argv = (sys.executable, "-I", "-S", "-c", code, "", odd, "")
        supervisor.start([Launch(0, argv, env, str(tmp_path), file.fileno())])
    facts_until(supervisor, WorkersGone)
    assert out.read_text().strip() == ascii((["", odd, ""], str(tmp_path), odd, sorted([*env, MARK])))


def test_a_large_environment_is_sent_whole(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """Several megabytes, far more than the socket holds, are received in full."""
    env = {f"V{at}": "x" * 100_000 for at in range(12)} | {"PATH": os.environ["PATH"]}
    supervisor.start([launch("sh", "-c", "echo ${#V11}", env=env, key=key, out=pipe[1]) for key in range(3)])
    assert [line_from(pipe[0]) for _ in range(3)] == ["100000"] * 3
    facts_until(supervisor, WorkersGone)


def test_a_worker_leads_its_session_with_default_signals_and_an_empty_mask(
    supervisor: Supervisor, pipe: tuple[int, int]
) -> None:
    """Workers inherit nothing of the nursery's own signal handling."""
    script = "echo $$ $(cut -d' ' -f5,6 /proc/$$/stat); grep -E 'Sig(Blk|Ign)' /proc/self/status"
    supervisor.start([shell(script, out=pipe[1])])
    pid, pgid, sid = line_from(pipe[0]).split()
    assert pid == pgid == sid
    blocked, ignored = (int(line_from(pipe[0]).split()[1], 16) for _ in range(2))
    assert blocked == 0
    # glibc's posix_spawn ignores the two signals that it keeps for itself, 32 and 33, and takes them back on first use.
    assert ignored & ~(1 << 31 | 1 << 32) == 0
    facts_until(supervisor, WorkersGone)


# -- stopping ----------------------------------------------------------------------------------------------------------
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


# -- when one side is killed -------------------------------------------------------------------------------------------
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
            assert alive_after(fds, 1.0) == 0


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
                assert alive_after([fd for fd in fds[:-1] if fd not in bare], 1.0) == 0
                for pid in (families[0][4], families[1][4]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            assert alive_after(fds[:-1], 1.0) == 0
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
            assert 1.4 < time.monotonic() - began < 3.0


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
            assert alive_after(fds, 1.0) == 0
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
        assert alive_after(fds, 1.0) == 0
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
            assert alive_after(fds, 1.0) == 0


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


# -- a cgroup, where there may be one ----------------------------------------------------------------------------------
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
        assert alive_after(fds, 1.0) == 0
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
            assert alive_after(fds[:1] + fds[6:7], 1.0) == 0
            later = Supervisor()
            later.open()
            try:
                assert alive_after(fds, BOUND_S) == 0
                assert alive_after(live, 0) == len(live)
            finally:
                later.close()
        running.kill()


# -- cost --------------------------------------------------------------------------------------------------------------
def test_two_hundred_restarts_leak_no_descriptor(supervisor: Supervisor, pipe: tuple[int, int]) -> None:
    """Agent and nursery hold as many descriptors after 200 batches as after the first."""
    counts = []
    for _ in range(200):
        supervisor.start([launch("/bin/true", key=0, out=pipe[1]), launch("foo-that-is-not", key=1, out=pipe[1])])
        facts_until(supervisor, WorkersGone)
        counts.append((open_files(os.getpid()), open_files(nursery_of(supervisor))))
    # The least of 20: the nursery may have one more open for a moment, while it looks for children.
    assert min(counts[:20]) == min(counts[-20:])


def test_the_nursery_is_small_and_imports_next_to_nothing(supervisor: Supervisor) -> None:
    """Less than 14 MiB resident, and no module of ours but those of its own folder."""
    supervisor.start([launch("true")])
    facts_until(supervisor, WorkersGone)
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
    found = descendants.children_by_parent()
    for pid in (os.getpid(), nursery_of(supervisor), *pids):
        assert sorted(found[pid]) == sorted(descendants.children_of(pid))
    assert {pids[0], pids[3]} <= set(found[nursery_of(supervisor)])


def test_a_string_with_a_nul_is_refused_before_anything_starts(supervisor: Supervisor) -> None:
    """The error names the worker and the string."""
    with pytest.raises(UsageError, match=r"worker 1 cannot start: 'a\\x00b' holds a NUL"):
        supervisor.start([launch("true"), launch("echo", "a\0b", key=1)])
    supervisor.start([launch("true")])
    facts_until(supervisor, WorkersGone)


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
