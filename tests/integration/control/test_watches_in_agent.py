"""`--watch` and `--notify`: an agent that watches its own job, on jobs that really hang, leak and are slow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from elastic_agent.control.actions.stacks import py_spy
from support.etcd_servers import VERSIONS, serving
from support.network import free_port
from support.outside.mounts import dead_mount, tmpfs
from support.outside.web_server import web_server
from support.procfs import kill_and_read, slowed
from support.workers import watched

SCRIPT = watched.__file__
BOUND_S = 90.0
WHO = "hang: (?:ranks 0-1|rank [01])"
"""Whose hang is told: a look may come between the moments in which the one and the other pass the limit."""


@dataclass
class Ended:
    """A job that has ended."""

    status: int
    said: str
    folder: Path
    told: list[dict[str, str]]

    @property
    def summary(self) -> str:
        """What was told to people."""
        return "\n".join(each["text"] for each in self.told)


def agent(folder: Path, flags: list[str], command: list[str], table: str = "") -> subprocess.Popen[str]:
    """An agent with this table of watches, in the folder."""
    if table:
        (folder / "w.toml").write_text(f'gather = "0 s"\npause = "0 s"\n{table}')
        flags = ["--watch", "w.toml", *flags]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "elastic_agent", *flags, *command],
        cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def end(process: subprocess.Popen[str], bound_s: float = BOUND_S) -> str:
    try:
        return process.communicate(timeout=bound_s)[0]
    finally:
        process.kill()


def job(folder: Path, table: str, flags: list[str], command: list[str]) -> Ended:
    """A job of this node alone, told to a web server."""
    with web_server() as server:
        notify = ["--notify", f"http://127.0.0.1:{server.port}/hook"]
        process = agent(folder, ["--standalone", *notify, *flags], command, table)
        said = end(process)
        return Ended(process.returncode, said, folder, server.bodies)


# -- hangs ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A job of two ranks, one of which stands still once, with a restart to spare."""
    table = '[[watch]]\nwhat = "hang"\nevery = "0.1 s"\nleast = "1 s"\ndo = ["restart", "notify"]\n'
    flags = ["--nproc-per-node", "2", "--max-restarts", "1", "--shutdown-timeout", "5"]
    return job(tmp_path_factory.mktemp("hung"), table, flags, [SCRIPT, "checkpoints", "hang"])


def test_a_hang_is_learned_from_steps_and_found(hung: Ended) -> None:
    """No limit was given: it follows from the job's own steps."""
    found = re.search(rf"{WHO}: no progress for ([\d.]+) s in step \(limit ([\d.]+) s", hung.said)
    assert found, hung.said
    # Seconds, though steps of a busy host are longer; without their lengths it would be minutes.
    assert float(found[2]) <= float(found[1]) < slowed(15.0)


def test_a_hang_is_restarted_and_charged(hung: Ended) -> None:
    """The failure is that of the rank that stood still; it costs the restart, and the job ends."""
    assert hung.status == 0, hung.said
    assert "is charged as a failure of rank 1" in hung.said
    assert "worker failed: rank 1 (local rank 1) on" in hung.said


def test_stacks_of_all_ranks_are_saved_with_the_odd_one_first(hung: Ended) -> None:
    """Taken before anything was killed."""
    if not py_spy():
        pytest.skip("py-spy is not installed")
    file, *others = (hung.folder / "stacks").iterdir()
    assert not others
    text = file.read_text()
    assert text.startswith("rank 1 (pid ")
    assert "in stands_still (" in text.splitlines()[0]
    assert "all_reduce (torch/distributed/distributed_c10d.py:" in text
    assert ", with native frames" in text


def test_the_failures_message_sums_up_the_stacks(hung: Ended) -> None:
    """Who stands where, the odd rank first."""
    [line] = [line for line in hung.said.splitlines() if "worker failed: rank 1" in line]
    assert re.search(r"rank 1 \(pid \d+\) in stands_still \(.*; rank 0 \(pid \d+\) in all_reduce \(", line), line


