"""The agent as a pod runs it: PID 1 of a process namespace, with the variables that Kubernetes' controllers set."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.network import free_port
from support.procfs import slowed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a process namespace takes root"),
]
POD = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child", sys.executable, "-m", "elastic_agent")
BOUND_S = 60.0


def pod(script: Path, *flags: str, **env: str) -> subprocess.Popen[str]:
    """An agent that is PID 1, started with these flags and variables."""
    return subprocess.Popen([*POD, *flags, str(script)], env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                            cwd=script.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip


def agent_of(unshared: int) -> int:
    """Process id, outside, of the agent in a namespace."""
    (pid,) = map(int, Path(f"/proc/{unshared}/task/{unshared}/children").read_text().split())
    return pid


def end(started: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and messages, once it has ended."""
    _, said = started.communicate(timeout=BOUND_S)
    return started.returncode, said


def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline()


def test_as_pid_1_sigterm_ends_it_with_143_and_kills_what_does_not_stop(tmp_path: Path) -> None:
    """The pod's grace, 9 s, leaves the workers 2.7 s: one that ignores SIGTERM is killed then."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getppid() > 0, flush=True)\ntime.sleep(600)\n"
    )
    started = pod(script, ELASTIC_AGENT_TERMINATION_GRACE="9")
    assert line(started) == "True\n"
    agent = agent_of(started.pid)
    assert Path(f"/proc/{agent}/status").read_text().split("NSpid:")[1].splitlines()[0].split()[-1] == "1"
    began = time.monotonic()
    os.kill(agent, signal.SIGTERM)
    status, said = end(started)
    assert status == 143, said
    assert 2 < time.monotonic() - began < slowed(9.0), said


def test_as_pid_1_it_collects_what_workers_leave_behind(tmp_path: Path) -> None:
    """A daemon of a worker ends as a child of the agent's helpers, and no zombie of it stays; with the pod all ends."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "for _ in range(5):\n"
        "    subprocess.run(['setsid', '-f', 'sleep', '0.1'])\n"
        "deadline = time.monotonic() + 30\n"
        "def left():\n"
        "    found = []\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        try: text = open(f'/proc/{pid}/stat').read()\n"
        "        except OSError: continue\n"
        "        if '(sleep)' in text: found.append(text.rpartition(')')[2].split()[0])\n"
        "    return found\n"
        "while left():\n"
        "    assert time.monotonic() < deadline, left()\n"
        "    time.sleep(0.05)\n"
        "print('collected', flush=True)\n"
    )
    started = pod(script)
    assert line(started) == "collected\n"
    assert end(started)[0] == 0


def test_two_pods_of_a_trainjob_meet_by_its_variables(tmp_path: Path) -> None:
    """Static rendezvous, as Trainer sets it; the workers see both nodes."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.distributed as dist, os\ndist.init_process_group('gloo')\n"
        "print(os.environ['GROUP_RANK'], dist.get_world_size(), flush=True)\ndist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    env = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1",
           "PET_MASTER_PORT": str(free_port())}  # fmt: skip
    pods = [pod(script, PET_NODE_RANK=str(rank), **env) for rank in (0, 1)]
    assert [line(each) for each in pods] == ["0 2\n", "1 2\n"]
    assert [end(each)[0] for each in pods] == [0, 0]


def test_an_elastic_pytorchjob_goes_on_without_a_pod_that_is_deleted_and_takes_its_successor(tmp_path: Path) -> None:
    """Its variables as the operator sets them; the deleted pod ends with 143, and each start of the script
    prints the number of workers."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time\nprint(os.environ['GROUP_RANK'], os.environ['WORLD_SIZE'], flush=True)\n"
        "while not os.path.exists('end'):\n    time.sleep(0.05)\n"
    )
    conf = "last_call_quiet=30,last_call_timeout=30"
    env = {"PET_NNODES": "1:2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}",
           "PET_MAX_RESTARTS": "10", "PET_NPROC_PER_NODE": "1", "PET_RDZV_ID": "train",
           "PET_RDZV_CONF": conf}  # fmt: skip
    # In a cluster the endpoint is the name of the first pod; here it is the host of all of them.
    elsewhere = {**env, "PET_RDZV_CONF": f"{conf},is_host=false"}
    first = pod(script, PET_NODE_RANK="0", **env)
    deleted = pod(script, PET_NODE_RANK="1", **elsewhere)
    assert {line(first), line(deleted)} == {"0 2\n", "1 2\n"}
    os.kill(agent_of(deleted.pid), signal.SIGTERM)
    assert end(deleted)[0] == 143
    assert line(first) == "0 1\n"
    successor = pod(script, PET_NODE_RANK="1", **elsewhere)
    assert {line(first), line(successor)} == {"0 2\n", "1 2\n"}
    (tmp_path / "end").touch()
    assert [end(each)[0] for each in (first, successor)] == [0, 0]
