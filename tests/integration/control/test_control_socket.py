"""The control socket of real agents: what it answers, and what it makes them do."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_agent import UsageError
from elastic_agent.control.ctl.asking import call
from elastic_agent.control.ctl.call import CallRefused
from elastic_agent.control.stream import VERSION
from support.desk import worker_of
from support.harness import Cluster, ProcessNode
from support.outside.asking import Asking
from support.source_tree import ROOT

pytestmark = pytest.mark.slow
ECHOING = str(Path(__file__).parents[2] / "support" / "workers" / "echoing.py")


@pytest.fixture
def cluster(asking: Asking, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster("c10d", tmp_path, env=asking.env, nproc=2, conf={"last_call_quiet": 0.2})
    yield made
    made.close()


def socket_of(asking: Asking, node: ProcessNode) -> str:
    return asking.path(node.process.pid)


def test_the_socket_is_this_users_alone_and_gone_with_the_agent(asking: Asking, cluster: Cluster) -> None:
    """0600 in 0700, whatever the umask; nothing is left, also where the agent is killed: its guardian removes it."""
    for name in ("stopped", "killed"):
        node = cluster.start(name, nnodes="1", hosts=True, within=("sh", "-c", 'umask 0; exec "$@"', "sh"))
        path = socket_of(asking, node)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(f"{asking.folder}/run").st_mode) == 0o700
        cluster.desk.wait_world(2)
        if name == "stopped":
            node.terminate()
        else:
            node.vanish()
        node.wait()
        asking.wait_gone(os.path.dirname(path))


def test_a_restart_is_refused_while_nodes_gather(asking: Asking, cluster: Cluster) -> None:
    """The round that they begin would end at its first step."""
    node = cluster.start("first", nnodes="2", hosts=True)
    path = socket_of(asking, node)
    node.wait_text("waiting up to")
    with pytest.raises(CallRefused, match="no round runs now"):
        call(path, "RestartRound")


def test_status_job_and_workers_say_where_the_node_and_the_job_stand(asking: Asking, cluster: Cluster) -> None:
    """The coordinator knows all nodes at first hand, with the age of their last sign; another one says whose word it
    repeats."""
    first = cluster.start("first", nnodes="2")
    second = cluster.start("second", nnodes="2")
    world = cluster.desk.wait_world(4)
    of_first, of_second = socket_of(asking, first), socket_of(asking, second)

    status = asking.wait(of_first, "Status", "phase", "working")
    assert status["pid"] == first.process.pid
    assert status["hosting"]
    assert status["coordinating"]
    assert (status["worldSize"], status["round"], status["runId"]) == (4, 1, "contract")
    assert {int(pid) for pid in status["workerPids"].values()} == {w.pid for w in world if w.node == "first"}

    job = asking.ask(of_first, "Job")
    assert (job["source"], job["phase"], job["worldSize"], job["store"]) == (
        "coordinator", "running", 4, f"c10d {cluster.endpoint}"
    )  # fmt: skip
    assert {node["name"] for node in job["nodes"]} == {first.known_as, second.known_as}
    assert all(0 <= node["heardAgeS"] < 30 for node in job["nodes"])
    assert [node["groupRank"] for node in job["nodes"]] == [0, 1]

    told = asking.ask(of_second, "Job")
    assert told["source"] == "announcement"
    assert told["announcedAgeS"] >= 0
    assert [node["state"] for node in told["nodes"] if node["name"] == first.known_as] == ["unknown"]
    assert [(node["state"], node["restartsLeft"]) for node in told["nodes"] if node.get("own")] == [("working", 3)]
    assert [node.get("restartsLeft") for node in told["nodes"] if not node.get("own")] == [None]

    workers = asking.ask(of_second, "Workers")["workers"]
    mine = sorted((w for w in world if w.node == "second"), key=lambda w: w.rank)
    assert [(each["rank"], each["pid"], each["state"]) for each in workers] == [
        (w.rank, w.pid, "running") for w in mine
    ]
    assert all(each["rssBytes"] > 1e6 and each["ageS"] > 0 for each in workers)
    cluster.finish()
    assert [node.wait() for node in (first, second)] == [0, 0]


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_asks_an_agent_as_the_page_says(asking: Asking, cluster: Cluster) -> None:
    """The lines of docs/operating.md, but for the checkpoint: one answer, a compressed one, a brief one, a stream."""
    node = cluster.start("one", nnodes="1", args=("x" * 5000,))
    cluster.desk.wait_world(2)
    path = socket_of(asking, node)
    lines = re.findall(r"^    \$ (curl [^#\n]*)", (ROOT / "docs" / "operating.md").read_text(), re.MULTILINE)
    lines = [line for line in lines if "--unix-socket $S" in line and "Save" not in line]
    assert len(lines) == 4
    for line in lines:
        words = [path if word == "$S" else word for word in shlex.split(line)]
        with subprocess.Popen([words[0], "--silent", *words[1:]], stdout=subprocess.PIPE, text=True) as curl:
            assert curl.stdout is not None
            found = json.loads(curl.stdout.readline())
            curl.terminate()
        assert found.get("runId", "contract") == "contract"
        assert node.known_as in (found.get("name"), found.get("node"))


def test_events_begin_at_any_point_and_are_followed_to_the_end(asking: Asking, cluster: Cluster) -> None:
    """A failure, its restart and the end of the job arrive, numbered without a gap; the last says how it ended."""
    node = cluster.start("one", nnodes="1", max_restarts=1)
    path = socket_of(asking, node)
    world = cluster.desk.wait_world(2)
    stream = asking.stream(path, "Events", follow=True)
    first = next(stream)
    assert first["number"] == 1
    world[0].order("raise boom")
    cluster.desk.wait_world(2, after=1)

    def numbers(since: int) -> list[int]:
        return [each["number"] for each in asking.stream(path, "Events", since=since)]

    last, parts = 0, [[0]]
    while parts[-1]:  # something has happened meanwhile
        [last] = numbers(-1)
        parts = [numbers(since) for since in (-2, 3, last + 1)]
    assert parts == [[last - 1, last], list(range(3, last + 1)), []]
    cluster.finish()
    assert node.wait() == 0
    found = [first, *stream]
    assert [each["number"] for each in found] == list(range(1, len(found) + 1))
    assert any("exit code 1" in each["failure"] for each in found)
    assert any(each.get("ended", {}).get("kind") == "failure" and each["ended"]["rank"] == 0 for each in found)
    assert (found[-1]["what"], found[-1]["exitCode"]) == ("concluded", 0)
    assert {each["form"] for each in found} == {VERSION}


def test_logs_are_followed_over_rounds(asking: Asking, cluster: Cluster, tmp_path: Path) -> None:
    """What was written before, what is written now, and what the next round's worker writes: each byte once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    node = cluster.start("one", nnodes="1", nproc=1, worker=ECHOING, args=(str(pipe),), redirects="3", max_restarts=1)
    path = socket_of(asking, node)
    asking.wait(path, "Status", "phase", "working")
    stream = asking.stream(path, "Logs", follow=True)
    text = ""

    def until(end: str) -> None:
        nonlocal text
        while not text.endswith(end):
            part = next(stream)
            assert (part["rank"], part["missedBytes"]) == (0, 0)
            if part["stream"] == "stdout":
                assert part["file"].endswith("/0/stdout.log")
                text += part["text"]

    until("begun\n")
    pipe.write_text("one\n\u00fc two\n")
    until("two\n")
    pipe.write_text("fail\n")
    until("begun\n")
    pipe.write_text("three\n")
    until("three\n")
    assert text == "begun\none\n\u00fc two\nbegun\nthree\n"
    tail = list(asking.stream(path, "Logs", ranks=[0], tail_bytes=6))
    assert [part["text"] for part in tail if part["stream"] == "stdout"] == ["three\n"]
    assert list(asking.stream(path, "Logs", ranks=[7])) == []
    pipe.write_text("end\n")
    assert node.wait() == 0
    assert not [part for part in stream if part["stream"] == "stdout"]


