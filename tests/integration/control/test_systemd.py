"""An agent as a service of a real systemd user manager, which runs in a mount namespace of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import ROOT

MANAGER = "/lib/systemd/systemd"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.access(MANAGER, os.X_OK) or not shutil.which("unshare"),
        reason="takes root, systemd and unshare",
    ),
]
STEPS = """\
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
mkdir -m 700 /run/u
export XDG_RUNTIME_DIR=/run/u HOME="$1"
%s --user > "$1/log" 2>&1 &
until [ -S /run/u/systemd/private ]; do sleep 0.02; done
show() { systemctl --user show elastic-agent@one -p ActiveState,StatusText,Result --value | paste -sd'|'; }
wait_for() { for _ in $(seq 600); do case "$(show)" in $1) show; return;; esac; sleep 0.05; done; show; exit 1; }
timeout 30 systemctl --user start elastic-agent@one
wait_for '*working: round 1*'
sleep 5
show
kill -STOP "$(systemctl --user show elastic-agent@one -p MainPID --value)"
wait_for '*failed*'
kill %%1
wait
"""


@pytest.mark.timeout(120)
def test_a_real_manager_sees_start_status_and_a_loop_that_stands_still(tmp_path: Path) -> None:
    """`start` returns once the agent runs; the status says where it stands; 5 s of a watchdog of 4 s change nothing;
    stopped by a signal, it is ended as `watchdog`."""
    (tmp_path / "job.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "env").write_text(f"COMMAND=--standalone {tmp_path}/job.py\nPYTHONPATH={os.environ['PYTHONPATH']}\n")
    text = (ROOT / "deploy/systemd/elastic-agent@.service").read_text()
    for pattern, value in (
        ("EnvironmentFile=.*", f"EnvironmentFile={tmp_path}/env"),
        ("ExecStart=.*", f"ExecStart={sys.executable} -m elastic_agent $COMMAND"),
        ("WatchdogSec=.*", "WatchdogSec=4"),
        ("Restart=.*", "Restart=no"),
        ("RestartForceExitStatus=.*", ""),
        ("Delegate=.*", ""),
    ):
        text, number = re.subn(f"^{pattern}$", value, text, flags=re.MULTILINE)
        assert number == 1, pattern
    unit = tmp_path / ".config/systemd/user/elastic-agent@.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(text)
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", STEPS % MANAGER]
    done = subprocess.run([*argv, "steps", str(tmp_path)], capture_output=True, text=True, timeout=110, check=False)
    log = (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""
    assert done.returncode == 0, (done.stdout, done.stderr, log)
    working, later, ended = (set(line.split("|")) for line in done.stdout.splitlines())
    assert {"active", "success"} < working
    assert any(each.startswith("working: round 1") for each in working)
    assert later == working
    assert {"failed", "watchdog"} <= ended
