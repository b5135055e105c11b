"""`elasticctl` beside real agents: what it finds, prints, asks for, and how it exits."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.harness import Cluster
from support.outside.asking import Asking
from support.procfs import slowed

pytestmark = pytest.mark.slow
SHOWN_S = 5.0
"""On a host that has nothing else to do it is less than a second."""
ECHOING = str(Path(__file__).parents[2] / "support" / "workers" / "echoing.py")


class Desk:
    """A cluster whose agents can be asked, and the program."""

    def __init__(self, folder: Path) -> None:
        self.asking = Asking()
        self.folder = folder
        self.cluster = Cluster("c10d", folder, env=self.asking.env, conf={"last_call_quiet": 0.2})

    def ctl(self, *words: str, status: int = 0) -> str:
        """What it prints on stdout, or on stderr where another status than 0 is wanted."""
        done = subprocess.run(self.argv(*words), env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, (done.stdout, done.stderr)
        return done.stderr if status else done.stdout

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "elastic_agent.control.ctl", *words]

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **self.asking.env, "COLUMNS": "200"}

    def close(self) -> None:
        self.cluster.close()
        self.asking.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def test_one_job_is_found_shown_and_told(desk: Desk) -> None:
    """status, top, events and explain of two nodes on this host, for people and as JSON; a failure and its restart."""
    first = desk.cluster.start("first", nnodes="2", nproc=2)
    second = desk.cluster.start("second", nnodes="2", nproc=2)
    world = desk.cluster.desk.wait_world(4)
    text = desk.ctl("status")
    assert "contract  running" in text
    assert "2 of 2 nodes  4 workers" in text
    assert f"from  {first.known_as}, the coordinator" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(os.uname().nodename)]
    assert {(row[0], row[1], "==" in row) for row in rows} == {
        (first.known_as, "working", True),
        (second.known_as, "working", True),
    }
    found = json.loads(desk.ctl("status", "--json"))
    assert found["job"]["runId"] == "contract"
    assert {one["name"] for one in found["workers"]} == {first.known_as, second.known_as}
    assert json.loads(desk.ctl("status", "-o", "json")).keys() == found.keys()
    top = desk.ctl("top").splitlines()
    assert [line.split()[0] for line in top[1:]] == ["0", "1", "2", "3"]
    assert sorted(line.split()[2] for line in top[1:]) == sorted(str(worker.pid) for worker in world)

    world[3].order("raise boom")
    desk.cluster.desk.wait_world(4, after=1)
    lines = desk.ctl("events").splitlines()
    assert any("exit code 1" in line for line in lines)
    last = json.loads(desk.ctl("events", "--since", "-1", "--json"))
    assert desk.ctl("events", "--since", str(last["number"])).splitlines()[0].split()[0] == str(last["number"])
    story = desk.ctl("explain")
    assert "round 1  began" in story
    assert "ended by failure: " in story
    charged = desk.cluster.nodes[world[3].node]  # whichever came second
    assert f"{charged.known_as} is charged a restart" in story
    assert "round 2  began" in story
    assert [each["number"] for each in json.loads(desk.ctl("explain", "--json"))["rounds"]] == [1, 2]


def test_a_live_screen_shows_a_restart_within_a_second(desk: Desk) -> None:
    """status -w: drawn anew whenever something happens, by the event's own time; it ends with the agent, and
    that is no error."""
    node = desk.cluster.start("one", nnodes="1")
    [worker] = desk.cluster.desk.wait_world(1)
    argv = desk.argv("status", "-w")
    with subprocess.Popen(argv, env=desk.env, stdout=subprocess.PIPE, text=True) as live:
        assert live.stdout is not None
        drawn = iter(live.stdout.readline, "")
        assert any(line.startswith("why   round 1") for line in drawn)
        worker.order("raise boom")
        assert any(line.startswith("last  round 1 ended by failure") for line in drawn)
        shown_s = time.time()
        events = desk.asking.stream(desk.asking.path(node.process.pid), "Events")
        over_s = next(each["timeS"] for each in events if each.get("ended", {}).get("round") == 1)
        assert shown_s - over_s < slowed(SHOWN_S)
        [again] = desk.cluster.desk.wait_world(1, after=1)
        assert any(line.startswith("why   round 2") for line in drawn)
        again.order("exit 0")
        for _ in drawn:
            pass
    assert live.returncode == 0


def test_a_story_is_told_from_the_file_of_a_job_that_has_ended(desk: Desk) -> None:
    """Offline: without any agent, and with a last line that was cut off."""
    path = desk.folder / "events.jsonl"
    node = desk.cluster.start("one", nnodes="1", env={**desk.asking.env, "ELASTIC_AGENT_EVENTS": str(path)})
    [worker] = desk.cluster.desk.wait_world(1)
    worker.order("raise boom")
    desk.cluster.desk.wait_world(1, after=1)
    desk.cluster.finish()
    assert node.wait() == 0
    with path.open("a") as file:
        file.write('{"what": "ev')
    story = desk.ctl("explain", str(path))
    assert "2 rounds in " in story
    assert "1 restart charged" in story
    assert "the job succeeded" in story
    assert f"{node.known_as}: exit 0: " in story
    path.write_text("no event\n")
    assert "line 1 is no event of an agent" in desk.ctl("explain", str(path), status=2)


def test_logs_of_one_rank_and_of_all(desk: Desk) -> None:
    """With the rank in front where there are several, the last lines, and followed to the end."""
    pipe = desk.folder / "pipe"
    os.mkfifo(pipe)
    node = desk.cluster.start("one", nnodes="1", worker=ECHOING, args=(str(pipe),), redirects="3")
    path = desk.asking.path(node.process.pid)
    desk.asking.wait(path, "Status", "phase", "working")
    follower = subprocess.Popen(desk.argv("logs", "0", "-f"), env=desk.env, stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    with follower:
        assert follower.stdout.readline() == "begun\n"
        pipe.write_text("one\ntwo\nthree\n")
        assert [follower.stdout.readline() for _ in range(3)] == ["one\n", "two\n", "three\n"]
        assert desk.ctl("logs", "0", "-n", "2") == "two\nthree\n"
        assert desk.ctl("logs", "all").splitlines()[-1] == "[0] three"
        assert json.loads(desk.ctl("logs", "0", "--json").splitlines()[-1])["rank"] == 0
        assert "there is no rank 7: the job has one worker, rank 0" in desk.ctl("logs", "7", status=3)
        pipe.write_text("end\n")
        assert node.wait() == 0
        assert follower.stdout.read() == ""
    assert follower.returncode == 0


def test_drain_and_stop_ask_the_node_that_is_named(desk: Desk) -> None:
    """Which must be named where several run here, and be here."""
    first = desk.cluster.start("first", nnodes="1:2")
    second = desk.cluster.start("second", nnodes="1:2")
    desk.cluster.desk.wait_world(2)
    assert "2 nodes of the job run here" in desk.ctl("drain", status=5)
    assert "is not on this host" in desk.ctl("drain", "node9", status=3)
    assert "was asked to leave" in desk.ctl("drain", str(second.process.pid), "-m", "its disk")
    assert second.wait() == 75
    assert ": its disk" in second.last_line()
    desk.cluster.desk.wait_world(1, after=1)
    desk.ctl("stop", "--node", first.known_as)
    assert first.wait() == 143
    assert "no agent runs here" in desk.ctl("status", status=3)


def test_stop_ends_a_job_whose_workers_do_not_use_the_library(desk: Desk) -> None:
    """As the kill switch does: SIGTERM, the grace, and 83 on every node."""
    nodes = [desk.cluster.start(name, nnodes="2", grace_s=5) for name in ("first", "second")]
    desk.cluster.desk.wait_world(2)
    assert "every agent ends with 83" in desk.ctl("stop", "-m", "wrong data")
    assert [node.wait() for node in nodes] == [83, 83]
    assert all("wrong data" in node.last_line() for node in nodes)


def test_several_jobs_are_told_apart(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> None:
    desk.cluster.start("one", nnodes="1")
    other = Cluster("c10d", tmp_path_factory.mktemp("other"), env=desk.asking.env)
    other.run_id = "other"
    try:
        other.start("two", nnodes="1")
        desk.cluster.desk.wait_world(1)
        other.desk.wait_world(1)
        assert "agents of 2 jobs run here: contract, other; choose by --job" in desk.ctl("status", status=5)
        assert desk.ctl("--job", "other", "status").startswith("other  running")
        assert "no agent here runs job 'third'" in desk.ctl("--job", "third", "status", status=3)
    finally:
        other.close()


def test_an_agent_that_is_frozen_is_told_in_time_and_its_socket_is_left(desk: Desk) -> None:
    """Status 4 after 3 s. The socket of one that is dead, which nobody removed, is removed."""
    node = desk.cluster.start("one", nnodes="1")
    desk.cluster.desk.wait_world(1)
    path = desk.asking.path(node.process.pid)
    node.terminate(signal.SIGSTOP)
    assert "the agent may be frozen" in desk.ctl("status", status=4)
    node.terminate(signal.SIGCONT)
    assert os.path.exists(path)
    left, young, old, empty = (
        Path(desk.asking.folder, "run", name)
        for name in ("999999999-00000000", "1-00000000", "1-00000001", "999999998-00000000")
    )
    empty.mkdir(0o700)
    for folder in (left, young, old):  # the last two: of containers, whose first process is 1 as this host's is
        folder.mkdir(0o700)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(folder / "control.sock"))
    os.utime(old / "control.sock", (0.0, time.time() - 3600.0))
    desk.ctl("--address", path, "status")
    desk.ctl("status")
    assert [each.exists() for each in (left, young, old, empty)] == [False, True, False, False]


def test_wrong_commands_are_2_and_completion_is_there(desk: Desk) -> None:
    desk.ctl("no-such-command", status=2)
    desk.ctl("logs", "x", status=2)
    desk.ctl("stop", "--requeue", "--node", "n", status=2)
    assert "_elasticctl_completion" in desk.ctl("completion", "bash")
    env = {**desk.env, "_ELASTICCTL_COMPLETE": "bash_complete", "COMP_WORDS": "elasticctl ex", "COMP_CWORD": "1"}
    done = subprocess.run(desk.argv(), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "plain,explain\n"


def test_nothing_heavy_is_imported_to_answer(desk: Desk) -> None:
    """The floors above, protobuf, and asyncio stay out: the answer takes under 0.1 s on an idle host."""
    argv = [sys.executable, "-X", "importtime", "-m", "elastic_agent.control.ctl", "status"]
    done = subprocess.run(argv, env=desk.env, capture_output=True, text=True, timeout=60, check=False)
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "elastic_agent.control.ctl.find" in names
    heavy = (
        "google.protobuf",
        "asyncio",
        "elastic_agent.agent",
        "elastic_agent.launcher",
        "http.client",
        "ssl",
        "torch",
    )
    assert not {name for name in names if name.startswith(heavy)}
