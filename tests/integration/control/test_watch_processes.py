"""Memory, load, hangs and jobs, on processes that really leak, compute, stand still or are gone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from elastic_agent.control.actions.stacks import dump, py_spy, stacks_of
from elastic_agent.control.commands import NoReading
from elastic_agent.control.decisions.watches import Reading, ReadingResult
from elastic_agent.control.readings import memory
from elastic_agent.control.readings.load import Load
from elastic_agent.control.readings.processes import stat
from elastic_agent.control.readings.reader import Reader
from elastic_agent.control.readings.readers import reader_of
from elastic_agent.control.table.parse import parse_table
from elastic_agent.control.table.watch import Watch
from support.etcd_servers import VERSIONS, serving
from support.network import free_port
from support.procfs import kill_and_read

LOOK_S = 0.02
WAIT_S = 20.0
LEAK = "kept.append(bytearray(os.urandom(1)) * 500_000); time.sleep(0.01)"
SHARED = "shared.write(bytes(500_000)); shared.flush(); time.sleep(0.01)"


def watch(what: str, **keys: object) -> Watch:
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in {"what": what, **keys}.items())
    return parse_table(f"[[watch]]\n{text}", "w.toml").watches[0]


@contextmanager
def child(code: str, name: str, *more: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process whose command line holds `name`, once it has printed a line. Killed at the end."""
    head = "import os, sys, time, mmap, tempfile\n"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{head}{code}", name, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    try:
        yield process
    finally:
        kill_and_read(process)


def until(reader: Reader, wanted: ReadingResult) -> Reading:
    """Look on and on until a reading is the wanted one."""
    deadline = time.monotonic() + WAIT_S
    while (reading := reader.read(time.monotonic())).verdict is not wanted:
        assert time.monotonic() < deadline, reading
        time.sleep(LOOK_S)
    return reading


def test_a_leak_is_found_before_it_reaches_the_limit() -> None:
    """A child that grows by some 50 MB a second is said to reach 2 GB within the hour, with its rank."""
    code = f"kept = []; print('up', flush=True)\nwhile True: {LEAK}"
    with child(code, "leaky", RANK="3") as process:
        a_watch = watch("worker-memory", threshold="1 hours left", process="leaky$", limit="2 GB", every="0.02 s")
        reading = until(reader_of(a_watch), ReadingResult.OVER)
    assert reading.text.startswith(f"rank 3 (pid {process.pid}) grows by ")


def test_page_cache_and_shared_maps_are_no_leak(tmp_path: Path) -> None:
    """A child that writes as fast to a file that it has mapped does not grow."""
    code = f"""
shared = open({str(tmp_path / "shared")!r}, "w+b")
maps = []
print('up', flush=True)
while True:
    {SHARED}
    if shared.tell() < 2**27:
        maps.append(mmap.mmap(shared.fileno(), 0))
        sum(maps[-1][::4096])
"""
    with child(code, "sharing"):
        a_watch = watch("worker-memory", threshold="1 hours left", process="sharing$", limit="10 GB", every="0.02 s")
        reader = reader_of(a_watch)
        until(reader, ReadingResult.UNDER)
        for _ in range(20):
            time.sleep(LOOK_S)
            assert reader.read(time.monotonic()).verdict is ReadingResult.UNDER


def test_a_worker_over_its_size_is_named() -> None:
    """The largest of those that match, with its rank."""
    code = "kept = bytearray(os.urandom(1)) * 100_000_000; print('up', flush=True); time.sleep(60)"
    with child(code, "big one", RANK="1") as process, child("print('up', flush=True); time.sleep(60)", "big two"):
        over = reader_of(watch("worker-memory", threshold="90 MB used", process="big (one|two)$")).read(0)
        under = reader_of(watch("worker-memory", threshold="1 GB used", process="big (one|two)$")).read(0)
    assert (over.verdict, under.verdict) == (ReadingResult.OVER, ReadingResult.UNDER)
    assert re.match(rf"rank 1 \(pid {process.pid}\) uses 1\d\d MB \(limit 90 MB used\)", over.text)


