"""What a Kubernetes API server would say of a manifest, as far as it can be said without one: the published schemas,
strictly, and the rules that schemas do not hold.

The models are those of kubeflow-trainer-api, which has Kubernetes' own and JobSet's too. They drop keys that they do
not know in silence, so what they make of a manifest is compared with it. Their enumerations are plain strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from kubeflow_trainer_api import models  # type: ignore[import-untyped]

Manifest = dict[str, Any]
MODELS = {
    ("v1", "Service"): "IoK8sApiCoreV1Service",
    ("batch/v1", "Job"): "IoK8sApiBatchV1Job",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "JobsetV1alpha2JobSet",
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): "TrainerV1alpha1ClusterTrainingRuntime",
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "TrainerV1alpha1TrainJob",
}
PYTORCHJOB = ("kubeflow.org/v1", "PyTorchJob")
"""Of it there is no model: its own keys are below, from kubeflow/training-operator pkg/apis/kubeflow.org/v1 (1.9)."""
PYTORCH_KEYS = {
    "spec": {"elasticPolicy", "runPolicy", "pytorchReplicaSpecs", "nprocPerNode"},
    "spec.elasticPolicy": {"minReplicas", "maxReplicas", "rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf",
                           "standalone", "nProcPerNode", "maxRestarts", "metrics"},
    "spec.runPolicy": {"cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit",
                       "schedulingPolicy", "suspend", "managedBy"},
    "spec.pytorchReplicaSpecs": {"Master", "Worker"},
    "spec.pytorchReplicaSpecs.Worker": {"replicas", "template", "restartPolicy"},
    "spec.pytorchReplicaSpecs.Master": {"replicas", "template", "restartPolicy"},
}  # fmt: skip
ENUMS = {
    "podFailurePolicy.rules[].action": {"FailJob", "FailIndex", "Ignore", "Count"},
    "onExitCodes.operator": {"In", "NotIn"},
    "onPodConditions[].status": {"True", "False", "Unknown"},
    "podReplacementPolicy": {"TerminatingOrFailed", "Failed"},
    "completionMode": {"NonIndexed", "Indexed"},
    "template.spec.restartPolicy": {"Always", "OnFailure", "Never"},
    "pytorchReplicaSpecs.Worker.restartPolicy": {"Always", "OnFailure", "Never", "ExitCode"},
    "runPolicy.cleanPodPolicy": {"All", "Running", "None"},
    "elasticPolicy.rdzvBackend": {"c10d", "etcd", "etcd-v2"},
    "whenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
    "emptyDir.medium": {"", "Memory", "HugePages"},
    "failurePolicy.rules[].action": {
        "FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob",
        "RestartJobAndIgnoreMaxRestarts", "FailJob", "FailIndex", "Ignore", "Count",
    },
    "onJobFailureReasons[]": {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded",
                              "PodFailurePolicy"},
    "successPolicy.operator": {"All", "Any"},
}  # fmt: skip
"""By the end of a path. Sources: descriptions in Kubernetes' and JobSet's schemas."""
CODES_MAX = 255


def documents(path: Path) -> list[Manifest]:
    """The manifests of a file."""
    return [found for found in yaml.safe_load_all(path.read_text()) if found is not None]


def problems(manifest: Manifest) -> list[str]:
    """What an API server would refuse; none: nothing."""
    return [*_schema(manifest), *_enums(manifest), *(each for job in jobs(manifest) for each in _job(job))]


def containers(manifest: Manifest) -> Iterator[Mapping[str, Any]]:
    """All containers in a manifest."""
    for path, value in _walk(manifest):
        if path.endswith(".containers"):
            yield from value


def jobs(manifest: Manifest) -> Iterator[Mapping[str, Any]]:
    """The specifications of Jobs in it."""
    if manifest["kind"] == "Job":
        yield manifest["spec"]
    for path, value in _walk(manifest):
        if path.endswith(".replicatedJobs"):
            yield from (each["template"]["spec"] for each in value)


def _schema(manifest: Manifest) -> Iterator[str]:
    kind = (manifest["apiVersion"], manifest["kind"])
    if kind == PYTORCHJOB:
        yield from _pytorch(manifest)
        return
    model = getattr(models, MODELS[kind])
    try:
        made = model.from_dict(manifest)
    except ValueError as error:  # pydantic's, with the path and the type
        yield str(error)
        return
    yield from _lost(manifest, made.to_dict(), manifest["kind"])


def _pytorch(manifest: Manifest) -> Iterator[str]:
    for where, known in PYTORCH_KEYS.items():
        found: Any = manifest
        for part in where.split("."):
            found = found.get(part, {})
        yield from (f"{where}.{key} is no field" for key in set(found) - known)
    for name, replica in manifest["spec"]["pytorchReplicaSpecs"].items():
        made = models.IoK8sApiCoreV1PodTemplateSpec.from_dict(replica["template"])
        assert made is not None
        yield from _lost(replica["template"], made.to_dict(), name)
        if not any(each["name"] == "pytorch" for each in replica["template"]["spec"]["containers"]):
            yield f"{name}: the operator sets its variables in the container `pytorch` only"


def _lost(given: object, made: object, where: str) -> Iterator[str]:
    """What the model did not take over."""
    if isinstance(given, dict):
        taken = made if isinstance(made, dict) else {}
        for key, value in given.items():
            if key not in taken:
                yield f"{where}.{key} is no field"
            else:
                yield from _lost(value, taken[key], f"{where}.{key}")
    elif isinstance(given, list):
        for number, value in enumerate(given):
            yield from _lost(value, made[number] if isinstance(made, list) else None, f"{where}[{number}]")
    elif str(given) != str(made):
        yield f"{where} is {given!r}, read as {made!r}"


def _enums(manifest: Manifest) -> Iterator[str]:
    for path, value in _walk(manifest):
        plain = re.sub(r"\[\d+\]", "[]", path)
        for ending, known in ENUMS.items():
            if (plain == ending or plain.endswith(f".{ending}")) and value not in known:
                yield f"{path} is {value!r}; there are {sorted(known)}"


def _job(job: Mapping[str, Any]) -> Iterator[str]:
    """Rules between fields, from the descriptions of a Job's fields."""
    policy = job.get("podFailurePolicy")
    template = job["template"]["spec"]
    if policy and template.get("restartPolicy") != "Never":
        yield "podFailurePolicy needs restartPolicy Never"
    if policy and job.get("podReplacementPolicy", "Failed") != "Failed":
        yield "podFailurePolicy needs podReplacementPolicy Failed"
    if "backoffLimitPerIndex" in job and (
        job.get("completionMode") != "Indexed" or template.get("restartPolicy") != "Never"
    ):
        yield "backoffLimitPerIndex needs completionMode Indexed and restartPolicy Never"
    if "successPolicy" in job and job.get("completionMode") != "Indexed":
        yield "successPolicy needs completionMode Indexed"
    names = {each["name"] for each in template["containers"]}
    for rule in policy["rules"] if policy else ():
        yield from _rule(rule, names)


def _rule(rule: Mapping[str, Any], names: set[str]) -> Iterator[str]:
    codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
    if bool(codes) == bool(conditions):
        yield "a rule has either onExitCodes or onPodConditions"
    if codes:
        values = codes["values"]
        if values != sorted(set(values)):
            yield f"onExitCodes.values {values} are not in order, or not unique"
        if codes["operator"] == "In" and 0 in values:
            yield "onExitCodes.values has 0 with In"
        if not 1 <= len(values) <= CODES_MAX:
            yield f"onExitCodes.values has {len(values)} values; 1 to {CODES_MAX}"
        if codes.get("containerName", next(iter(names))) not in names:
            yield f"onExitCodes.containerName {codes['containerName']} is no container"


def _walk(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _walk(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _walk(each, f"{path}[{number}]")
