"""Whole agents on a host that refuses something: threads, processes, descriptors, pseudo-terminals, /proc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from elastic_agent.agent import exit_status
from support.etcd_servers import VERSIONS, shared_servers
from support.network import free_port

NOBODY_ELSE = 1_000_000 + os.getpid()
"""A user id that runs nothing on this host but this process's agents."""
RUN_S = 120
"""The limit for an agent that imports torch on a busy host; most take a second."""
AGENT = (sys.executable, "-m", "elastic_agent", "--standalone", "--log-dir", os.devnull)
CAPS = "+dac_override,+dac_read_search"
"""So that the other user may read this user's Python."""
AS_OTHER = (
    *("setpriv", f"--reuid={NOBODY_ELSE}", f"--regid={NOBODY_ELSE}", "--clear-groups"),
    *(f"--inh-caps={CAPS}", f"--ambient-caps={CAPS}"),
)
"""Run what follows as a user to whom limits of processes apply, which root is not."""
can_be_other = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("prlimit"),
    reason="becoming another user takes root",
)
can_mount = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting takes root")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run this to its end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, check=False, text=True, timeout=RUN_S, cwd="/", env=env)


def in_mount_namespace(setup: str, *command: str, **streams: int) -> subprocess.CompletedProcess[str]:
    """Run this where the shell commands `setup` have changed what is mounted; skip the test if that is forbidden."""
    script = f'{setup} || exit 99; exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, "sh", *command],
        check=False, text=True, timeout=RUN_S, stdin=subprocess.DEVNULL, **({"capture_output": True} | streams),
    )  # type: ignore[call-overload]  # fmt: skip
    if done.returncode == 99:
        pytest.skip("no mount namespace here")
    return done  # type: ignore[no-any-return]


# -- threads and processes ---------------------------------------------------------------------------------------------


TALKS = ("/bin/sh", "-c", "echo out; echo err >&2")
MEETING = """
import os, socket
from elastic_agent.rendezvous.c10d.client import connect
at = socket.getaddrinfo(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))[0]
try:
    connect((at[0], at[4]), 'the store', 20, 20).close()
except Exception:
    os._exit(1)
print('out')
"""
MEETS = ("/bin/sh", "-c", 'exec "$0" "$@"', sys.executable, "-S", "-c", MEETING)
"""Uses the workers' store, whose process is forked for its first client. By a shell, as the other user may execute this
Python, but access(2) denies it."""


@can_be_other
@pytest.mark.parametrize("worker", [TALKS, MEETS], ids=["talks", "meets"])
def test_a_process_limit_at_any_point_ends_in_success_or_in_the_hosts_failure(worker: Sequence[str]) -> None:
    """Whichever thread or process the limit refuses: no traceback, no worker that fails for it, and one last line."""
    seen = set()
    for most in range(2, 13):
        done = run(*AS_OTHER, "prlimit", f"--nproc={most}", *AGENT, "--nproc-per-node", "2", "--no-python", *worker)
        seen.add(done.returncode)
        assert done.returncode in (0, exit_status.HOST_FAILED), (most, done.stderr)
        assert "Traceback" not in done.stderr, (most, done.stderr)
        if done.returncode:
            assert done.stderr.splitlines()[-1].startswith(f"elastic-agent: exit {exit_status.HOST_FAILED}: ")
            assert not re.search(r"exit code 1\b|signal \d", done.stderr), (most, done.stderr)
        else:
            assert done.stdout.count("out\n") == 2
    assert seen == {0, exit_status.HOST_FAILED}


