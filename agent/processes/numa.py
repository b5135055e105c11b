"""Which CPUs are near a worker's GPU: the four bindings of torch 2.13 (`torch.numa.binding`).

torch asks CUDA where each GPU is; here the driver's library is asked (NVML, `nvmlDeviceGetPciInfo`), so that the
agent needs neither torch nor a context on a GPU. GPUs are numbered as workers see them: in the order of their PCI
addresses, and as CUDA_VISIBLE_DEVICES selects. The files below /sys are described in the kernel's documentation
(admin-guide/cputopology, ABI/testing/sysfs-devices-node).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..errors import UsageError

NVML = "libnvidia-ml.so.1"


class _Pci(ctypes.Structure):
    """`nvmlPciInfo_t` of nvml.h."""

    _fields_ = [
        ("old_bus_id", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


def gpus(env: Mapping[str, str]) -> list[str]:
    """PCI addresses (`0000:dc:00.0`) of the GPUs that a worker with the environment `env` sees, by their number there.

    Raises UsageError if this host has none, or names in CUDA_VISIBLE_DEVICES are none of its GPUs."""
    found = _nvidia_gpus()
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(found.values())
    addresses = list(found.values())
    chosen: list[str] = []
    for entry in filter(None, map(str.strip, listed.split(","))):
        if entry.isdecimal() and int(entry) < len(addresses):
            chosen.append(addresses[int(entry)])
            continue
        match = [address for uuid, address in found.items() if uuid.startswith(entry)]
        if len(match) != 1:
            raise UsageError(f"--numa-binding: CUDA_VISIBLE_DEVICES names {entry!r}, which is no GPU of this host")
        chosen += match
    return chosen


def cpus_of(mode: str, addresses: Sequence[str], local_rank: int, root: str = "/") -> set[int]:
    """The CPUs for the worker of GPU number `local_rank`, of those that this process may use. `root`: for tests.

    Raises UsageError if there is no such GPU or no CPU is left, OSError where /sys lacks a file."""
    if local_rank >= len(addresses):
        raise UsageError(
            f"--numa-binding needs a GPU for each worker, but local rank {local_rank} has none of {len(addresses)}; "
            "leave it out, or start fewer workers"
        )
    host = _Host(root)
    nodes = [host.node_of(address) for address in addresses]
    node = nodes[local_rank]
    if mode == "socket":
        socket = host.socket_of(min(_needed(host.cpus_of_node(node), node)))
        found = {cpu for each in host.nodes() for cpu in host.cpus_of_node(each) if host.socket_of(cpu) == socket}
        return _needed(found, node)
    near = _needed(host.cpus_of_node(node), node)
    place = [gpu for gpu, where in enumerate(nodes) if where == node].index(local_rank)
    if mode == "exclusive":
        return _share(_grouped(near, host.core_of), place, nodes.count(node), node)
    if mode == "core-complex":
        complexes = sorted(_grouped(near, host.cache_of).items(), key=lambda item: (-len(item[1]), item[0]))
        return complexes[place % len(complexes)][1]
    return near


def check(mode: str, env: Mapping[str, str], workers: int) -> None:
    """Raises UsageError where one of so many workers cannot be bound on this host: each start of them would fail."""
    addresses = gpus(env)
    try:
        for local_rank in range(workers):
            cpus_of(mode, addresses, local_rank)
    except OSError as error:
        raise UsageError(f"--numa-binding: {error.filename}: {error.strerror}; leave it out") from None


def ranges(cpus: Iterable[int]) -> str:
    """`0-3,8`, as numactl and the kernel write it."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def numbers(text: str) -> set[int]:
    """The numbers in `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, map(str.strip, text.split(","))):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _share(cores: dict[int, set[int]], place: int, sharers: int, node: int) -> set[int]:
    """The CPUs of one of `sharers` parts of the cores, as equal as can be; the first parts may have one core more."""
    each, more = divmod(len(cores), sharers)
    if each < 1:
        raise UsageError(
            f"--numa-binding exclusive: NUMA node {node} has {len(cores)} free cores for {sharers} GPUs; use node"
        )
    start = place * each + min(place, more)
    mine = sorted(cores)[start : start + each + (place < more)]
    return {cpu for core in mine for cpu in cores[core]}


def _grouped(cpus: Iterable[int], group_of: Callable[[int], int]) -> dict[int, set[int]]:
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(group_of(cpu), set()).add(cpu)
    return groups


def _needed(cpus: set[int], node: int) -> set[int]:
    if not cpus:
        raise UsageError(f"--numa-binding: this process may use no CPU of NUMA node {node}; see taskset -p")
    return cpus


class _Host:
    """What /sys says about CPUs, caches and PCI devices."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._allowed = os.sched_getaffinity(0)

    def node_of(self, address: str) -> int:
        """The NUMA node of a PCI device. A host with only one node may say -1."""
        return max(0, int(self._read(f"sys/bus/pci/devices/{address}/numa_node")))

    def nodes(self) -> list[int]:
        return sorted(numbers(self._read("sys/devices/system/node/possible")))

    def cpus_of_node(self, node: int) -> set[int]:
        """The CPUs of a NUMA node that this process may use."""
        return numbers(self._read(f"sys/devices/system/node/node{node}/cpulist")) & self._allowed

    def socket_of(self, cpu: int) -> int:
        return int(self._read(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"))

    def core_of(self, cpu: int) -> int:
        """A physical core, named by its first CPU."""
        return min(numbers(self._read(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")))

    def cache_of(self, cpu: int) -> int:
        """The CPUs that share the last cache, named by the first of them."""
        folder = f"sys/devices/system/cpu/cpu{cpu}/cache"
        levels: dict[int, str] = {}
        for name in os.listdir(os.path.join(self._root, folder)):
            if name.startswith("index") and self._read(f"{folder}/{name}/type") in ("Unified", "Data"):
                levels[int(self._read(f"{folder}/{name}/level"))] = name
        return min(numbers(self._read(f"{folder}/{levels[max(levels)]}/shared_cpu_list")))

    def _read(self, path: str) -> str:
        with open(os.path.join(self._root, path), encoding="ascii") as file:
            return file.read().strip()


def _nvidia_gpus() -> dict[str, str]:
    """PCI addresses by UUID, in their order."""
    try:
        nvml = ctypes.CDLL(NVML)
    except OSError:
        raise UsageError(
            f"--numa-binding finds GPUs through NVIDIA's {NVML}, which this host does not have; leave it out"
        ) from None
    if code := nvml.nvmlInit_v2():
        raise UsageError(f"--numa-binding: NVIDIA's driver does not answer (nvmlInit: error {code}); see nvidia-smi")
    try:
        found: list[tuple[str, str]] = []
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            device, pci, uuid = ctypes.c_void_p(), _Pci(), ctypes.create_string_buffer(96)
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
                continue  # a GPU of the host that this container may not use
            nvml.nvmlDeviceGetPciInfo_v3(device, ctypes.byref(pci))
            nvml.nvmlDeviceGetUUID(device, uuid, len(uuid))
            found.append((f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0", uuid.value.decode()))
    finally:
        nvml.nvmlShutdown()
    return {uuid: address for address, uuid in sorted(found)}
