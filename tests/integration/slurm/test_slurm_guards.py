"""What guards learn from a real SLURM: whether a job runs or waits, when its time ends, and how long it is let stop."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path

import pytest

from elastic_agent.control.commands import NoReading
from elastic_agent.control.decisions.watches import ReadingResult
from elastic_agent.control.readings.readers import reader_of
from elastic_agent.control.table.parse import parse_table
from support.outside.slurm_cluster import SlurmCluster

ENDURING = Path(__file__).parents[2] / "support" / "workers" / "enduring.py"
LEFT_S = 35


def test_a_job_is_found_by_its_name_while_it_waits_and_while_it_runs(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over once it is neither queued nor running; a controller that is down is no job that is gone."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster.env[name])
    [watch] = parse_table("[[watch]]\nwhat = 'job'\njob = 'train-70b'", "w.toml").watches
    reader = reader_of(watch)
    assert reader.read(0).verdict is ReadingResult.OVER
    job = cluster.run("sbatch", "--parsable", "--hold", "--job-name=train-70b", "--wrap=sleep 600").strip()
    waits = reader.read(1)
    assert (waits.verdict, waits.text) == (ReadingResult.UNDER, f"SLURM job {job} PENDING JobHeldUser")
    cluster.run("scontrol", "release", job)
    cluster.wait(lambda: f"SLURM job {job} RUNNING" in reader.read(2).text, "the start of the job")
    cluster.run("scancel", job)
    cluster.wait(lambda: reader.read(3).verdict is ReadingResult.OVER, "the end of the job")
    assert reader.read(4).text == "no SLURM job named 'train-70b' runs or is queued"
    cluster.daemons["slurmctld"].kill()
    cluster.daemons["slurmctld"].wait()
    with pytest.raises(NoReading, match="squeue"):
        reader.read(5)


@pytest.mark.campaign
def test_slurms_own_end_time_lets_all_save_before_it_and_ends_the_job_with_75(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """No flag and no signal: the agent asks scontrol, whose KillWait of 3 s bounds the grace, too."""
    checkpoints, go, status = tmp_path / "checkpoints", tmp_path / "go", tmp_path / "status"
    agent = f"{sys.executable} -m elastic_agent --standalone --nproc-per-node 2 --log-dir {os.devnull}"
    training = f"{ENDURING} {checkpoints} {tmp_path}/notes 100000 0.02"
    script = tmp_path / "job.sbatch"
    script.write_text(
        f"#!/bin/bash\nwhile [ ! -e {go} ]; do sleep 0.1; done\n{agent} {training}\necho $? >{status}.new\n"
        f"mv {status}.new {status}\n"
    )
    job = cluster.run("sbatch", "--parsable", "--time=10", str(script), LOGLEVEL="INFO").strip()
    cluster.wait(lambda: cluster.state(job) == "RUNNING", "the start of the job")
    cluster.run("scontrol", "update", f"JobId={job}", f"EndTime=now+{LEFT_S}")
    shown = cluster.run("scontrol", "show", "job", job)
    end_s = datetime.fromisoformat(shown.partition("EndTime=")[2].split()[0]).timestamp()
    go.touch()
    cluster.wait(status.exists, "the end of the agent", LEFT_S + 60)
    assert status.read_text() == "75\n", cluster.story()
    assert status.stat().st_mtime < end_s
    last = max(checkpoints.glob("step-*/manifest.json"))
    steps = [int(line.split()[0]) for line in (tmp_path / "notes.1.0").read_text().splitlines()]
    assert json.loads(last.read_text())["step"] == steps[-1]
    assert last.stat().st_mtime < end_s
    assert "workers get 1 s to stop: the scheduler kills all 3 s after SIGTERM" in cluster.story()