def test_the_hosts_memory_is_read() -> None:
    """At least this process uses some, and not all is used."""
    assert reader_of(watch("memory", threshold="0.001 % used")).read(0).verdict is ReadingResult.OVER
    assert reader_of(watch("memory", threshold="100 % used")).read(0).verdict is ReadingResult.UNDER


def test_a_cgroup_that_is_tighter_than_the_host_counts(tmp_path: Path) -> None:
    """8 GB of a limit of 10 GB are used, 1 GB of them page cache: 30 % are free. The host would have 90 %."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / str(os.getpid())).mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 100000000 kB\nMemAvailable: 90000000 kB\nAnonPages: 9000000 kB\n")
    (proc / str(os.getpid()) / "cgroup").write_text("0::/job/step\n")
    job = cgroups / "job"
    (job / "step").mkdir(parents=True)
    (job / "step" / "memory.max").write_text("max\n")
    (job / "memory.max").write_text("10000000000\n")
    (job / "memory.current").write_text("8000000000\n")
    (job / "memory.stat").write_text("anon 7000000000\nfile 1000000000\nshmem 0\n")
    a_watch = watch("memory", threshold="60 % used")
    reading = memory.Memory(a_watch, proc=proc, cgroups=cgroups).read(0)
    assert (reading.verdict, reading.text) == (
        ReadingResult.OVER,
        "memory in its cgroup: 70.0 % used, 3 GB free (limit 60 % used)",
    )


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """A cgroup of this test's with a limit in bytes, whose processes are killed at the end."""
    path = Path("/sys/fs/cgroup/memory") / f"test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        pytest.skip(f"no cgroup of version 1 that limits memory: {error.strerror}")
    try:
        yield path
    finally:
        deadline = time.monotonic() + WAIT_S
        while (pids := (path / "cgroup.procs").read_text().split()) and time.monotonic() < deadline:
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.01)
        path.rmdir()


ENTER = "open(sys.argv[2] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"


def test_the_memory_of_a_real_cgroup_is_over_by_what_its_processes_hold_and_not_by_page_cache(tmp_path: Path) -> None:
    """Of 400 MB, 150 MB in files are none that is used, 300 MB in the process are."""
    code = f"""
{ENTER}
with open({str(tmp_path / "big")!r}, "wb") as file:
    file.write(bytes(150_000_000))
print('up', flush=True)
sys.stdin.readline()
kept = bytearray(os.urandom(1)) * 300_000_000
print('grown', flush=True)
time.sleep(60)
"""
    with memory_cgroup(400_000_000) as cgroup, child(code, "held there", str(cgroup)) as process:
        reader = reader_of(watch("memory", threshold="60 % used", process="held there"))
        assert "file" in (cgroup / "memory.stat").read_text()
        under = reader.read(0)
        assert (under.verdict, under.text[:20]) == (ReadingResult.UNDER, "memory in its cgroup")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "grown\n"
        over = reader.read(1)
    assert over.verdict is ReadingResult.OVER
    assert re.match(r"memory in its cgroup: \d\d\.\d % used, .* \(limit 60 % used\)", over.text), over.text


def test_a_leak_in_a_cgroup_is_found_before_it_reaches_the_limit() -> None:
    """The process that leaks is alive when it is said, and the kernel has killed nobody."""
    code = f"{ENTER}kept = []; print('up', flush=True)\nwhile True: {LEAK}"
    with memory_cgroup(2_000_000_000) as cgroup, child(code, "leaks there", str(cgroup)) as process:
        a_watch = watch("memory", threshold="1 hours left", process="leaks there", every="0.02 s")
        reading = until(reader_of(a_watch), ReadingResult.OVER)
        assert process.poll() is None
    assert reading.text.startswith("memory in its cgroup grows by "), reading.text


