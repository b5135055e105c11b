"""What the scripts of deploy/ read and are read with: the table of endings, and what speaks for a job."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic_agent.agent import exit_status
from support.outside.slurm_cluster import need_slurm
from support.source_tree import ROOT

TABLE = ROOT / "deploy" / "exit-statuses"
SLURM = ROOT / "deploy" / "slurm"
BY_SIGNAL = {137, 143}
"""Of the statuses 128+n those that batch systems bring about."""


def table() -> dict[int, str]:
    """The verdict on each status, in the order in which they speak for a job."""
    lines = [line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return {int(status): verdict for status, verdict, *_ in lines}


def speaking(*statuses: int) -> list[str]:
    """The status that the scripts take for the job's where its nodes ended so, and the verdict."""
    script = 'source "$0"; speaking "$@"'
    env = {**os.environ, "SLURM_SUBMIT_DIR": "/tmp", "SLURM_JOB_ID": "1"}
    command = ["bash", "-c", script, str(SLURM / "functions.sh"), *map(str, statuses)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=20).stdout.split()


def test_the_table_has_every_status_of_the_agent() -> None:
    """A status that is new has a verdict too, and one that is gone has none."""
    named = {value for name, value in vars(exit_status).items() if name.isupper() and isinstance(value, int)}
    assert set(table()) == (named - {exit_status.SIGNALLED}) | BY_SIGNAL


def test_what_is_saved_is_queued_again_and_what_is_done_or_killed_is_not() -> None:
    """75 again, 0 and 83 not; a failed host or network again, a failed training not."""
    verdicts = table()
    assert verdicts[75] == "again"
    assert {verdicts[status] for status in (71, 76, 80, 137, 143)} == {"retry"}
    assert {verdicts[status] for status in (0, 1, 2, 70, 78, 79, 82, 83, 93)} == {"stop"}


@pytest.mark.parametrize(
    ("ended", "spoke"),
    [
        ((0, 0, 0), "0 stop"),
        ((75, 75), "75 again"),
        ((75, 83), "83 stop"),
        ((0, 137), "0 stop"),
        ((75, 137), "75 again"),
        ((0, 71), "0 stop"),
        ((0, 75), "0 stop"),
        ((75, 71), "75 again"),
        ((75, 2), "75 again"),
        ((2, 2), "2 stop"),
        ((0, 1), "1 stop"),
        ((0, 76), "76 retry"),
        ((137, 80), "80 retry"),
        ((127, 127), "127 stop"),
        ((127, 75), "75 again"),
    ],
    ids=str,
)
def test_the_status_that_speaks_for_a_job(ended: tuple[int, ...], spoke: str) -> None:
    """Nodes may end differently: one that was lost or left says nothing where others finished or saved."""
    assert speaking(*ended) == spoke.split()
    assert speaking(*reversed(ended)) == spoke.split()


def test_the_scripts_can_be_read_by_bash() -> None:
    """No script has a mistake that bash finds without running it; each but the functions can be started."""
    for path in SLURM.iterdir():
        subprocess.run(["bash", "-n", str(path)], check=True, timeout=20)
        assert os.access(path, os.X_OK) == (path.name not in ("functions.sh", "hostnames.sh")), path


def test_every_script_finds_the_others_where_it_was_submitted_from() -> None:
    """SLURM runs a copy of a batch script, so all of them look in the same way where the others are."""
    heads = {
        re.search(r"^command=.*$", path.read_text(), flags=re.MULTILINE)[0]  # type: ignore[index]
        for path in SLURM.glob("*.sbatch")
    }
    assert len(heads) == 1


def names_of(nodes: str) -> list[str]:
    command = ["bash", "-c", '. "$0"; hostnames "$1"', str(SLURM / "hostnames.sh"), nodes]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()


NODE_LISTS = {
    "n1": ["n1"],
    "n1,m2": ["n1", "m2"],
    "n[1-3]": ["n1", "n2", "n3"],
    "n[1,3,5-6]": ["n1", "n3", "n5", "n6"],
    "n[008-011]": ["n008", "n009", "n010", "n011"],
    "gpu-[1-2],cpu[07,09]-x": ["gpu-1", "gpu-2", "cpu07-x", "cpu09-x"],
    "r[1-2]n[1-2]": ["r1n1", "r1n2", "r2n1", "r2n2"],
}


