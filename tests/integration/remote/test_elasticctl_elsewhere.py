"""`elasticctl` and what is not on this host, or not there at all: nodes of other hosts, a store that is away, GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from campaigns.control import large_job
from elastic_agent.control.ctl.cli import elasticctl
from support.harness import Cluster, ProcessNode
from support.outside.asking import Asking
from support.outside.remote import Door
from support.outside.stepping import Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
NVML = """\
class NVMLError(Exception): pass
class _Of:
    def __init__(self, **fields): vars(self).update(fields)
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUtilizationRates(device): return _Of(gpu=[97, 12][device])
def nvmlDeviceGetComputeRunningProcesses(device):
    import glob, os
    pids = map(int, os.environ["TEST_GPU_PIDS"].split(","))
    return [_Of(pid=pid, usedGpuMemory=(device + 1) << 30) for pid in pids]
"""
"""A stand-in for pynvml: two devices, on which each of some processes has 1 and 2 GiB."""


class Hosts:
    """Two nodes of one job, whose sockets are in different places, as those of two hosts are."""

    def __init__(self, folder: Path) -> None:
        self.here, self.there = Asking(), Asking()
        self.door = Door(folder / "door")
        self.addresses = [self.door.address() for _ in range(2)]
        self.cluster = Cluster("c10d", folder, nnodes="2", conf={"last_call_quiet": 0.2, "lease": 60})
        self.first, self.second = (
            self.cluster.start(name, env=asking.env, flags=self.door.flags(address))
            for name, asking, address in zip(("first", "second"), (self.here, self.there), self.addresses, strict=True)
        )
        self.cluster.desk.wait_world(2, bound_s=150)

    def ctl(self, *words: str, status: int = 0, asking: Asking | None = None, token: str = "write") -> str:
        """What it prints on stdout, or on stderr where another status than 0 is wanted."""
        tokens = {"ELASTICCTL_TOKEN_FILE": str(Path(self.door.token_file).with_name(token))} if token else {}
        env = {**os.environ, **(asking or self.here).env, **self.door.env, **tokens, "COLUMNS": "200"}
        return ctl(*words, env=env, status=status)

    def close(self) -> None:
        self.cluster.close()
        self.here.close()
        self.there.close()


def ctl(*words: str, env: dict[str, str], status: int = 0) -> str:
    argv = [sys.executable, "-m", "elastic_agent.control.ctl", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stderr if status else done.stdout


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.close()


def test_a_node_of_another_host_is_found_by_its_name(hosts: Hosts) -> None:
    """Its agent's address is in the job's records: from any node to any other, for what is asked and what is done."""
    name = hosts.second.known_as
    for asking in (hosts.here, hosts.there):
        nodes = json.loads(hosts.ctl("status", "--json", asking=asking))["job"]["nodes"]
        assert {each["name"]: each["control"] for each in nodes} == dict(
            zip((hosts.first.known_as, name), hosts.addresses, strict=True)
        )
    assert f"from  {name} (its own state is current" in hosts.ctl("--node", name, "status")
    assert hosts.ctl("--node", name, "events", "--since", "-1").count("\n") == 1
    assert [each["name"] for each in json.loads(hosts.ctl("--node", name, "top", "--json"))] == [name]
    assert "was asked to leave" in hosts.ctl("drain", name, "-m", "its disk")
    assert hosts.second.wait() == 75
    assert "drained by token oncall" in hosts.second.last_line()


def test_logs_and_stacks_of_a_rank_are_fetched_from_the_host_that_runs_it(hosts: Hosts) -> None:
    ranks = {
        each["rank"]: answer["name"]
        for node in (hosts.first, hosts.second)
        for answer in json.loads(hosts.ctl("--node", node.known_as, "top", "--json"))
        for each in answer["workers"]
    }
    assert sorted(ranks) == [0, 1]
    there = next(rank for rank, name in ranks.items() if name == hosts.second.known_as)
    assert hosts.ctl("stacks", str(there)).startswith(f"rank {there}: in ")
    hosts.ctl("logs", str(there))
    everywhere = json.loads(hosts.ctl("stacks", "--json"))["groups"]
    assert sorted(rank for group in everywhere for rank in group["ranks"]) == [0, 1]
    assert [each["name"] for each in json.loads(hosts.ctl("--node", hosts.first.known_as, "top", "--json"))] == [
        hosts.first.known_as
    ]
    assert {each["name"] for each in json.loads(hosts.ctl("top", "--json"))} == set(ranks.values())
    hosts.ctl("logs", "all")
    assert "there is no rank 7: the job has ranks 0 to 1" in hosts.ctl("logs", "7", status=3)


def test_an_agent_is_asked_at_an_address_with_a_token_and_says_why_it_refuses(hosts: Hosts) -> None:
    """Exit statuses: 1 where it refuses, 4 where nobody is there; a stream ends with the agent."""
    there = ("--address", hosts.addresses[1])
    assert hosts.second.known_as in hosts.ctl(*there, "status")
    assert "Drain needs one for `write`" in hosts.ctl(*there, "drain", status=1, token="read")
    assert "the token is missing or not in --control-tokens" in hosts.ctl(*there, "status", status=1, token="")
    nobody = hosts.door.address()
    assert nobody in hosts.ctl("--address", nobody, "status", status=4)
    env = {**os.environ, **hosts.door.env, "ELASTICCTL_TOKEN_FILE": hosts.door.token_file}
    argv = [sys.executable, "-m", "elastic_agent.control.ctl", *there, "events", "-f", "--json"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["number"] == 1
        hosts.cluster.finish()
        assert [hosts.first.wait(), hosts.second.wait()] == [0, 0]
        last = following.stdout.read().splitlines()[-1]
    assert (json.loads(last)["what"], following.returncode) == ("concluded", 0)


def test_status_works_while_the_store_is_away_and_says_whose_word_it_shows_and_how_old_it_is(hosts: Hosts) -> None:
    """The host of the store stands still; the other node goes on, answers for itself, and shows what was announced."""
    before = json.loads(hosts.ctl("status", "--json", asking=hosts.there))["job"]
    assert before["storeTrouble"] == ""
    assert isinstance(hosts.first, ProcessNode)
    hosts.first.process.send_signal(signal.SIGSTOP)
    hosts.second.wait_text("does not answer")
    text = hosts.ctl("status", asking=hosts.there)
    assert "store does not answer: " in text
    assert "next  workers go on while the store is away" in text
    job = json.loads(hosts.ctl("status", "--json", asking=hosts.there))["job"]
    assert job["source"] == "announcement"
    assert job["announcedAgeS"] > before["announcedAgeS"]
    assert f"from  {hosts.second.known_as} (its own state is current; other nodes as announced " in text
    assert {each["name"]: each["state"] for each in job["nodes"]} == {
        hosts.first.known_as: "unknown",
        hosts.second.known_as: "working",
    }
    events = map(json.loads, hosts.ctl("events", "--json", asking=hosts.there).splitlines())
    [away] = [each for each in events if each["happened"] == "StoreWentAway"]
    assert (away["phase"], away["cause"], away["node"]) == ("working", "", hosts.second.known_as)


def test_checkpoints_are_listed_and_verified_and_the_screen_shows_the_last_one_and_the_deadline(tmp_path: Path) -> None:
    """A training that saves each 50 steps, with an end; then one byte of a checkpoint is changed."""
    asking = Asking()
    training = Training(tmp_path, env={**asking.env, "ELASTIC_AGENT_EXACT_RESUME": str(tmp_path / "checkpoints")})
    env = {**os.environ, **asking.env, "COLUMNS": "200"}
    try:
        ends = ("--deadline", str(time.time() + 7200), "--exact-resume", str(training.checkpoints))
        training.start(a=ends, b=ends)
        training.wait_steps(120)
        text = ctl("status", env=env)
        saved = next(line for line in text.splitlines() if line.startswith("saved"))
        assert saved.startswith("saved step ")
        assert saved.endswith(" ago")
        assert "ends  in 1 h 59 min" in text or "ends  in 2 h" in text
        ctl("stop", env=env)
        assert [training.cluster.nodes[name].wait(90) for name in ("a", "b")] == [83, 83]
    finally:
        training.cluster.close()
        asking.close()
    directory = str(training.checkpoints)
    listed = json.loads(ctl("checkpoints", directory, "--json", env=env))
    assert [each["step"] for each in listed] == sorted((each["step"] for each in listed), reverse=True)
    assert not any(each["problem"] for each in listed)
    assert ctl("checkpoints", directory, env=env).splitlines()[0].startswith(listed[0]["name"])
    assert json.loads(ctl("data", "verify", directory, "--json", env=env))["proved"]
    assert f"{listed[0]['name']}: whole" in ctl("data", "verify", directory, env=env)
    part = max(Path(directory, listed[0]["name"]).iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    done = subprocess.run([sys.executable, "-m", "elastic_agent.control.ctl", "data", "verify", directory],
                          env=env, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 1
    assert f"{listed[0]['name']}: DAMAGED" in done.stdout


def test_top_shows_the_gpus_of_each_worker_and_says_where_they_cannot_be_read(tmp_path: Path) -> None:
    """By NVML, of which there is a stand-in here."""
    asking = Asking()
    cluster = Cluster("c10d", tmp_path, env=asking.env)
    try:
        node = cluster.start("one", nnodes="1")
        cluster.desk.wait_world(1, bound_s=150)
        env = {**os.environ, **asking.env, "COLUMNS": "200"}
        argv = [sys.executable, "-m", "elastic_agent.control.ctl", "top"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
        assert "GPUs are not shown: nvidia-ml-py is not installed" in done.stderr
        assert "gpuBytes" not in ctl("top", "--json", env=env)
        (tmp_path / "pynvml.py").write_text(NVML)
        pid = next(iter(asking.ask(asking.path(node.process.pid), "Status")["workerPids"].values()))
        env |= {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", "TEST_GPU_PIDS": f"1,{pid}"}
        (worker,) = json.loads(ctl("top", "--json", env=env))[0]["workers"]
        assert (worker["gpuBytes"], worker["gpuPercent"]) == (3 << 30, 97)
        head, row = ctl("top", env=env).splitlines()
        assert row[head.index("GPU %") :].split()[:3] == ["97", "3,072", "MiB"]
        assert row[head.index("MEMORY") :].split()[1] == "MiB"
    finally:
        cluster.close()
        asking.close()


def test_every_command_prints_json_and_completes_in_every_shell() -> None:
    """But for `completion` itself, whose output is for a shell, and `report`, whose output is a page."""
    commands = {**elasticctl.commands}
    for name, group in list(commands.items()):
        if isinstance(group, click.Group):
            commands |= {f"{name} {each}": command for each, command in group.commands.items()}
            del commands[name]
    without = [name for name, command in commands.items() if not any("--json" in each.opts for each in command.params)]
    assert sorted(without) == ["completion", "report"]
    for shell in ("bash", "zsh", "fish"):
        assert "_ELASTICCTL_COMPLETE" in ctl("completion", shell, env={**os.environ})


def processor_s(argv: list[str], env: dict[str, str]) -> float:
    pid = os.posix_spawn(
        sys.executable, [sys.executable, *argv], env,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )  # fmt: skip
    _, status, used = os.wait4(pid, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime


def test_an_answer_costs_little_more_than_python_and_click_alone(tmp_path: Path) -> None:
    """The best of 10 of each, in turns, as the host may have other work. On an idle one all is less than 0.1 s."""
    asking = Asking()
    cluster = Cluster("c10d", tmp_path, env=asking.env)
    try:
        cluster.start("one", nnodes="1", nproc=2)
        cluster.desk.wait_world(2, bound_s=150)
        env = {**os.environ, **asking.env}
        alone, taken = [], []
        for _ in range(10):
            alone.append(processor_s(["-c", "import click"], env))
            taken.append(processor_s(["-m", "elastic_agent.control.ctl", "status"], env))
        assert min(taken) < 3 * min(alone), (alone, taken)
    finally:
        cluster.close()
        asking.close()


def test_the_screen_of_512_nodes_costs_elasticctl_little_more_than_that_of_one() -> None:
    """A stand-in answers. Processor time, the best of some in turns: of 512 nodes 3 ms more were seen."""
    asking = Asking()
    folder = Path(asking.folder)
    taken: dict[int, list[float]] = {1: [], 512: []}
    try:
        for _ in range(5):
            for count, measured in taken.items():
                with large_job.stand_in(count, folder):
                    measured.append(large_job.asked(folder)[1])
    finally:
        asking.close()
    assert min(taken[512]) < min(taken[1]) + 0.03, taken
