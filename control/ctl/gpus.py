"""What NVML says of the GPUs that workers of this host use: memory by process, and how busy the devices are."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from .call import Message


def add(workers: Sequence[Message]) -> str:
    """Give each worker that has memory on a GPU `gpuBytes`, of all its devices, and `gpuPercent`, of the busiest of
    them. Returns why nothing is known of GPUs, in a few words; empty where something is."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed (elastic-agent[watch] has it)"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"NVML: {error}"
    try:
        used = _used(nvml)
    except nvml.NVMLError as error:
        return f"NVML: {error}"
    finally:
        nvml.nvmlShutdown()
    for answer in workers:
        for worker in answer["workers"]:
            if worker["pid"] in used:
                worker["gpuBytes"], worker["gpuPercent"] = used[worker["pid"]]
    return ""


def _used(nvml: Any) -> dict[int, tuple[int, int]]:  # noqa: ANN401 - an untyped module of another package
    """By process id: bytes, and per cent."""
    found: dict[int, tuple[int, int]] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        busy = int(nvml.nvmlDeviceGetUtilizationRates(device).gpu)
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
            size, most = found.get(process.pid, (0, 0))
            # In some containers NVML does not say how much a process has.
            found[process.pid] = (size + (process.usedGpuMemory or 0), max(most, busy))
    return found