def test_torchs_flight_recorder_names_the_rank_that_did_not_come(hung: Ended) -> None:
    """gloo's is on by default."""
    said = rf"rank 1 did not enter collective {watched.HUNG_STEP + 1} \(gloo:all_reduce\) of group default_pg"
    assert re.search(said, hung.said), hung.said


def test_people_are_told_of_the_hang_and_of_the_end_of_the_round(hung: Ended) -> None:
    """Cause, what was done, and what to do next."""
    assert re.search(rf"{WHO}: no progress", hung.summary)
    assert "the round ends, and is charged as a failure of rank 1" in hung.summary
    assert "next: look at the stacks of all ranks" in hung.summary
    assert re.search(r"round 1 ended: .*rank 1", hung.summary)
    assert re.search(r"the job ended: .*\nnext: nothing$", hung.summary, re.MULTILINE), hung.summary
    for each in hung.told:
        assert each["job"] == hung.told[0]["job"] != ""
        assert each["node"] == os.uname().nodename


def test_a_job_without_the_library_is_watched_by_its_output(tmp_path: Path) -> None:
    """A limit is given; the stacks tell where it stands."""
    code = "import time\nprint('begins', flush=True)\ndef idle(): time.sleep(100)\nidle()\n"
    (tmp_path / "idle.py").write_text(code)
    table = '[[watch]]\nwhat = "hang"\nthreshold = "3 s"\nevery = "0.1 s"\ndo = ["restart"]\n'
    ended = job(tmp_path, table, ["--nproc-per-node", "2"], ["idle.py"])
    assert ended.status == 1
    assert re.search(r"no progress for \d(\.\d)? s in output", ended.said), ended.said
    assert "rank 0 (pid" in ended.said
    if py_spy():
        assert "in idle (idle.py:3)" in ended.said


@pytest.mark.campaign
def test_a_steady_job_raises_no_alarm(tmp_path: Path) -> None:
    """Warm-up, saves and the end of the script are sections of their own."""
    table = '[[watch]]\nwhat = "hang"\nevery = "0.05 s"\nleast = "1 s"\n'
    ended = job(tmp_path, table, ["--nproc-per-node", "2"], [SCRIPT, "checkpoints", "steady", "150"])
    assert ended.status == 0, ended.said
    assert "no progress" not in ended.said


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_1000_real_steps_of_20_fold_jitter_raise_no_alarm_and_the_stop_behind_them_is_found(tmp_path: Path) -> None:
    """Within three times the 99th percentile of the steps, as the worker measured them; where a busy host held one up,
    within 1.25 times the longest. An alarm before would have ended the job."""
    table = '[[watch]]\nwhat = "hang"\nevery = "0.05 s"\nleast = "0.1 s"\ndo = ["restart"]\n'
    flags = ["--nproc-per-node", "2", "--shutdown-timeout", "5"]
    with_agent = agent(tmp_path, ["--standalone", *flags], [SCRIPT, "checkpoints", "jitter", "1000"], table)
    said = end(with_agent, 240.0)
    assert with_agent.returncode == 1, said
    measured = re.search(r"rank 1 stands still behind 1000 steps ([\d.]+) ([\d.]+)", said)
    found = re.search(r"hang: ranks? [-\d]+: no progress for ([\d.]+) s in step", said)
    assert measured, said
    assert found, said
    p99_s, longest_s = float(measured[1]), float(measured[2])
    assert 2 * p99_s < float(found[1]) <= max(3 * p99_s, 1.25 * longest_s + 0.1)


# -- memory --------------------------------------------------------------------------------------------------------


