"""The manifests of deploy/kubernetes: what an API server would take, and what the agent promises them."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_agent.agent.errors import UsageError
from elastic_agent.launcher.cli import parse
from elastic_agent.launcher.preemption.end_of_time import TERMINATION_GRACE
from project.test_deploy import table
from support.outside.kubernetes import Manifest, containers, documents, jobs, problems
from support.source_tree import ROOT

FILES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
EXAMPLE = ROOT / "examples" / "trainer" / "digits.yaml"
PAGE = ROOT / "docs" / "trainer.md"
JOB = documents(ROOT / "deploy" / "kubernetes" / "job.yaml")[1]
EVICTED = 143


def manifests() -> Iterator[tuple[Path, Manifest]]:
    for path in FILES:
        for manifest in documents(path):
            yield path, manifest


ALL = [pytest.param(manifest, id=f"{path.stem}-{manifest['kind']}") for path, manifest in manifests()]


def of_the_trainer() -> Iterator[Any]:
    """The manifests of its example and of its page."""
    shown = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    for name, text in (("example", EXAMPLE.read_text()), ("page", shown[1])):
        for manifest in yaml.safe_load_all(text):
            yield pytest.param(manifest, id=f"{name}-of-trainer-{manifest['kind']}")


@pytest.mark.parametrize("manifest", [*ALL, *of_the_trainer()])
def test_an_api_server_would_take_it(manifest: Manifest) -> None:
    """Each field is one of the published schema, with a value of its type; each enumeration and each rule between
    fields holds."""
    assert problems(manifest) == []


def changed(where: str, value: object) -> Manifest:
    """The Job with one field set, or removed where the value is None."""
    made = copy.deepcopy(JOB)
    at: Any = made
    *path, last = where.split(".")
    for part in path:
        at = at[int(part)] if part.isdigit() else at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return made


@pytest.mark.parametrize(
    ("where", "value", "problem"),
    [
        ("spec.completion", 4, "Job.spec.completion is no field"),
        ("spec.completions", "four", "completions"),
        ("spec.template.spec.containers.0.livenessprobe", {}, "livenessprobe is no field"),
        ("spec.podFailurePolicy.rules.2.action", "FailJobb", "is 'FailJobb'; there are"),
        ("spec.podFailurePolicy.rules.1.onExitCodes.values", [143, 75], "are not in order"),
        ("spec.podFailurePolicy.rules.1.onExitCodes.values", [0, 75], "has 0 with In"),
        ("spec.podFailurePolicy.rules.1.onPodConditions", [{"type": "X", "status": "True"}], "has either"),
        ("spec.podFailurePolicy.rules.1.onExitCodes.containerName", "worker", "is no container"),
        ("spec.template.spec.restartPolicy", "OnFailure", "needs restartPolicy Never"),
        ("spec.podReplacementPolicy", "TerminatingOrFailed", "needs podReplacementPolicy Failed"),
        ("spec.completionMode", "NonIndexed", "successPolicy needs completionMode Indexed"),
        ("spec.backoffLimitPerIndex", None, ""),
    ],
)  # fmt: skip
def test_a_mistake_in_a_manifest_is_found(where: str, value: object, problem: str) -> None:
    """So that the test above can fail."""
    if not problem:
        broken = changed("spec.completionMode", "NonIndexed")
        broken["spec"]["backoffLimitPerIndex"] = 1
        assert any("backoffLimitPerIndex needs" in each for each in problems(broken))
        return
    assert any(problem in each for each in problems(changed(where, value)))


def test_pods_are_failed_counted_and_ignored_by_the_table_of_exit_statuses() -> None:
    """`stop` ends the Job; `again`, and what an eviction brings about, costs nothing; `retry` counts."""
    verdicts = table()
    stops = sorted(status for status, verdict in verdicts.items() if verdict == "stop" and status)
    free = sorted([EVICTED, *(status for status, verdict in verdicts.items() if verdict == "again")])
    found = [job for _, manifest in manifests() for job in jobs(manifest)]
    assert len(found) == 3
    for job in found:
        rules = job["podFailurePolicy"]["rules"]
        by_action = {
            rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule
        }  # fmt: skip
        assert by_action == {"Ignore": free, "FailJob": stops}
        assert rules[0] == {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }


@pytest.mark.parametrize(
    "manifest", [each for each in ALL if "Service" not in str(each.id) and "TrainJob" not in str(each.id)]
)
def test_probes_and_graces_fit_the_agent(manifest: Manifest) -> None:
    """Liveness asks only whether the loop turns, readiness whether workers run; the agent knows the pod's grace."""
    (container,) = containers(manifest)
    env = {each["name"]: each.get("value", "from the pod") for each in container["env"]}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    if "publishNotReadyAddresses': True" in str(manifest) or manifest == JOB:  # else a name needs pods that are ready
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    else:
        assert "readinessProbe" not in container
    port = next(each["containerPort"] for each in container["ports"] if each["name"] == "metrics")
    assert env["PET_METRICS_ADDRESS"] == f"0.0.0.0:{port}"
    assert f"terminationGracePeriodSeconds': {env[TERMINATION_GRACE]}" in str(manifest)


@pytest.mark.parametrize(
    "manifest", [each for each in ALL if "Service" not in str(each.id) and "TrainJob" not in str(each.id)]
)
def test_the_agent_takes_each_variable_of_a_pod(manifest: Manifest, tmp_path: Path) -> None:
    """With the values that the controllers add, as their sources have them; each is read as its flag would be."""
    script = tmp_path / "train.py"
    script.write_text("")
    (container,) = containers(manifest)
    own = {each["name"]: each.get("value", "0b1e-uid") for each in container["env"]}
    added = {
        "PyTorchJob": {
            "PET_RDZV_ENDPOINT": "train-worker-0:29400", "PET_RDZV_BACKEND": "c10d", "PET_NNODES": "2:4",
            "PET_MAX_RESTARTS": "10",
        },
        "ClusterTrainingRuntime": {
            "PET_NNODES": "4", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "3",
            "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29500",
        },
    }.get(manifest["kind"], {})  # fmt: skip
    assert container["command"][0] == "elastic-agent"
    config = parse([str(script)], {**own, **added}).config
    assert config.metrics_address == "0.0.0.0:9400"
    assert config.max_restarts == 10
    if manifest["kind"] == "ClusterTrainingRuntime":
        assert (config.min_nodes, config.max_nodes, config.node_rank) == (4, 4, 3)
        assert (config.nproc_per_node, config.master_addr, config.master_port) == (8, "train-node-0-0.train", 29500)
    else:
        assert (config.min_nodes, config.max_nodes, config.rdzv_backend) == (2, 4, "c10d")
        assert config.rdzv_endpoint.endswith(":29400")


def test_an_empty_pet_standalone_is_on(tmp_path: Path) -> None:
    """As the training operator sets it with `standalone`; other switches are 0 or 1."""
    script = tmp_path / "train.py"
    script.write_text("")
    assert parse([str(script)], {"PET_STANDALONE": ""}).config.standalone
    assert not parse([str(script)], {"PET_STANDALONE": "0"}).config.standalone
    with pytest.raises(UsageError, match="PET_VIRTUAL_LOCAL_RANK is ''"):
        parse([str(script)], {"PET_VIRTUAL_LOCAL_RANK": ""})


def test_each_file_is_on_the_page() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert [path.name for path in FILES if path.name not in page] == []