@pytest.mark.parametrize("nodes", NODE_LISTS)
def test_a_list_of_nodes_is_read_without_scontrol(nodes: str) -> None:
    """As scontrol itself reads it, where it is installed."""
    assert names_of(nodes) == NODE_LISTS[nodes]
    if shutil.which("scontrol"):
        theirs = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=20, check=False
        )
        assert theirs.returncode or theirs.stdout.split() == NODE_LISTS[nodes]


def test_the_endpoint_is_found_where_there_is_no_scontrol() -> None:
    """As in a container: the first node by its name; SLURM's address for it where there is one."""
    env = {"PATH": "/nowhere", "SLURM_SUBMIT_DIR": "/tmp", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node[017-020]"}
    bash, dirname = shutil.which("bash"), shutil.which("dirname")
    script = f'dirname() {{ {dirname} "$@"; }}; . "$0"; first_address'
    command = [str(bash), "-c", script, str(SLURM / "functions.sh")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=False)
    assert (done.stdout, done.stderr) == ("node017\n", "")


CONFIGS = {
    "ProctrackType           = proctrack/cgroup\n": "yes",
    "ProctrackType           = proctrack/cgroup\nSignalChildrenProcesses = yes\n": "no",
    "ProctrackType           = proctrack/cgroup\nSignalChildrenProcesses = No\n": "yes",
    "ProctrackType           = proctrack/linuxproc\n": "no",
    "": "no",
}


@pytest.mark.parametrize("config", CONFIGS)
def test_where_slurm_signals_only_a_tasks_first_process_the_script_says_so(config: str, tmp_path: Path) -> None:
    """By what scontrol says of this cluster, asked on the host that runs the batch script."""
    (tmp_path / "config").write_text(config)
    played = tmp_path / "scontrol"
    played.write_text(f'#!/bin/sh\n[ "$*" = "show config" ] && cat {tmp_path}/config\n')
    played.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": "/tmp", "SLURM_JOB_ID": "1"}
    command = ["bash", "-c", '. "$0"; must_forward && echo yes || echo no', str(SLURM / "functions.sh")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split() == [CONFIGS[config]]


AGENT = """\
import os, signal
for number, code in ((signal.SIGTERM, 75), (signal.SIGUSR2, 3)):
    signal.signal(number, lambda *_, code=code: os._exit(code))
print(signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN, flush=True)
signal.pause()
"""


def asleep(pid: int, least: int) -> int:
    """Once this shell takes SIGTERM, and waits for the so-manieth time or a later one: how often it has waited."""
    until = time.monotonic() + 20
    while True:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        often = int(found["voluntary_ctxt_switches"][0])
        takes = int(found["SigCgt"][0], 16) >> (signal.SIGHUP - 1) & 1  # its last trap
        if found["State"][0] == "S" and takes and often >= least:
            return often
        assert time.monotonic() < until, found
        time.sleep(0.01)


@pytest.mark.parametrize(("forward", "status"), [("yes", 75), ("", 3)])
def test_the_task_outlives_its_agent_and_hands_on_a_signal_only_where_it_must(
    forward: str, status: int, tmp_path: Path
) -> None:
    """SIGTERM to the task's first process: the agent gets it from there, or, where SLURM signals all processes, not a
    second time. SIGUSR1 is ignored before the agent takes it. The agent's status is the task's, and in a file."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "flags").write_bytes(b"")
    (tmp_path / "command").write_bytes(b"train.py\0")
    env = {**os.environ, "SLURMD_NODENAME": "n1", "ELASTIC_AGENT": f"{sys.executable} {tmp_path}/agent.py"}
    command = [str(SLURM / "agent.sh"), str(tmp_path), forward]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "True\n"
        slept = asleep(task.pid, 0)
        task.send_signal(signal.SIGTERM)
        if not forward:
            asleep(task.pid, slept + 1)  # it has taken the signal, and waits again
            os.kill(int((tmp_path / "n1.pid").read_text()), signal.SIGUSR2)
        assert task.wait(20) == status
    assert (tmp_path / "n1.status").read_text() == f"{status}\n"


def test_where_slurm_is_missing_its_tests_are_skipped_with_the_reason_and_ci_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reason names the packages that the run of all tests installs."""
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    with pytest.raises(pytest.skip.Exception, match=r"SLURM NOT INSTALLED .* NOT TESTED: apt-get install ") as skipped:
        need_slurm()
    packages = str(skipped.value).partition("apt-get install ")[2]
    assert packages in (ROOT / ".ci" / "run").read_text()
