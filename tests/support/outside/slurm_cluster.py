"""A real SLURM of several nodes on this host: slurmctld, and a slurmd for each node. They end with the test."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.network import free_ports
from support.procfs import kill, marked
from support.source_tree import ROOT

SCRIPTS = ROOT / "deploy" / "slurm"
BOUND_S = 60.0
"""For what takes seconds: scheduling, requeueing, an agent's start."""
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")

# AuthType none and the addresses: nobody outside this host is served. cred_expire: 120 s by default, and so long a job
# waits that was queued again. ReturnToService: a slurmd that comes back makes its node usable.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmUser={user}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
ProctrackType=proctrack/linuxproc
MpiDefault=none
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=1
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SelectType=select/cons_tres
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=3
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN"


@dataclass
class SlurmCluster:
    """A running one. Jobs are submitted from `home`, where their output is."""

    home: Path
    nodes: list[str]
    env: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *command: str, **variables: str) -> str:
        """What one of SLURM's commands printed; fails the test where it fails."""
        done = subprocess.run(
            command,
            cwd=self.home,
            env={**self.env, **variables},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout}{done.stderr}\n{self.story()}"
        return done.stdout

    def submit(self, script: str, *arguments: str, options: tuple[str, ...] = (), **variables: str) -> str:
        """The id of a new job of one of the scripts under test."""
        return self.run("sbatch", "--parsable", *options, str(SCRIPTS / script), *arguments, **variables).strip()

    def state(self, job: str) -> str:
        """Such as `COMPLETED`; of an array or a job with several records, those of all, in order, by commas."""
        printed = self.run("scontrol", "--oneliner", "show", "job", job)
        return ",".join(line.partition("JobState=")[2].split()[0] for line in printed.splitlines() if line)

    def wait(self, until: Callable[[], object], what: str, bound_s: float = BOUND_S) -> None:
        """SLURM tells nobody when a state changes, so it is asked."""
        deadline = time.monotonic() + bound_s
        while not until():
            assert time.monotonic() < deadline, f"{what} did not happen within {bound_s:g} s\n{self.story()}"
            time.sleep(0.1)

    def wait_end(self, *jobs: str, bound_s: float = BOUND_S) -> None:
        """Until no job is left in the queue, or none of these."""
        named = ("--jobs", ",".join(jobs)) if jobs else ()
        self.wait(lambda: not self.run("squeue", "--noheader", *named).strip(), f"the end of {jobs or 'all'}", bound_s)

    def lose(self, node: str) -> None:
        """Kill all that runs on a node, its slurmd first: to SLURM and to the agents its host has lost power."""
        self.daemons[node].kill()
        self.daemons[node].wait()
        for _ in range(3):  # a process may have forked meanwhile
            for pid in marked(node, "SLURMD_NODENAME"):
                kill(pid)

    def story(self) -> str:
        """What there is to read after a failure."""
        texts = [*sorted(self.home.glob("slurm-*.out")), *sorted(self.home.glob("*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in texts)


def need_slurm() -> None:
    """Skips the test, with a visible reason, where there is no SLURM to start."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        pytest.skip(
            f"SLURM NOT INSTALLED ({missing[0]}), so it is NOT TESTED: apt-get install slurmctld slurmd slurm-client"
        )
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root, so SLURM is NOT TESTED")


def _path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


@contextmanager
def slurm(home: Path, nodes: int) -> Iterator[SlurmCluster]:
    """A cluster of nodes n1, n2, ... in an empty directory, all of them idle."""
    need_slurm()
    host = socket.gethostname().partition(".")[0]
    names = [f"n{number}" for number in range(1, nodes + 1)]
    ports = free_ports(nodes + 1)
    lines = (NODE.format(name=name, host=host, port=port) for name, port in zip(names, ports[1:], strict=True))
    user = pwd.getpwuid(os.geteuid()).pw_name
    text = CONFIGURATION.format(
        home=home, host=host, port=ports[0], user=user, nodes="\n".join(lines), names=",".join(names)
    )
    (home / "state").mkdir(parents=True)
    (home / "spool").mkdir()
    (home / "slurm.conf").write_text(text)
    env = {**os.environ, "PATH": _path(), "SLURM_CONF": str(home / "slurm.conf")}
    cluster = SlurmCluster(home, names, env)
    try:
        _start(cluster, "slurmctld", "-D", "-c")
        for name in names:
            _start(cluster, name, "-D", "-N", name, program="slurmd")
        idle = ("sinfo", "--noheader", "--Node", "--format=%T")
        cluster.wait(lambda: _answer(cluster, idle).split() == ["idle"] * nodes, "the start of SLURM")
        yield cluster
    finally:
        _end(cluster)


def _start(cluster: SlurmCluster, name: str, *flags: str, program: str = "slurmctld") -> None:
    with (cluster.home / f"{name}.log").open("wb") as log:
        cluster.daemons[name] = subprocess.Popen(
            [program, *flags], env=cluster.env, cwd=cluster.home, stdout=log, stderr=log, start_new_session=True
        )


def _answer(cluster: SlurmCluster, command: tuple[str, ...]) -> str:
    """As `run`, while the controller may not be there yet."""
    return subprocess.run(command, env=cluster.env, capture_output=True, text=True, timeout=30, check=False).stdout


def _end(cluster: SlurmCluster) -> None:
    """Jobs first: what a killed slurmd leaves behind is nobody's."""
    try:
        controller = cluster.daemons.get("slurmctld")
        if controller and controller.poll() is None:  # without it, both would ask for half a minute
            _answer(cluster, ("scancel", "--signal=KILL", "--full", f"--user={os.geteuid()}"))
            _answer(cluster, ("scancel", f"--user={os.geteuid()}"))
    finally:
        for daemon in cluster.daemons.values():
            daemon.kill()
            daemon.wait()
        for pid in marked(cluster.env["SLURM_CONF"], "SLURM_CONF"):
            kill(pid)
