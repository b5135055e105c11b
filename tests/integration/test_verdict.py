"""The verdict, with real agents and workers: all nodes have the same, and it names what the kernel did."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaigns.causes import elastic_agent_jobs
from campaigns.causes.plan import Case
from support.harness import Cluster

RUN_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster("c10d", tmp_path, nnodes="2", nproc=2, max_restarts=0)
    yield made
    made.close()


def written(path: Path) -> dict[str, Any]:
    """A summary."""
    summary: dict[str, Any] = json.loads(path.read_text())
    return summary


def test_all_nodes_have_the_same_verdict(cluster: Cluster) -> None:
    """Cause, collateral and reasons come from the coordinator: block, verdict lines and summary file are the same."""
    a, b = cluster.start("a", redirects=2), cluster.start("b", redirects=2)
    world = cluster.desk.wait_world(4)
    world[3].order("raise boom")
    assert (a.wait(), b.wait()) == (1, 1)
    blocks = [node.text().partition("FAILED\n")[2].rpartition("elastic-agent: exit")[0] for node in (a, b)]
    assert blocks[0] == blocks[1]
    assert "  rank      : 3 " in blocks[0]
    assert "RuntimeError: boom" in blocks[0]
    assert "cause     : rank 3 on " in blocks[0]
    one, other = (written(cluster.folder / f"summary-{name}.json") for name in "ab")
    for each in (one, other):
        each.pop("node")
    assert one == other
    assert (one["judged"], one["cause"]["rank"], one["outcome"]) == ("cause", 3, "failed")
    assert {end["rank"]: end["role"] for end in one["ends"]} == {3: "cause"} | dict.fromkeys((0, 1, 2), "collateral")


def test_an_error_of_a_worker_that_was_stopped_is_the_cause(cluster: Cluster) -> None:
    """The worker at fault exits late: its agent had sent it SIGTERM by then, and yet it is named."""
    a, b = cluster.start("a", redirects=2), cluster.start("b", redirects=2)
    world = cluster.desk.wait_world(4)
    world[2].order("handle 15")
    cluster.desk.wait(lambda: "done handle" in world[2].sent, "a worker with a SIGTERM handler of its own")
    world[0].order("raise gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    cluster.desk.wait(lambda: "signal 15" in world[2].sent, "the agent's SIGTERM")
    world[2].order("raise boom")
    assert (a.wait(), b.wait()) == (1, 1)
    summary = written(cluster.folder / "summary-a.json")
    assert summary["cause"]["rank"] == 2
    assert "boom" in summary["because"]


def solo(folder: Path, script: str, *wrap: str) -> tuple[dict[str, Any], str]:
    """Run one agent with one worker; returns its summary and its stderr."""
    (folder / "script.py").write_text(script)
    command = [
        *wrap,
        sys.executable,
        "-m",
        "elastic_agent",
        "--log-dir",
        str(folder / "logs"),
        str(folder / "script.py"),
    ]
    env = {**os.environ, "ELASTIC_AGENT_SUMMARY": str(folder / "summary.json")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 1, done.stderr
    return written(folder / "summary.json"), done.stderr


def test_a_kill_by_hand_is_no_oom_kill(tmp_path: Path) -> None:
    """SIGKILL alone is no evidence: the summary names only the signal."""
    summary, text = solo(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert (summary["cause"]["exit_code"], summary["cause"]["note"]) == (-9, "")
    assert "OOM" not in text


def test_an_oom_kill_is_named(tmp_path: Path) -> None:
    """The kernel's counter of the cgroup that agent and worker share rose when the worker died."""
    group = Path("/sys/fs/cgroup/memory") / f"elastic-agent-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(100 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup of version 1 can be made here: {error}")
    try:
        join = f"echo $$ > {group}/cgroup.procs; exec " + '"$@"'
        summary, text = solo(tmp_path, "x = bytearray(500_000_000)", "sh", "-c", join, "sh")
    finally:
        group.rmdir()
    assert summary["cause"]["exit_code"] == -9
    assert "OOM killer" in summary["cause"]["note"]
    assert "OOM killer" in text.splitlines()[-1]


