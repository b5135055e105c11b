"""What a worker of the nursery has from its start: streams, environment, directory, session and signals."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from elastic_agent.agent.lifecycle.events import WorkersGone
from elastic_agent.agent.processes.nursery_process import MARK
from elastic_agent.agent.processes.protocol import Launch
from elastic_agent.agent.processes.supervisor import Supervisor
from support.procfs import settled_files
from support.rigs.nursery import facts_until, launch, line_from, nursery_of, shell


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
    assert settled_files(nursery) == own, "stdio, socket, pidfds of agent and guardian, wake-up pipe; lock and procs"
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
