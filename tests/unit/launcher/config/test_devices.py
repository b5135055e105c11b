"""LaunchConfig: how many workers a device name stands for, counted before each round."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from elastic_agent.agent.errors import UsageError
from elastic_agent.launcher.config import devices
from elastic_agent.launcher.config.devices import count_local_workers
from support.rigs.plans import planned


@pytest.fixture
def four_gpus(tmp_path: Path) -> str:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / "dev" / name).touch()
    return str(tmp_path)


@pytest.mark.parametrize(
    ("listed", "count"),
    [(None, 4), ("0,1", 2), ("3", 1), (" 2 , 3 ", 2), ("0,9,1", 1), ("0,-1,1", 1)],
)
def test_gpu_counts_the_devices_that_workers_can_use(four_gpus: str, listed: str | None, count: int) -> None:
    """`gpu` and `auto` are the NVIDIA devices that CUDA_VISIBLE_DEVICES does not hide, by CUDA's rules."""
    env = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert count_local_workers("gpu", env, four_gpus) == count
    assert count_local_workers("auto", env, four_gpus) == count


@pytest.mark.parametrize("listed", ["", "-1", "0,0", "none"])
def test_gpu_without_a_visible_gpu_is_an_error(four_gpus: str, listed: str) -> None:
    """If all GPUs are hidden, `gpu` is refused, and `auto` counts CPUs."""
    env = {"CUDA_VISIBLE_DEVICES": listed}
    with pytest.raises(UsageError, match="this host shows no such device"):
        count_local_workers("gpu", env, four_gpus)
    assert count_local_workers("auto", env, four_gpus) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("doubt", ["wsl2", "forbidden", "hidden driver"])
def test_torch_counts_the_gpus_where_the_device_files_leave_a_doubt(
    doubt: str, four_gpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WSL2 has one file for all devices; a container may show files that it forbids to open, or hide the driver's."""
    monkeypatch.setattr(devices, "_count_with_torch", {"cuda": 3}.__getitem__)
    if doubt == "wsl2":
        shutil.rmtree(f"{four_gpus}/proc")
        for name in range(4):
            os.unlink(f"{four_gpus}/dev/nvidia{name}")
        Path(f"{four_gpus}/dev/dxg").touch()
    elif doubt == "forbidden":
        monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("nvidia2"))
    else:
        shutil.rmtree(f"{four_gpus}/proc")
    assert count_local_workers("gpu", {}, four_gpus) == 3
    assert count_local_workers("auto", {}, four_gpus) == 3


@pytest.mark.parametrize("name", ["gpu", "xpu"])
def test_a_host_without_the_device_refuses_its_name(tmp_path: Path, name: str) -> None:
    """torch is not imported to find that out."""
    with pytest.raises(UsageError, match=f"--nproc-per-node is '{name}', but this host shows no such device"):
        count_local_workers(name, {}, str(tmp_path))


def test_cpu_and_auto_count_usable_cpus_as_torch_does(tmp_path: Path) -> None:
    """Without accelerators `auto` is `cpu`, and both are the number that torch gives."""
    from torch.distributed.run import determine_local_world_size

    assert count_local_workers("auto", {}, str(tmp_path)) == count_local_workers("cpu", {})
    assert count_local_workers("cpu", {}) == determine_local_world_size("cpu")


def test_workers_are_counted_before_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent calls `count_workers` before every round, which counts the devices of that moment."""
    count = planned(nproc_per_node="cpu").workers.count_workers
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    assert count() == 5


def test_a_function_is_asked_before_each_round_for_the_number_of_workers() -> None:
    """It counts as a number for the other nodes; what is no number of workers is refused."""
    numbers = iter([2, 3, 1, 0])
    plan = planned(nproc_per_node=lambda: next(numbers))
    assert plan.rendezvous.nproc == "number"
    assert [plan.workers.count_workers(), plan.workers.count_workers()] == [3, 1]
    with pytest.raises(UsageError, match=r"nproc_per_node\(\) is 0, outside 1 to"):
        plan.workers.count_workers()