def test_a_worker_that_leaks_is_restarted_at_a_step_boundary_without_a_charge(tmp_path: Path) -> None:
    """No restart is allowed, and none is needed: the round ends as planned, at a saved step, and the job goes on."""
    table = '[[watch]]\nwhat = "worker-memory"\nthreshold = "700 MB used"\nevery = "0.1 s"\n'
    table += 'do = ["restart", "notify"]\n'
    ended = job(tmp_path, table, ["--nproc-per-node", "2", "--max-restarts", "0"], [SCRIPT, "checkpoints", "leak"])
    assert ended.status == 0, ended.said
    assert re.search(r"worker-memory: rank 1 \(pid \d+\) uses \d+ MB \(limit 700 MB used\)", ended.said)
    assert "be started again; no node is charged" in ended.summary
    assert "round 2 begins" in ended.said
    assert "worker failed" not in ended.said


# -- slow ranks ----------------------------------------------------------------------------------------------------


@pytest.mark.campaign
def test_a_slow_rank_is_named_with_its_share_of_the_lost_time(tmp_path: Path) -> None:
    """It computes 60 ms a step, the other 10: most of what that one waits is its doing."""
    table = '[[watch]]\nwhat = "slow"\nthreshold = "5 % lost"\nevery = "1 s"\n'
    ended = job(tmp_path, table, ["--nproc-per-node", "2"], [SCRIPT, "checkpoints", "slow", "100"])
    assert ended.status == 0, ended.said
    found = re.search(r"slow: rank 1 is the slowest: .* of its own in a step of .*; this costs (\d+) % of", ended.said)
    assert found, ended.said
    assert int(found[1]) >= 5


# -- file systems ----------------------------------------------------------------------------------------------------


DISK_WATCH = '[[watch]]\nwhat = "disk"\nthreshold = "80 % used"\nevery = "0.2 s"\n'
STEP = re.compile(r"rank 0 ended at step (\d+)")


def test_the_file_systems_that_the_job_uses_are_found_and_a_full_one_has_the_job_save(tmp_path: Path) -> None:
    """No path is given: logs and checkpoints each have a disk of their own, and the fuller one is named. That of the
    logs is at first; a command of the watch's own makes room there. No switch is needed for the checkpoint."""
    with tmpfs(tmp_path / "logs", "size=64m") as logs, tmpfs(tmp_path / "saves", "size=200m") as saves:
        (logs / "big").write_bytes(bytes(60 << 20))
        (saves / "big").write_bytes(bytes(165 << 20))
        table = f'{DISK_WATCH}again = "0.2 s"\ndo = ["notify", "exec:rm -f {logs}/big", "save"]\n'
        ended = job(tmp_path, table, ["--log-dir", str(logs), "--tee", "3"], [SCRIPT, str(saves), "steady", "100"])
        steps = sorted(int(path.parent.name.removeprefix("step-")) for path in saves.glob("step-*/manifest.json"))
    assert ended.status == 0, ended.said
    assert re.search(rf"disk: {logs}/\S+: 9\d\.\d % used", ended.said), ended.said
    assert re.search(rf"disk: (still )?{saves}: 8\d\.\d % used", ended.said), ended.said
    assert steps[-1] == 100
    assert 0 < steps[0] < 100, f"no checkpoint but the last: {ended.said}"


def test_a_full_disk_may_stop_the_job_at_a_step_with_a_checkpoint_and_83(tmp_path: Path) -> None:
    """Without a kill switch, as if its file had been made."""
    with tmpfs(tmp_path / "saves", "size=200m") as saves:
        (saves / "big").write_bytes(bytes(165 << 20))
        table = f'{DISK_WATCH}do = ["stop"]\n'
        ended = job(tmp_path, table, ["--tee", "3"], [SCRIPT, str(saves), "steady", "3000"])
        saved = [path.parent.name for path in saves.glob("step-*/manifest.json")]
    assert ended.status == 83, ended.said
    last = STEP.search(ended.said)
    assert last, ended.said
    assert saved == [f"step-{int(last[1]):06d}"]
    assert int(last[1]) < 3000