@can_be_other
@pytest.mark.parametrize("most", [4, 7])
def test_a_process_limit_on_the_host_of_a_store_is_named(most: int) -> None:
    """A thread of the store's that is refused ends the agent with the limit, and is not taken for a mistake in it."""
    conf = "last_call_timeout=1,quiet=0.2,join_timeout=8,store_grace=3,read_timeout=5"
    flags = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-conf", conf)
    done = run(
        *AS_OTHER, "prlimit", f"--nproc={most}", *AGENT[:3], "--log-dir", os.devnull, "--nnodes", "1:2", *flags,
        "--no-python", "/bin/sh", "-c", "echo out",
    )  # fmt: skip
    assert done.returncode in (exit_status.STORE_LOST, exit_status.HOST_FAILED), done.stderr
    assert "Traceback" not in done.stderr
    assert "bug in elastic-agent" not in done.stderr
    assert re.search(r"refuses another thread|Resource temporarily unavailable", done.stderr.splitlines()[-1])


@can_be_other
@pytest.mark.parametrize("limit", ["--nproc=5", "--nproc=7", "--nproc=11", "--nofile=16", "--nofile=20"])
def test_a_limit_that_gets_in_the_way_of_grpc_is_named(stores_in_use: None, limit: str) -> None:
    """On etcd. Refused a thread or a descriptor, gRPC itself aborts the process, or stands still with all of it."""
    endpoint = str(shared_servers(VERSIONS[0]).endpoints[0])
    flags = ("--nnodes", "1", "--rdzv-backend", "etcd", "--rdzv-endpoint", endpoint, "--rdzv-id", f"scarce{limit}")
    command = (*AGENT[:3], "--log-dir", os.devnull, *flags, "--rdzv-conf", "read_timeout=5")
    done = run(*AS_OTHER, "prlimit", limit, *command, "--no-python", "/bin/sh", "-c", "echo out")
    assert done.returncode == exit_status.STORE_LOST, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(r"refuses another thread|Too many open files", done.stderr.splitlines()[-1])


# -- descriptors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("soft", "hard", "flags"), [(1024, 1024, ()), (1024, 4096, ("--tee", "3"))])
def test_1024_descriptors_are_enough_for_256_workers(soft: int, hard: int, flags: Sequence[str]) -> None:
    """As few as a hard limit of 1,024, and a soft one also with two files for each worker. The workers' limits are
    those that the agent was started with."""
    command = [*AGENT[:4], *flags, "--nproc-per-node", "256", "--no-python", "/bin/sh", "-c", "ulimit -Sn; ulimit -Hn"]
    done = run("prlimit", f"--nofile={soft}:{hard}", *command)
    assert done.returncode == 0, done.stderr
    lines = [line.rpartition(":")[2] for line in done.stdout.splitlines()]
    assert sorted(lines) == sorted([str(soft), str(hard)] * 256)


# -- terminals ---------------------------------------------------------------------------------------------------------


@can_mount
def test_without_pseudo_terminals_workers_write_to_pipes(tmp_path: Path) -> None:
    """On a terminal, where /dev/ptmx gives none (exhausted, or not mounted): the job runs, and one line says so."""
    (tmp_path / "script.py").write_text("import sys\nprint('terminal:', sys.stdout.isatty())\n")
    outer, inner = os.openpty()
    try:
        done = in_mount_namespace(
            "mount --bind /dev/null /dev/ptmx",
            *AGENT, str(tmp_path / "script.py"), stdout=inner, stderr=inner, capture_output=False,
        )  # fmt: skip
        os.close(inner)
        shown = os.read(outer, 1 << 16).decode()
    finally:
        os.close(outer)
    assert done.returncode == 0, shown
    assert "terminal: False" in shown
    assert shown.count("no pseudo-terminal for the workers") == 1


# -- /proc -------------------------------------------------------------------------------------------------------------


@can_mount
def test_a_missing_proc_is_named(tmp_path: Path) -> None:
    """Without it no process can be found; the last line says what to mount."""
    (tmp_path / "script.py").write_text("print('trained')\n")
    done = in_mount_namespace("mount -t tmpfs none /proc", *AGENT, str(tmp_path / "script.py"))
    assert done.returncode == exit_status.HOST_FAILED, done.stderr
    assert "Traceback" not in done.stderr
    assert "/proc is not mounted" in done.stderr.splitlines()[-1]
    assert done.stdout == ""