def test_stacks_name_where_workers_stand(asking: Asking, cluster: Cluster) -> None:
    """Those with equal stacks together; only those that were asked for."""
    node = cluster.start("one", nnodes="1")
    cluster.desk.wait_world(2)
    path = socket_of(asking, node)
    found = asking.ask(path, "Stacks")
    assert sorted(rank for group in found["groups"] for rank in group["ranks"]) == [0, 1]
    assert all("obedient.py" in group["text"] for group in found["groups"])
    assert [group["ranks"] for group in asking.ask(path, "Stacks", ranks=[1])["groups"]] == [[1]]
    cluster.finish()
    assert node.wait() == 0


def test_drain_makes_the_node_leave_and_stop_stops_it(asking: Asking, cluster: Cluster) -> None:
    """As `NodeAgent.drain` and SIGTERM do; the log says who asked, and why."""
    first = cluster.start("first", nnodes="1:2")
    second = cluster.start("second", nnodes="1:2")
    cluster.desk.wait_world(4)
    asking.ask(socket_of(asking, second), "Drain", reason="its disk is failing\nsoon")
    assert second.wait() == 75
    assert "drained by uid " in second.last_line()
    assert "): its disk is failing soon" in second.last_line()
    cluster.desk.wait_world(2, after=1)
    path = socket_of(asking, first)
    asking.ask(path, "Stop", reason="the rack moves")
    assert first.wait() == 143
    assert "stopped by uid " in first.last_line()
    assert "): the rack moves" in first.last_line()


