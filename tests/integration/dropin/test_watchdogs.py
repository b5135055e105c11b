"""The launcher's variables of torchrun: the file timer, the uninterruptible-state timeout, the health check port."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.network import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RUN_S = 120


def run(folder: Path, script: str, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = folder / "worker.py"
    path.write_text(script)
    command = [sys.executable, "-m", "elastic_agent", *flags, str(path)]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), **env}
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=RUN_S, check=False)


ALARM = (
    "import os, signal, time\n"
    "import torch.distributed.elastic.timer as timer\n"
    "timer.configure(timer.FileTimerClient(os.environ['TORCHELASTIC_TIMER_FILE']))\n"
    "with timer.expires(after=60, scope='long enough'): pass\n"
    "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
    "    with timer.expires(after=0.5, scope='one step'):\n"
    "        signal.pause()\n"
    "print('done', flush=True)\n"
)


def test_a_worker_whose_file_timer_expires_is_killed_and_restarted(tmp_path: Path) -> None:
    """With torch's own client; the pipe has a name of its own, and is gone afterwards."""
    done = run(tmp_path, ALARM, "--max-restarts=1", TORCHELASTIC_ENABLE_FILE_TIMER="1")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "the timer 'one step' of process" in done.stderr
    assert "it was sent SIGKILL" in done.stderr
    assert not list(tmp_path.glob("watchdog_timer_*"))


def test_the_file_timer_is_off_without_its_switch(tmp_path: Path) -> None:
    """And a file that is named is passed on as it is."""
    look = "import os; print(os.environ.get('TORCHELASTIC_TIMER_FILE'))"
    assert run(tmp_path, look).stdout == "None\n"
    assert run(tmp_path, look, TORCHELASTIC_TIMER_FILE="/named").stdout == "/named\n"
    named = str(tmp_path / "named")
    on = {"TORCHELASTIC_TIMER_FILE": named, "TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    assert (
        run(
            tmp_path,
            "import os, stat; print(stat.filemode(os.stat(os.environ['TORCHELASTIC_TIMER_FILE']).st_mode))",
            **on,
        ).stdout
        == "prw-------\n"
    )


def test_only_what_belongs_to_the_job_is_killed_by_the_file_timer(tmp_path: Path) -> None:
    """A request that names a process of somebody else, here the test itself, does nothing; nor does one that cannot be
    read."""
    script = (
        "import json, os, time\n"
        "pipe = open(os.environ['TORCHELASTIC_TIMER_FILE'], 'w')\n"
        f"request = dict(version=1, pid={os.getpid()}, scope_id='theirs', expiration_time=time.time(), signal=9)\n"
        "pipe.write('no request\\n' + json.dumps(request) + '\\n')\n"
        "pipe.close()\n"
        "request.update(pid=os.getpid(), scope_id='mine')\n"
        "open(os.environ['TORCHELASTIC_TIMER_FILE'], 'w').write(json.dumps(request) + '\\n')\n"
        "import signal; signal.pause()\n"
    )
    done = run(tmp_path, script, TORCHELASTIC_ENABLE_FILE_TIMER="1")
    assert done.returncode == 1
    assert "the timer 'theirs'" in done.stderr
    assert "nothing is sent to it" in done.stderr
    assert "the file timer cannot read b'no request'" in done.stderr


STUCK = (
    "import os\n"
    "fifo = os.environ['TMPDIR'] + '/never'\n"
    "os.mkfifo(fifo)\n"
    "# Its child waits for a writer before it executes anything, and it waits for its child, in state D (vfork(2)).\n"
    "os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)])\n"
)


def test_a_node_whose_worker_is_stuck_in_the_kernel_leaves_the_job(tmp_path: Path) -> None:
    """Status 75, with the worker named; under torchrun the job would end with 0."""
    done = run(
        tmp_path, STUCK, "--max-restarts=3", "--shutdown-timeout=1", TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT="1"
    )
    assert done.returncode == 75, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "the worker with local rank 0 (pid " in last
    assert "uninterruptible sleep (state D)" in last
    assert "the limit is 1 s" in last


def test_a_worker_that_only_sleeps_is_not_stuck(tmp_path: Path) -> None:
    quiet = "import threading; threading.Event().wait(1.5); print('done', flush=True)"
    done = run(tmp_path, quiet, TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT="0.5")
    assert (done.returncode, done.stdout) == (0, "done\n")


@pytest.mark.parametrize("value", ["0", "-1", "soon", ""])
def test_a_timeout_that_is_no_time_turns_the_look_off(tmp_path: Path, value: str) -> None:
    assert run(tmp_path, "pass", TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=value).returncode == 0


def test_the_health_check_port_is_served_and_one_that_is_none_ends_no_job(tmp_path: Path) -> None:
    """torch's open-source build starts no server there; asked by the worker, the agent says that it is in a round."""
    port = str(free_port())
    script = (
        "import urllib.request\n"
        f"print(urllib.request.urlopen('http://127.0.0.1:{port}/readyz', timeout=30).read().decode())\n"
    )
    done = run(tmp_path, script, TORCHELASTIC_HEALTH_CHECK_PORT=port)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("working: round 1 begins")
    done = run(tmp_path, "pass", TORCHELASTIC_HEALTH_CHECK_PORT="soon")
    assert done.returncode == 0
    assert "no health checks are served: TORCHELASTIC_HEALTH_CHECK_PORT is 'soon'; give a port" in done.stderr
    assert "HEALTH" not in run(tmp_path, "pass", TORCHELASTIC_HEALTH_CHECK_PORT="").stderr
