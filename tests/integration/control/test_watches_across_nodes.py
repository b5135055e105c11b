"""Agents of several nodes that compare their ranks: jobs that really hang, are slow and leak on one of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from support.etcd_servers import VERSIONS, shared_servers
from support.network import free_port
from support.workers import watched

SCRIPT = watched.__file__
BOUND_S = 120.0
HANG = '[[watch]]\nwhat = "hang"\nevery = "0.1 s"\nleast = "2 s"\n'
DEFAULT_PG = "default_pg"


@dataclass
class Node:
    """One agent, in a folder of its own."""

    folder: Path
    name: str
    status: int
    said: str

    @property
    def stacks(self) -> list[Path]:
        """Files of stacks that it has saved."""
        return sorted((self.folder / "stacks").glob("*"))


Agents = list[subprocess.Popen[str]]


@contextmanager
def agents(
    folder: Path,
    number: int,
    flags: list[str],
    command: list[str],
    table: str | Sequence[str],
    environ: Mapping[str, str],
) -> Iterator[Agents]:
    """So many agents of one job, each with this table or its own of several, and the next rank."""
    if not any(flag.startswith("--rdzv-endpoint") for flag in flags):
        flags = ["--rdzv-backend", "c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", *flags]
    begun: Agents = []
    try:
        for node in range(number):
            place = folder / f"{node}"
            place.mkdir()
            (place / "w.toml").write_text(table if isinstance(table, str) else table[node])
            arguments = ["--nnodes", f"{number}", "--node-rank", f"{node}", "--watch", "w.toml", *flags, *command]
            process = subprocess.Popen(
                [sys.executable, "-m", "elastic_agent", *arguments],
                cwd=place, env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            begun.append(process)
        yield begun
    finally:
        for process in begun:
            process.kill()


def job(
    folder: Path,
    number: int,
    flags: list[str],
    command: list[str],
    table: str | Sequence[str],
    environ: Mapping[str, str] = MappingProxyType({}),
) -> list[Node]:
    """Such a job, once it has ended."""
    with agents(folder, number, flags, command, table, environ) as begun:
        said = [process.communicate(timeout=BOUND_S)[0] for process in begun]
        host = os.uname().nodename
        return [
            Node(folder / f"{node}", f"{host}:{process.pid}", process.returncode, said[node])
            for node, process in enumerate(begun)
        ]


# -- hangs ---------------------------------------------------------------------------------------------------------


def store_flags(store: str) -> list[str]:
    if store == "c10d":
        return []
    endpoints = ",".join(map(str, shared_servers(VERSIONS[0]).endpoints))
    return ["--rdzv-backend", "etcd", f"--rdzv-endpoint={endpoints}", "--rdzv-id", f"across-{os.getpid()}"]


@pytest.fixture(scope="module", params=["c10d", "etcd"])
def hung(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Node]:
    """A job of three nodes, on the second of which the only rank stands still once; with a restart to spare."""
    folder = tmp_path_factory.mktemp("hung")
    flags = [*store_flags(request.param), "--max-restarts", "1", "--shutdown-timeout", "5"]
    return job(folder, 3, flags, [SCRIPT, str(folder / "saves"), "hang"], HANG + 'do = ["restart"]\n')


def test_a_hang_on_one_node_is_charged_to_the_rank_there(hung: list[Node]) -> None:
    """Each other node has found the hang as well; their ranks only wait."""
    assert [node.status for node in hung] == [0, 0, 0], "\n".join(node.said for node in hung)
    failed = [re.findall(r"worker failed: (rank \d+)", node.said) for node in hung]
    assert {rank for node in failed for rank in node} == {"rank 1"}, failed
    assert "worker failed: rank 1 (local rank 0)" in hung[1].said


def test_stacks_of_all_nodes_are_in_one_file_with_the_odd_rank_first(hung: list[Node]) -> None:
    """One node has asked all, and has saved what they answered."""
    [file] = [path for node in hung for path in node.stacks]
    text = file.read_text()
    assert re.match(r"rank 1 \(pid \d+\) on \S+: in stands_still \(", text), text[:300]
    for rank in range(3):
        assert re.search(rf"^rank {rank} \(pid \d+\) on \S+$", text, re.MULTILINE), text
    assert "all_reduce (torch/distributed/distributed_c10d.py:" in text


def test_the_failures_message_sums_up_the_stacks_of_all_nodes(hung: list[Node]) -> None:
    """The odd one first, then the others as one group, on every node's console."""
    for node in hung:
        [line] = [line for line in node.said.splitlines() if "rank 1" in line and "failed" in line][:1]
        assert re.search(r"rank 1 \(pid \d+\) on \S+ in stands_still \(", line), node.said
        assert re.search(r"; rank 0 \(pid \d+\) on \S+, rank 2 \(pid \d+\) on \S+ in all_reduce", line), line


def test_the_flight_recorders_of_all_nodes_are_compared(hung: list[Node]) -> None:
    """The rank that did not come is of another node than those that did."""
    said = rf"rank 1 did not enter collective {watched.HUNG_STEP + 1} \(gloo:all_reduce\) of group {DEFAULT_PG}"
    assert any(re.search(said, node.said) for node in hung), hung[0].said