def test_drain_says_with_what_a_node_ends_that_has_finished(asking: Asking, cluster: Cluster) -> None:
    """Its workers are done, so it loses nothing."""
    cluster.start("first", nnodes="1:2", nproc=1)
    second = cluster.start("second", nnodes="1:2", nproc=1)
    world = cluster.desk.wait_world(2)
    worker_of(world, "second").order("exit 0")
    second.wait_text("all workers of this node exited 0")
    assert "finished, so it ends with 0" in str(asking.ask(socket_of(asking, second), "Drain"))
    assert second.wait() == 0


def test_an_agent_that_nobody_asks_loads_next_to_nothing(asking: Asking, tmp_path: Path) -> None:
    """Neither json nor protobuf, nor what answers; with the first question, not protobuf either."""
    (tmp_path / "job.py").write_text("print('trained')\n")
    program = (
        "import sys, threading; from elastic_agent import LaunchConfig, NodeAgent\n"
        "agent = NodeAgent(LaunchConfig(log_dir='/dev/null'), sys.argv[1])\n"
        "agent.run(); print(*sorted(sys.modules)); agent.job(); print(*sorted(sys.modules))\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path / "job.py")]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **asking.env}
    )
    _, unasked, asked = done.stdout.splitlines()
    ours = [name for name in unasked.split() if name.startswith("elastic_agent.control")]
    assert ours == ["elastic_agent.control", "elastic_agent.control.control_socket", "elastic_agent.control.stream"]
    assert not {"json", "socket", "google.protobuf", "http"} & set(unasked.split())
    assert "json" in asked.split()
    assert "google.protobuf" not in asked.split()


def test_where_there_can_be_no_socket_the_job_runs_all_the_same(
    asking: Asking, cluster: Cluster, tmp_path: Path
) -> None:
    """A directory that others may write to, a path that is too long, and one that is switched off."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for where, said in (
        (str(open_to_all), "is no directory of this user with mode 0700"),
        (str(tmp_path / ("x" * 100)), "is longer than the 107 bytes of a socket's path"),
        ("off", ""),
    ):
        node = cluster.start(f"at {where}", nnodes="1", hosts=True, env={"ELASTIC_AGENT_RUN_DIR": where})
        cluster.desk.wait_world(2)
        cluster.finish()
        assert node.wait() == 0
        assert (said in node.text()) if said else ("elasticctl cannot reach" not in node.text())
    assert not list(open_to_all.iterdir())


def test_the_library_has_the_same_methods(tmp_path: Path) -> None:
    """Same names, same messages, from any thread."""
    from elastic_agent.control.service import messages
    from elastic_agent.control.service.methods import METHODS
    from support.harness import ThreadNode

    cluster = Cluster("memory", tmp_path, nproc=2)
    try:
        node = cluster.start("one", nnodes="1", max_restarts=0)
        assert isinstance(node, ThreadNode)
        cluster.desk.wait_world(2)
        agent = node.agent
        names = [re.sub(r"\B([A-Z])", r"_\1", method).lower() for method in METHODS]
        assert [name for name in names if not callable(getattr(agent, name, None))] == []
        assert agent.status().phase.value == "working"
        job = agent.job()
        assert isinstance(job, messages.Job)
        assert [each.state for each in job.nodes] == ["working"]
        assert [each.rank for each in agent.workers().workers] == [0, 1]
        events: Any = agent.events(follow=True)
        assert next(events).number == 1
        assert sorted(rank for group in agent.stacks().groups for rank in group.ranks) == [0, 1]
        assert {part.rank for part in agent.logs([0])} <= {0}
        assert (agent.goodput().workers, agent.goodput().measured) == (2, False)
        assert agent.set_watch(["memory"]).text.startswith("watched from now on: memory")
        assert agent.set_watch() == messages.Done("nothing is watched from now on")
        assert "with the label 'mine'" in agent.save("because", label="mine").text
        assert "are started again then" in agent.restart_round("because").text
        assert "every agent ends with 83" in agent.stop("the budget is spent", job=True).text
        assert node.wait() == 83
        assert "one has ended already: the job was ended on request" in agent.drain("too late").text
        with pytest.raises(UsageError, match="is ending"):
            agent.stop(requeue=True)
        assert [each.what for each in events][-1] == "concluded"
    finally:
        cluster.close()