# -- one node for the whole job, and what never happens --------------------------------------------------------------


def test_one_node_watches_what_concerns_the_whole_job(tmp_path: Path) -> None:
    """Two agents with one table: the watch of the job's quota runs on one, that of each node on both."""
    endpoint = f"127.0.0.1:{free_port()}"
    table = ""
    for what, more in (("quota", 'command = "echo 95%"'), ("memory", "")):
        table += f'[[watch]]\nwhat = "{what}"\n{more}\nthreshold = "0.001 % used"\nevery = "0.1 s"\n'
        table += f"do = [\"exec:{sys.executable} -c \\\"open('{tmp_path}/{what}', 'a').write('x')\\\"\"]\n"
    (tmp_path / "wait.py").write_text(
        f"import os, time\nend = time.monotonic() + 60\n"
        "def written(path): return os.path.exists(path) and os.path.getsize(path)\n"
        f"while not (written('{tmp_path}/quota') and written('{tmp_path}/memory') == 2\n"
        "           ) and time.monotonic() < end: time.sleep(0.05)\n"
    )
    flags = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    processes = [agent(tmp_path, flags, ["wait.py"], table) for _ in range(2)]
    said = [end(process) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert (tmp_path / "memory").read_text() == "xx"
    assert (tmp_path / "quota").read_text() == "x"


def test_another_node_watches_the_job_once_the_one_that_did_is_killed(tmp_path: Path) -> None:
    """On etcd: SIGKILL of the coordinating agent, and the watch of the job's quota begins anew on the other node."""
    (tmp_path / "wait.py").write_text(
        f"import os, time\nend = time.monotonic() + 60\n"
        f"while not os.path.exists('{tmp_path}/stop') and time.monotonic() < end: time.sleep(0.05)\n"
    )
    with serving(VERSIONS[0], tmp_path) as servers:
        flags = ["--nnodes", "1:2", "--rdzv-backend", "etcd", "--rdzv-endpoint", str(servers.members[0].endpoint)]
        flags += ["--rdzv-conf", "last_call_quiet=0.2"]
        agents = {}
        for name in ("a", "b"):
            table = ""
            for what, more in (("quota", 'command = "echo 95%"'), ("memory", 'for = "1 s"')):
                do = f"exec:{sys.executable} -c \\\"open('{tmp_path}/{what}-by-{name}', 'w')\\\""
                table += f'[[watch]]\nwhat = "{what}"\n{more}\nthreshold = "0.001 % used"\ndo = ["{do}"]\n'
                table += 'every = "0.1 s"\n'
            (tmp_path / name).mkdir()
            agents[name] = agent(tmp_path / name, flags, [str(tmp_path / "wait.py")], table)
        try:
            first = wait_one_of([tmp_path / "quota-by-a", tmp_path / "quota-by-b"]).name[-1]
            other = {"a": "b", "b": "a"}[first]
            wait_one_of([tmp_path / f"memory-by-{other}"])
            assert not (tmp_path / f"quota-by-{other}").exists(), "both watch the job"
            agents[first].kill()
            wait_one_of([tmp_path / f"quota-by-{other}"])
            (tmp_path / "stop").touch()
            said = end(agents[other])
            assert agents[other].returncode == 0, said
        finally:
            (tmp_path / "stop").touch()
            for each in agents.values():
                kill_and_read(each)


def wait_one_of(paths: list[Path]) -> Path:
    """The first of these files that is there."""
    deadline = time.monotonic() + BOUND_S
    while not (found := [path for path in paths if path.exists()]):
        assert time.monotonic() < deadline, paths
        time.sleep(0.05)
    return found[0]


def test_a_dead_mount_and_a_server_that_hangs_delay_no_job(tmp_path: Path) -> None:
    """The agent's loop waits for neither; at the end undelivered messages have some seconds."""
    (tmp_path / "quick.py").write_text("import time; time.sleep(1)")
    with dead_mount(tmp_path / "mount") as mount, web_server() as server:
        server.hanging.set()
        table = f'[[watch]]\nwhat = "disk"\npath = "{mount}"\nthreshold = "90 % used"\nevery = "0.2 s"\n'
        table += '[[watch]]\nwhat = "memory"\nthreshold = "0.001 % used"\nevery = "0.2 s"\n'
        begun = time.monotonic()
        flags = ["--standalone", "--notify", f"http://127.0.0.1:{server.port}/hook"]
        process = agent(tmp_path, flags, ["quick.py"], table)
        said = end(process)
        assert process.returncode == 0, said
        assert time.monotonic() - begun < 40
        assert "were not delivered" in said


def test_a_mistake_in_the_table_or_in_a_url_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    """Status 2, and no secret in it."""
    (tmp_path / "w.toml").write_text('[[watch]]\nwhat = "hang"\nthreshold = "soon"\n')
    for flags, said in (
        (["--watch", "w.toml"], "w.toml: watch 1 (hang): threshold = 'soon': give '20 min' or 'learned'"),
        (["--watch", "none.toml"], "none.toml: cannot be read"),
        (["--notify", "ftp://secret"], "notify: a URL that begins 'ftp' is not supported; give one of"),
    ):
        process = agent(tmp_path, ["--standalone", *flags], [SCRIPT])
        text = end(process)
        assert process.returncode == 2
        [line] = text.splitlines()
        assert said in line
        assert "secret" not in line


def test_nothing_is_left_of_the_workers_progress(tmp_path: Path) -> None:
    """The directory that they show it in is the agent's."""
    (tmp_path / "tell.py").write_text("import os; print(os.environ['ELASTIC_AGENT_PROGRESS'])")
    ended = job(tmp_path, '[[watch]]\nwhat = "hang"\n', [], ["tell.py"])
    [path] = re.findall(r"\S*/elastic-agent-\w+$", ended.said, re.MULTILINE)
    assert not Path(path).exists()


def test_nothing_is_left_of_the_workers_progress_when_the_agent_is_killed(tmp_path: Path) -> None:
    """By SIGKILL, which leaves it no time; what outlives it removes the directory, with what workers wrote there."""
    (tmp_path / "tell.py").write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "shown = Path(os.environ['ELASTIC_AGENT_PROGRESS'])\n"
        "(shown / '1-0').write_text('steps')\n"
        "Path('path.new').write_text(str(shown))\n"
        "Path('path.new').rename('path')\n"
        "time.sleep(100)\n"
    )
    process = agent(tmp_path, ["--standalone"], ["tell.py"], '[[watch]]\nwhat = "hang"\n')
    try:
        wait_until((tmp_path / "path").exists)
        path = Path((tmp_path / "path").read_text())
        assert list(path.iterdir())
    finally:
        kill_and_read(process)
    wait_until(lambda: not path.exists())


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_without_the_flags_nothing_of_the_watches_is_there(tmp_path: Path) -> None:
    """Neither a module, but for the control service's first, nor a thread, nor a variable."""
    (tmp_path / "tell.py").write_text(
        "import json, os\nparent = os.getppid()\nprint(json.dumps({'shown': 'ELASTIC_AGENT_PROGRESS' in os.environ}))\n"
    )
    code = (
        "import sys, threading\n"
        "from elastic_agent import LaunchConfig, launch\n"
        "launch(LaunchConfig(), 'tell.py')\n"
        "print([name for name in sys.modules if name.startswith('elastic_agent.control')])\n"
        "print([each.name for each in threading.enumerate() if 'watch' in each.name])\n"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=BOUND_S, check=True)
    lines = ran.stdout.splitlines()
    beside = ["elastic_agent.control", "elastic_agent.control.control_socket", "elastic_agent.control.stream"]
    assert sorted(lines) == sorted([json.dumps({"shown": False}), str(beside), "[]"])
