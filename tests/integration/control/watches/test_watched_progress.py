"""Watches of load, jobs and logs, on processes that really compute, stand still or are gone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic_agent.control.commands import NoReading
from elastic_agent.control.decisions.watches import Reading, ReadingResult
from elastic_agent.control.readings.load import Load
from elastic_agent.control.readings.processes import stat
from elastic_agent.control.readings.readers import reader_of
from support.etcd_servers import VERSIONS, serving
from support.network import free_port
from support.rigs.watched import WAIT_S, child, until, watch


def wait_for_work(pid: int) -> None:
    """Until the process has had 50 ms of a processor from now on."""
    begun = stat(pid)
    deadline = time.monotonic() + WAIT_S
    while begun and (now := stat(pid)) and now.cpu_s < begun.cpu_s + 0.05:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_foreign_load_is_measured_and_the_jobs_own_is_not() -> None:
    """A process that computes is load of others, and none if it is the job."""
    code = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code, "busy"], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        try:
            foreign = Load(watch("load", threshold="0.01 cores used", process="no such job"))
            own = Load(watch("load", threshold="0.1 cores used", process="busy$"))
            assert (foreign.cores(time.monotonic()), own.cores(time.monotonic())) == (None, None)
            wait_for_work(pid)
            used, others = foreign.cores(time.monotonic()), own.cores(time.monotonic())
            over = reading_that_names(pid, foreign)
            under = reading_that_names(pid, Load(watch("load", threshold="1000 cores used", process="no such job")))
        finally:
            os.kill(pid, signal.SIGKILL)
    assert used is not None
    assert others is not None
    assert used[pid] > 0
    assert pid not in others
    assert over.verdict is ReadingResult.OVER, over
    assert re.fullmatch(rf"others use [\d.]+ cores, most of them .* \(pid {pid}\) with [\d.]+ \(limit .*\)", over.text)
    assert under.verdict is ReadingResult.UNDER, under


def reading_that_names(pid: int, load: Load) -> Reading:
    """One in which this process used most: on a busy host there may be others before."""
    deadline = time.monotonic() + WAIT_S
    while f"(pid {pid})" not in (reading := load.read(time.monotonic())).text:
        assert time.monotonic() < deadline, reading
        wait_for_work(pid)
    return reading


def test_a_job_is_over_once_its_process_is_gone() -> None:
    """While it runs it is named, and its end is found at the next look."""
    reader = reader_of(watch("job", process="my training$"))
    with child("print('up', flush=True); time.sleep(60)", "my training") as process:
        assert reader.read(0).text == f"pid {process.pid} runs"
    reading = reader.read(1)
    assert (reading.verdict, reading.text) == (ReadingResult.OVER, "no process matches 'my training$'")


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A stand-in for squeue, which prints what it is told to, if it is asked as the manual page says."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def answers(script: str) -> None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "squeue").chmod(0o755)

    return answers


def test_a_slurm_job_that_neither_runs_nor_waits_is_over(squeue: Callable[[str], None]) -> None:
    """Queued is fine, and so is running; no line is not."""
    reader = reader_of(watch("job", job="train-70b"))
    squeue('case "$*" in *"--me --name train-70b"*) echo "4711 PENDING Priority";; esac')
    assert (reader.read(0).verdict, reader.read(0).text) == (ReadingResult.UNDER, "SLURM job 4711 PENDING Priority")
    squeue("exit 0")
    reading = reader.read(1)
    assert (reading.verdict, reading.text) == (ReadingResult.OVER, "no SLURM job named 'train-70b' runs or is queued")


def test_a_controller_that_is_down_is_no_job_that_is_gone(squeue: Callable[[str], None]) -> None:
    """squeue's own error is told, and nothing fires."""
    squeue("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(NoReading, match="squeue ended with status 1: slurm_load_jobs error"):
        reader_of(watch("job", job="train-70b")).read(0)


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[str]:
    """HOST:PORT of a store of this kind that a job may use."""
    if kind == "c10d":
        yield f"127.0.0.1:{free_port()}"
        return
    with serving(VERSIONS[0], folder) as servers:
        yield str(servers.members[0].endpoint)


@pytest.mark.parametrize("kind", ["c10d", "etcd"])
def test_a_job_is_found_by_its_run_id_in_its_store(kind: str, tmp_path: Path) -> None:
    """By that run id, and by no other; no more once its agent is gone."""
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    with store_of(kind, tmp_path) as where:
        flags = ["--nnodes", "1:2", "--rdzv-backend", kind, "--rdzv-endpoint", where, "--rdzv-id", "70b"]
        command = [sys.executable, "-m", "elastic_agent", *flags, "wait.py"]
        reader = reader_of(watch("job", store=f"{kind}://{where}", run_id="70b"))
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as agent:
            try:
                assert "job '70b' has nodes in" in until(reader, ReadingResult.UNDER).text
                other = reader_of(watch("job", store=f"{kind}://{where}", run_id="7b"))
                assert other.read(0).verdict is ReadingResult.OVER
            finally:
                agent.terminate()
        assert until(reader, ReadingResult.OVER).text == f"no node of job '70b' is in {kind}://{where}"


def test_a_log_that_stands_still_is_a_hang(tmp_path: Path) -> None:
    """Its age grows from its last change, and a new line ends it."""
    log = tmp_path / "rank0.log"
    log.write_text("step 1\n")
    reader = reader_of(watch("hang", path=str(tmp_path / "*.log"), threshold="10 min"))
    assert reader.read(1000).verdict is ReadingResult.UNDER
    assert reader.read(1601).text.startswith(f"{tmp_path}/*.log has not changed for 10 min")
    assert reader.read(1601).verdict is ReadingResult.OVER
    log.write_text("step 1\nstep 2\n")
    assert reader.read(1602).verdict is ReadingResult.UNDER


def test_a_log_that_is_old_at_the_first_look_is_believed(tmp_path: Path) -> None:
    """A look from cron finds a hang without having seen the file before."""
    log = tmp_path / "log"
    log.write_text("step 1\n")
    os.utime(log, (time.time() - 3600, time.time() - 3600))
    assert reader_of(watch("hang", path=str(log), threshold="10 min")).read(0).verdict is ReadingResult.OVER


def test_the_limit_of_a_log_is_learned_from_its_own_pauses(tmp_path: Path) -> None:
    """A line each minute, for half an hour; then silence. Played on a clock of the test's."""
    log = tmp_path / "log"
    log.write_text("")
    reader = reader_of(watch("hang", path=str(log), least="10 s"))
    now = 0.0
    for line in range(30):
        log.write_text("x" * line)
        reader.read(now)
        now += 60.0
        under = reader.read(now)
        assert under.verdict is ReadingResult.UNDER, under
    assert reader.read(now + 10 * 60.0).verdict is ReadingResult.UNDER
    over = reader.read(now + 26 * 60.0)
    assert over.verdict is ReadingResult.OVER
    assert "learned from 29 changes" in over.text


def test_a_job_that_does_not_run_does_not_hang(tmp_path: Path) -> None:
    """A log is old for ever once its job has ended well."""
    log = tmp_path / "log"
    log.write_text("done\n")
    os.utime(log, (0, 0))
    a_watch = watch("hang", path=str(log), threshold="10 min", process="no such training")
    assert reader_of(a_watch).read(0).verdict is ReadingResult.UNDER