def test_the_agent_of_the_odd_rank_ends_the_round_when_another_node_finds_it(tmp_path: Path) -> None:
    """Its own watch would only notify; the other's restarts, and that one's rank waits for it."""
    flags = ["--max-restarts", "1", "--shutdown-timeout", "5"]
    tables = [HANG + 'do = ["restart"]\n', HANG]
    nodes = job(tmp_path, 2, flags, [SCRIPT, str(tmp_path / "saves"), "hang"], tables)
    assert [node.status for node in nodes] == [0, 0], nodes[0].said
    assert "the node of rank 1 ends the round; otherwise this node does so in 10 s" in nodes[0].said
    assert "worker failed: rank 1 (local rank 0)" in nodes[1].said
    assert "worker failed: rank 0" not in nodes[0].said
    assert nodes[0].stacks
    assert not nodes[1].stacks


@pytest.mark.campaign
def test_a_node_that_does_not_answer_is_named_and_waited_for_no_longer(tmp_path: Path) -> None:
    """It has no watch for hangs. The rank there may be the cause: it has 10 s more before this node ends the round."""
    flags = ["--max-restarts", "1", "--shutdown-timeout", "5"]
    tables = [HANG + 'do = ["restart"]\n', '[[watch]]\nwhat = "memory"\nthreshold = "99 % used"\n']
    nodes = job(tmp_path, 2, flags, [SCRIPT, str(tmp_path / "saves"), "hang"], tables)
    assert [node.status for node in nodes] == [0, 0], nodes[0].said
    assert f"no answer from {nodes[1].name} within 30 s" in nodes[0].said
    assert "every worker that answered waits for a rank that did not" in nodes[0].said
    assert "the node of that rank may end the round; otherwise this node does so in 10 s" in nodes[0].said
    [line] = [line for line in nodes[0].said.splitlines() if "worker failed: rank 0" in line][:1]
    assert f"no answer from {nodes[1].name} within 30 s" in line


def test_a_rank_that_waits_for_a_section_of_another_node_does_not_hang(tmp_path: Path) -> None:
    """Rank 0 evaluates alone, four times as long as a step may last; rank 1 waits for it in its step."""
    nodes = job(tmp_path, 2, [], [SCRIPT, str(tmp_path / "saves"), "evaluate", "60"], HANG)
    assert [node.status for node in nodes] == [0, 0], nodes[0].said
    for node in nodes:
        assert "no progress" not in node.said, node.said


# -- slow ranks ----------------------------------------------------------------------------------------------------


def test_a_slow_rank_is_named_with_its_node_by_one_node_for_all(tmp_path: Path) -> None:
    """Each node has one rank, so none could compare its own. The node that coordinates asks; the other says nothing."""
    table = '[[watch]]\nwhat = "slow"\nthreshold = "5 % lost"\nevery = "1 s"\n'
    nodes = job(tmp_path, 2, [], [SCRIPT, str(tmp_path / "saves"), "slow", "100"], table)
    assert [node.status for node in nodes] == [0, 0], nodes[0].said
    said = [re.search(r"slow: rank 1 on (\S+) is the slowest: .*; this costs (\d+) % of", node.said) for node in nodes]
    [found] = [each for each in said if each]
    assert int(found[2]) >= 5
    assert found[1] == nodes[1].name


# -- memory --------------------------------------------------------------------------------------------------------


def test_a_leak_on_one_node_restarts_the_workers_of_all_at_one_step(tmp_path: Path) -> None:
    """The worst rank decides: its node is the first over the limit, and asks all ranks; no node is charged."""
    table = '[[watch]]\nwhat = "worker-memory"\nthreshold = "700 MB used"\nevery = "0.1 s"\ndo = ["restart"]\n'
    nodes = job(tmp_path, 2, ["--max-restarts", "0"], [SCRIPT, str(tmp_path / "saves"), "leak"], table)
    assert [node.status for node in nodes] == [0, 0], nodes[0].said
    assert "] worker-memory: " not in nodes[0].said
    assert re.search(r"\] worker-memory: rank 1 \(pid \d+\) uses \d+ MB \(limit 700 MB used\)", nodes[1].said)
    for node in nodes:
        assert "round 2 begins" in node.said
        assert "worker failed" not in node.said


# -- clocks --------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_off_is_warned_of_with_its_node(tmp_path: Path) -> None:
    """No reference is given: the nodes are compared with each other. The job goes on."""
    table = '[[watch]]\nwhat = "clock"\nthreshold = "5 s"\nevery = "0.3 s"\n'
    table += f'do = ["notify", "exec:touch {tmp_path}/warned"]\n'
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "if os.environ.get('AHEAD_IN') == os.path.basename(os.getcwd()):\n"
        "    right = time.time\n"
        "    time.time = lambda: right() + 30.0\n"
    )
    (tmp_path / "wait.py").write_text(
        f"import os, time\nend = time.monotonic() + 60\n"
        f"while not os.path.exists('{tmp_path}/warned') and time.monotonic() < end: time.sleep(0.05)\n"
    )
    ahead = {"PYTHONPATH": f"{tmp_path}", "AHEAD_IN": "1"}
    nodes = job(tmp_path, 3, [], [str(tmp_path / "wait.py")], table, ahead)
    assert [node.status for node in nodes] == [0, 0, 0], nodes[0].said
    warned = [
        re.search(r"clock: the clock of (\S+) is (\d+) s ahead of the median of 3 nodes", node.said) for node in nodes
    ]
    [found] = [each for each in warned if each]
    assert found[1] == nodes[1].name
    assert int(found[2]) == pytest.approx(30, abs=3)
