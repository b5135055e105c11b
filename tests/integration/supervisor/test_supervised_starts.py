"""The supervisor and its nursery, with real processes: starts and exits."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.agent.lifecycle.events import WorkersGone
from elastic_agent.agent.processes.protocol import Exited, Launch, SpawnFailed, Started
from elastic_agent.agent.processes.supervisor import Supervisor
from support.procfs import settled_files
from support.rigs.nursery import facts_until, launch, line_from, nursery_of, shell


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
    used = settled_files(nursery)
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


def test_a_string_with_a_nul_is_refused_before_anything_starts(supervisor: Supervisor) -> None:
    """The error names the worker and the string."""
    with pytest.raises(UsageError, match=r"worker 1 cannot start: 'a\\x00b' holds a NUL"):
        supervisor.start([launch("true"), launch("echo", "a\0b", key=1)])
    supervisor.start([launch("true")])
    facts_until(supervisor, WorkersGone)