def test_a_core_dump_is_named(tmp_path: Path) -> None:
    """Where the kernel wrote a core, the summary says where."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard == 0:
        pytest.skip("core dumps are not allowed here (ulimit -Hc is 0)")
    script = (
        f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, ({hard}, {hard}))\nos.kill(os.getpid(), 11)"
    )
    summary, _ = solo(tmp_path, script)
    assert summary["cause"]["exit_code"] == -signal.SIGSEGV
    assert "core dumped" in summary["cause"]["note"]


def test_the_variable_names_the_summary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ELASTIC_AGENT_SUMMARY names another file; one that cannot be written is reported, and the exit status stays."""
    wanted = tmp_path / "end.json"
    monkeypatch.setenv("ELASTIC_AGENT_SUMMARY", str(wanted))
    (tmp_path / "script.py").write_text("raise SystemExit(3)")
    command = [sys.executable, "-m", "elastic_agent", "--log-dir", str(tmp_path / "logs"), str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert json.loads(wanted.read_text())["cause"]["exit_code"] == 3
    assert "the summary for programs is" not in done.stderr
    shutil.rmtree(tmp_path / "logs")
    monkeypatch.setenv("ELASTIC_AGENT_SUMMARY", str(tmp_path / "no" / "where"))
    again = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert (done.returncode, again.returncode) == (1, 1)
    assert "cannot write the summary" in again.stderr


def test_a_summary_goes_to_a_device_and_leaves_it_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ELASTIC_AGENT_SUMMARY=/dev/null or /dev/stdout: a rename would put a file in the place of the device, for all."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv("ELASTIC_AGENT_SUMMARY", str(tmp_path / "pipe"))
    (tmp_path / "script.py").write_text("raise SystemExit(3)")
    command = [sys.executable, "-m", "elastic_agent", "--log-dir", str(tmp_path / "logs"), str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert json.loads(os.read(reader, 65536))["cause"]["exit_code"] == 3
    os.close(reader)
    assert done.returncode == 1
    assert (tmp_path / "pipe").is_fifo()


def test_success_leaves_no_summary(tmp_path: Path) -> None:
    """A job that succeeded has no cause."""
    (tmp_path / "script.py").write_text("pass")
    command = [sys.executable, "-m", "elastic_agent", "--log-dir", str(tmp_path / "logs"), str(tmp_path / "script.py")]
    env = {**os.environ, "ELASTIC_AGENT_SUMMARY": str(tmp_path / "summary.json")}
    assert subprocess.run(command, env=env, timeout=RUN_S, check=False).returncode == 0
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("named", [True, False], ids=["--log-dir", "temporary"])
def test_the_summary_is_not_in_the_log_directory_and_a_line_names_it(tmp_path: Path, named: bool) -> None:
    """The log directory has what torchrun's has; the summary is in a temporary one of this user's."""
    (tmp_path / "script.py").write_text("raise SystemExit(3)")
    (tmp_path / "tmp").mkdir()
    flags = ["--log-dir", str(tmp_path / "logs"), "--redirects=3"] if named else ["--redirects=3"]
    command = [sys.executable, "-m", "elastic_agent", *flags, str(tmp_path / "script.py")]
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_S, check=False)
    (line,) = (line for line in done.stderr.splitlines() if "the summary for programs is " in line)
    path = Path(line.rpartition(" is ")[2])
    assert written(path)["cause"]["exit_code"] == 3
    assert path.parent.parent == tmp_path / "tmp"
    assert path.parent.stat().st_mode & 0o077 == 0
    logs = tmp_path / "logs" if named else path.parent
    (job,) = (each for each in logs.iterdir() if each.is_dir())
    assert [each.name for each in job.iterdir()] == ["attempt_0"]


@pytest.mark.parametrize("kind", ["slow death", "exit 0", "node lost", "gloo barrier"])
def test_the_cause_is_the_worker_at_fault(kind: str) -> None:
    """A few of `make causes`: peers fail too, some sooner than the worker at fault, and every clock is wrong."""
    answer = elastic_agent_jobs.answer(Case.draw(kind, 0))
    assert (answer.right, answer.certain, answer.charged) == (True, True, True), answer.text


def test_a_skewed_clock_is_wrong_in_every_function() -> None:
    """The campaign's clocks: every function of Python for the time of day is 5 s ahead, the monotonic clock is not."""
    script = (
        "import time, datetime as d; steady = time.monotonic(); now = d.datetime.now\n"
        "print(time.time(), time.time_ns() / 1e9, time.clock_gettime(time.CLOCK_REALTIME), now().timestamp())\n"
        "print(now(d.timezone.utc).timestamp(), time.mktime(time.localtime()))\n"
        "print(time.mktime(time.strptime(time.strftime('%c'))), steady)"
    )
    env = Case.draw("exception", 0).environment(Path(), 0) | {"TEST_SKEW_S": "5"}
    before_s, steady_s = time.time(), time.monotonic()
    command = [sys.executable, "-c", script]
    printed = subprocess.check_output(command, env={**os.environ, **env}, text=True, timeout=RUN_S)
    *times, monotonic = map(float, printed.split())
    assert len(times) == 7
    # Those that count whole seconds may lag by one.
    assert all(4.0 <= moment - before_s <= 5.0 + time.time() - before_s for moment in times)
    assert steady_s <= monotonic <= time.monotonic()


def test_a_worker_that_is_stopped_as_it_starts_is_no_cause(tmp_path: Path) -> None:
    """One of eight fails at once: the agent stops the others before it has read that they began."""
    script = tmp_path / "train.sh"
    script.write_text("test $RANK = 0 && exit 3; exec sleep 60\n")
    flags = ["--standalone", "--nproc-per-node", "8", "--no-python"]
    argv = [sys.executable, "-m", "elastic_agent", *flags, "sh", str(script)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert ended.returncode == 1
    assert "which its agent did not send" not in ended.stderr
    assert "cause     : rank 0 " in ended.stderr
