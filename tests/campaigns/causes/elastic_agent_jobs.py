"""A case under elastic-agent: agents as processes on c10d, and the cause that each of them names."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.harness import Cluster, ProcessNode

from .plan import DEPARTED, Answer, Case

BOUND_S, START_BOUND_S = 120.0, 90.0
WATCH_S = 0.02


def answer(case: Case, *, kept: bool = True) -> Answer:
    """The agents' verdict; every node must have the same. `kept`: stderr of workers goes to files."""
    # A socket's path may have 107 characters, so it lives in the temporary directory.
    with tempfile.TemporaryDirectory(prefix="causes-") as name:
        folder, mesh = Path(name), Path(name) / "mesh"
        mesh.mkdir()
        join_s = 6 if case.kind in DEPARTED else 60
        # A host that imports torch on a busy machine may listen later than the others would wait to gather, and agents
        # that get no processor for most of a lease lose their workers.
        conf = {"beat": 0.4, "lease": 5, "join_timeout": join_s, "read_timeout": 60}
        cluster = Cluster(
            "c10d", folder, nnodes=len(case.shape), max_restarts=0, redirects=2 if kept else 0, grace_s=2,
            conf=conf, worker=case.worker,
        )  # fmt: skip
        try:
            for node in case.starts:
                env = case.environment(mesh, node)
                cluster.start(str(node), nproc=case.shape[node], node_rank=node, env=env)
            nodes = [cluster.nodes[str(node)] for node in range(len(case.shape))]
            if case.leaver >= 0:
                leaver = nodes.pop(case.leaver)
                wait_running(mesh, sum(case.shape), lambda: [each.text() for each in nodes if each.ended])
                leaver.vanish() if case.kind == "node lost" else leaver.terminate()
            try:
                codes = [each.wait(BOUND_S) for each in nodes]
            except AssertionError as error:
                return Answer(False, False, str(error))
            summaries = [_summary(folder, each) for each in nodes]
            names = {node: cluster.nodes[str(node)].known_as for node in range(len(case.shape))}
        finally:
            cluster.close()
    return _judge(case, codes, summaries, names)


def wait_running(mesh: Path, workers: int, ended: Callable[[], list[str]] = list) -> None:
    """Wait until that many workers have exchanged data a few times. `ended`: what launchers printed that have ended."""
    until = time.monotonic() + START_BOUND_S
    while len(list(mesh.glob("runs.*"))) < workers:
        if time.monotonic() > until or ended():
            texts = "\n".join(ended())
            raise AssertionError(f"not all of the {workers} workers ran within {START_BOUND_S:g} s; ended: {texts}")
        time.sleep(WATCH_S)


def _summary(folder: Path, node: ProcessNode) -> dict[str, Any]:
    """This node's summary, with what it printed about the failure."""
    summary: dict[str, Any] = json.loads((folder / f"summary-{node.name}.json").read_text())
    # From the block on: the lines before it differ between nodes.
    block, found, rest = node.text().partition("=" * 20)
    return {**summary, "printed": found + rest if found else block.splitlines()[-1]}


def _agreed(summaries: list[dict[str, Any]]) -> bool:
    """Whether all nodes name the same. A node that had finished keeps exit status 0 and prints a last line instead of
    the block."""
    failed = [{**each, "node": ""} for each in summaries if each["exit_code"]]
    own = dict.fromkeys(("node", "exit_code", "because", "printed"))
    return all(each == failed[0] for each in failed) and all(
        {**each, **own} == {**summaries[0], **own} for each in summaries
    )


def _judge(case: Case, codes: list[int], summaries: list[dict[str, Any]], names: dict[int, str]) -> Answer:
    summaries.sort(key=lambda each: each["exit_code"] == 0)
    first = summaries[0]
    agree = _agreed(summaries)
    text = first["because"] if agree else f"the nodes disagree: {summaries}"
    if case.kind in DEPARTED:
        missed = f"{names[case.leaver]} {DEPARTED[case.kind]}" in first["because"]
        right = agree and missed and first["cause"] is None and first["ended_by"] == "departure"
        return Answer(right, first["cause"] is None or first["judged"] == "cause", text, first["charged"] == "")
    cause = first["cause"] or {}
    root = re.search(r"rank +: (\d+)", first["printed"].rpartition("Root Cause (first observed failure):")[2])
    last = re.search(r"worker failed: rank (\d+) ", first["because"])
    named = {cause.get("rank"), *(int(each[1]) if each else None for each in (root, last))}
    charged = first["charged"] != "" and cause.get("node") == names[case.home]
    # A node whose workers all exited 0 has finished and is no longer charged.
    return Answer(agree and named == {case.bad}, first["judged"] == "cause", text, charged or 0 in codes)
