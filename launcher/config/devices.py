"""How many workers `--nproc-per-node` means on this host: a number, `cpu`, `gpu`, `xpu`, `auto`.

The names mean what they mean to torch 2.13 (`torch.distributed.run.determine_local_world_size`). NVIDIA devices are
counted from the driver's files, so that the usual case does not cost the agent an import of torch (about a second and
200 MB). torch is imported only where its own rules decide (ROCm, Intel XPU, MIG or UUID lists in CUDA_VISIBLE_DEVICES,
the name of an out-of-tree device), and where the files leave a doubt: WSL2 has /dev/dxg in place of them, a container
may show files that it forbids to open, and one may hide the driver's /proc.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module

from ...agent.errors import UsageError
from .values import MAX_NPROC, suggest, whole

_NAMES = ("auto", "cpu", "gpu", "xpu")


def count_local_workers(nproc: int | str | Callable[[], int], env: Mapping[str, str], root: str = "/") -> int:
    """How many workers `nproc` means on this host now; always at least 1.

    `env`: where CUDA_VISIBLE_DEVICES is read. `root`: directory of the device files, for tests. Raises UsageError for a
    number below 1 or above `MAX_NPROC`, an unknown name, or a device that this host does not have.
    """
    if callable(nproc):
        return whole("nproc_per_node()", nproc(), least=1, most=MAX_NPROC)
    text = str(nproc).strip()
    if re.fullmatch(r"[+-]?\d+", text):
        return whole("--nproc-per-node", text, least=1, most=MAX_NPROC)
    if text == "cpu":
        return count_cpus()
    if text == "gpu":
        return _at_least_one("gpu", count_gpus(env, root))
    if text == "xpu":
        return _at_least_one("xpu", _count_with_torch("xpu") if _has_render_node(root) else 0)
    if text == "auto":
        return count_gpus(env, root) or _count_other(root) or count_cpus()
    return _at_least_one(text, _count_named(text))


def counting_rule(nproc: int | str | Callable[[], int]) -> str:
    """How `nproc` counts: "number", or the name of a device. The nodes of a job must have the same rule, but may have
    different numbers."""
    text = str(nproc).strip()
    return "number" if callable(nproc) or re.fullmatch(r"[+-]?\d+", text) else text


def counts_anew(nproc: int | str | Callable[[], int]) -> bool:
    """Whether `nproc` may mean another number before each round."""
    return callable(nproc) or counting_rule(nproc) != "number"


def count_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def count_gpus(env: Mapping[str, str], root: str = "/") -> int:
    """NVIDIA or AMD GPUs that workers with the environment `env` can use; 0 if there are none."""
    present = _nvidia_devices(root)
    if present is None:
        return _count_with_torch("cuda")
    if present:
        listed = env.get("CUDA_VISIBLE_DEVICES")
        if listed is None:
            return present
        visible = _visible(listed, present)
        return _count_with_torch("cuda") if visible is None else visible
    if _has_amd_gpu(root):
        return _count_with_torch("cuda")
    return 0


def _at_least_one(name: str, count: int) -> int:
    if count == 0:
        raise UsageError(
            f"--nproc-per-node is {name!r}, but this host shows no such device (or hides it, as an empty "
            "CUDA_VISIBLE_DEVICES does); give a number, or auto"
        )
    return count


def _nvidia_devices(root: str) -> int | None:
    """Devices /dev/nvidia0, /dev/nvidia1, ...: a container has only its own there; /proc lists the host's. None where
    these files do not tell: see the module's docstring."""
    files = [name for name in _names(os.path.join(root, "dev")) if re.fullmatch(r"nvidia\d+|dxg", name)]
    driver = os.path.isdir(os.path.join(root, "proc/driver/nvidia"))
    # access(2) also asks the container's list of devices (its device cgroup), and opens nothing.
    usable = all(os.access(os.path.join(root, "dev", name), os.R_OK | os.W_OK) for name in files)
    if files and (not driver or not usable or "dxg" in files):
        return None
    return len(files) if driver else 0


def _visible(listed: str, present: int) -> int | None:
    """How many devices CUDA_VISIBLE_DEVICES leaves visible; None if only CUDA can tell (UUIDs, MIG).

    CUDA reads up to the first entry that is no device, and uses no device at all if one is named twice (CUDA C++
    Programming Guide, "CUDA Environment Variables"; torch.cuda follows it).
    """
    visible: list[int] = []
    for entry in map(str.strip, listed.split(",")):
        if entry.startswith(("GPU-", "MIG-")):
            return None
        if not re.fullmatch(r"\d+", entry) or int(entry) >= present:
            break
        if int(entry) in visible:
            return 0
        visible.append(int(entry))
    return len(visible)


def _has_amd_gpu(root: str) -> bool:
    if not os.path.exists(os.path.join(root, "dev/kfd")):
        return False
    nodes = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    # Processors have nodes there too; their gpu_id is 0.
    return any(_read(os.path.join(nodes, node, "gpu_id")) not in ("", "0") for node in _names(nodes))


def _has_render_node(root: str) -> bool:
    return any(name.startswith("renderD") for name in _names(os.path.join(root, "dev/dri")))


def _count_other(root: str) -> int:
    """Intel XPUs and other accelerators, which `auto` prefers to CPUs; without a device node torch is not imported."""
    if not _has_render_node(root):
        return 0
    return _count_with_torch("accelerator", needed=False)


def _count_named(name: str) -> int:
    """Devices of an out-of-tree backend, by the name under which it registered in torch."""
    unknown = UsageError(
        f"--nproc-per-node is {name!r}; give a number, auto, cpu, gpu, xpu or the name of a device in torch"
        + suggest(name.lower(), _NAMES)
    )
    if not name.isidentifier():
        raise unknown
    try:
        torch = import_module("torch")
    except ImportError:
        raise unknown from None
    if name != str(torch._C._get_privateuse1_backend_name()):
        raise unknown
    return _count_with_torch(name)


def _count_with_torch(module: str, *, needed: bool = True) -> int:
    """`torch.<module>.device_count()` if that module is available, else 0. Raises UsageError if torch cannot be
    imported, but returns 0 if it is not `needed`."""
    try:
        torch = import_module("torch")
    except ImportError:
        if not needed:
            return 0
        raise UsageError(
            "--nproc-per-node needs torch to count this host's devices, and torch cannot be imported; give a number"
        ) from None
    devices = getattr(torch, module, None)
    if devices is None or not devices.is_available():
        return 0
    return int(devices.device_count())


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        # A folder that does not exist, or that this user may not read, shows no devices.
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        # A file that does not exist, or that this user may not read, shows no device.
        return ""


def share_cpus(base_env: dict[str, str], nproc: int) -> str:
    """Set OMP_NUM_THREADS to 1 for several workers if it is not set, as torchrun does. Returns the warning about it, or
    an empty string."""
    if nproc == 1 or "OMP_NUM_THREADS" in base_env:
        return ""
    base_env["OMP_NUM_THREADS"] = "1"
    return (
        f"OMP_NUM_THREADS is not set, so each of the {nproc} workers gets OMP_NUM_THREADS=1, because they share "
        f"{count_cpus()} CPUs; set it to choose another number"
    )