def test_swap_is_over_by_what_is_used_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And never where the host has none. Real swap would be the whole host's, so the kernel's file is one of ours."""
    monkeypatch.setattr(memory, "PROC", tmp_path)
    reader = reader_of(watch("swap", threshold="50 % used"))
    for total, free, verdict in (
        (1000, 600, ReadingResult.UNDER),
        (1000, 400, ReadingResult.OVER),
        (0, 0, ReadingResult.UNDER),
    ):
        (tmp_path / "meminfo").write_text(f"SwapTotal: {total} kB\nSwapFree: {free} kB\n")
        assert reader.read(0).verdict is verdict


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
            foreign = Load(watch("load", threshold="0.1 cores used", process="no such job"))
            own = Load(watch("load", threshold="0.1 cores used", process="busy$"))
            assert (foreign.cores(time.monotonic()), own.cores(time.monotonic())) == (None, None)
            wait_for_work(pid)
            used, others = foreign.cores(time.monotonic()), own.cores(time.monotonic())
            assert foreign.read(time.monotonic() + 1).verdict is not ReadingResult.NOT_YET
        finally:
            os.kill(pid, signal.SIGKILL)
    assert used is not None
    assert others is not None
    assert used[pid] > 0
    assert pid not in others


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


def test_stacks_name_the_odd_rank_first(tmp_path: Path) -> None:
    """Three of four wait at one place; the fourth comes first, and the file holds all stacks."""
    if not py_spy():
        pytest.skip("py-spy is not installed")
    waits = "def all_reduce(): time.sleep(60)\ndef load_data(): time.sleep(60)\nprint('up', flush=True); "
    codes = [f"{waits}{'load_data' if rank == 2 else 'all_reduce'}()" for rank in range(4)]
    with ExitStack() as stack:
        processes = [stack.enter_context(child(code, "r", RANK=str(rank))) for rank, code in enumerate(codes)]
        line = dump([process.pid for process in processes], str(tmp_path / "stacks"))
    [file] = (tmp_path / "stacks").iterdir()
    assert line.startswith(f"stacks in {file}: rank 2 (pid {processes[2].pid}) in load_data (<string>:"), line
    assert "; rank 0 (pid" in line
    text = file.read_text()
    assert text.count("Thread ") == 4 + 2
    assert text.count(", with native frames\n") == 2
    assert re.search(r"\(libc[^)]*\)", text.partition("with native frames")[2])


def test_without_py_spy_the_worker_library_answers_with_its_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By faulthandler, in a thread of its own: the main thread waits in C."""
    monkeypatch.setattr("elastic_agent.control.actions.stacks.py_spy", lambda: "")
    path = str(tmp_path / "ask")
    code = f"from elastic_agent.worker.loop.answers import answer\nanswer({path!r})\n"
    code += "def waits(): print('up', flush=True); time.sleep(60)\nwaits()"
    with child(code, "library", RANK="3") as process:
        found = stacks_of([process.pid], "", {process.pid: path})
        assert process.poll() is None
    assert re.fullmatch(r"rank 3 \(pid \d+\) in waits \(<string>:4\)", found.summary), found.summary


def test_without_py_spy_the_process_is_asked_by_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """faulthandler writes the stack where the script said, and the process goes on."""
    monkeypatch.setattr("elastic_agent.control.actions.stacks.py_spy", lambda: "")
    code = "import faulthandler, signal; faulthandler.register(signal.SIGUSR2)\nprint('up', flush=True)\n"
    code += "def waits():\n    while True: time.sleep(0.05)\nwaits()"
    with child(code, "registered") as process:
        line = dump([process.pid], str(tmp_path), "SIGUSR2")
        assert process.stderr is not None
        assert "most recent call first" in process.stderr.readline()
        assert process.poll() is None
    assert line.endswith("in its own log, by SIGUSR2")


def test_a_signal_that_would_end_the_process_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process without a handler is described by the kernel, and is alive afterwards."""
    monkeypatch.setattr("elastic_agent.control.actions.stacks.py_spy", lambda: "")
    with child("print('up', flush=True); time.sleep(60)", "bare") as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        line = dump([process.pid], str(tmp_path), "SIGUSR2")
        assert process.poll() is None
    assert f"pid {process.pid} in status: T (stopped)" in line
