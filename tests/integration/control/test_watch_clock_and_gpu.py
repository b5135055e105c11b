"""The clock against real servers on this host, and GPUs through a module that stands in for NVML."""

from __future__ import annotations

import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from elastic_agent.control.answers import Answer
from elastic_agent.control.commands import NoReading
from elastic_agent.control.decisions.watches import Reading, ReadingResult
from elastic_agent.control.readings import gpu
from elastic_agent.control.readings.clock import SINCE_1900_S
from elastic_agent.control.readings.reader import Reader
from elastic_agent.control.readings.readers import reader_of
from elastic_agent.control.table.parse import parse_table
from elastic_agent.control.watcher import runner
from support.outside.web_server import web_server


def look(text: str) -> Reading:
    [watch] = parse_table(f"[[watch]]\n{text}", "w.toml").watches
    reader = reader_of(watch)
    try:
        return reader.read(0)
    finally:
        reader.close()


@pytest.fixture
def time_server() -> Iterator[tuple[int, list[float]]]:
    """The port of a server of SNTP, and by how many seconds its clock is ahead."""
    ahead = [0.0]
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            request, client = server.recvfrom(512)
            if not request:
                return
            now = time.time() + ahead[0] + SINCE_1900_S
            stamp = struct.pack(">II", int(now), int(now % 1 * 2**32))
            server.sendto(b"\x24\x01" + 22 * b"\0" + request[40:48] + stamp + stamp, client)

    thread = threading.Thread(target=serve, name="time server")
    thread.start()
    port = server.getsockname()[1]
    yield port, ahead
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"", ("127.0.0.1", port))
    thread.join()
    server.close()


@pytest.mark.parametrize(("ahead_s", "side"), [(5.0, "behind"), (-5.0, "ahead of")])
def test_a_clock_that_is_off_is_found_by_ntp(time_server: tuple[int, list[float]], ahead_s: float, side: str) -> None:
    """Five seconds, and on which side."""
    port, ahead = time_server
    text = f"what = 'clock'\nreference = 'ntp://127.0.0.1:{port}'\nthreshold = '2 s'"
    assert look(text).verdict is ReadingResult.UNDER
    ahead[0] = ahead_s
    reading = look(text)
    assert reading.verdict is ReadingResult.OVER
    assert reading.text.startswith(f"this clock is 5 s {side} 127.0.0.1, within ")


def test_a_clock_that_is_off_is_found_by_a_web_servers_date() -> None:
    """Whose whole seconds are not taken for an error of the clock."""
    with web_server() as server:
        text = f"what = 'clock'\nreference = 'http://127.0.0.1:{server.port}/'\nthreshold = '1 s'"
        assert look(text).verdict is ReadingResult.UNDER
        server.date_shift_s = -10
        assert look(text).verdict is ReadingResult.OVER


def test_a_reference_that_does_not_answer_is_no_clock_that_is_off() -> None:
    """Nothing listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(NoReading, match=r"no time from ntp://127\.0\.0\.1: "):
        look(f"what = 'clock'\nreference = 'ntp://127.0.0.1:{port}'\nthreshold = '2 s'")


class _Error(Exception):
    pass


class _Lost(_Error):
    pass


class _Timeout(_Error):
    pass


CONSTANTS = {
    "NVMLError": _Error,
    "NVMLError_Timeout": _Timeout,
    "NVMLError_GpuIsLost": _Lost,
    "nvmlEventTypeXidCriticalError": 8,
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "NVML_VOLATILE_ECC": 0,
}


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two devices, and what they are said to have."""
    state = SimpleNamespace(count=2, celsius=[50, 95], used=[10, 90], reasons=0x4, errors=0, lost=())
    state.xids, state.listening, state.broken, state.unloaded, state.begun = [], [], (), "", 0
    module = ModuleType("pynvml")

    def handle(index: int) -> int:
        if index in state.lost:
            raise _Lost("GPU is lost")
        if index in state.broken:
            raise _Error("Unknown Error")
        return index

    def driver(more: int = 0) -> int:
        if state.unloaded:
            raise _Error(state.unloaded)
        state.begun += more
        return int(state.count)

    def wait(events: object, timeout_ms: int) -> SimpleNamespace:
        if state.lost:
            raise _Lost("GPU is lost")
        if not state.xids:
            raise _Timeout("Timeout")
        return SimpleNamespace(eventData=state.xids.pop(0))

    vars(module).update(
        **CONSTANTS,
        nvmlEventSetCreate=lambda: "set",
        nvmlDeviceRegisterEvents=lambda device, kinds, events: state.listening.append(device),
        nvmlEventSetWait_v2=wait,
        nvmlEventSetFree=lambda events: state.listening.clear(),
        nvmlDeviceGetUUID=lambda device: f"GPU-{device}",
        nvmlInit=lambda: driver(1),
        nvmlShutdown=lambda: driver(-1),
        nvmlDeviceGetCount=driver,
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetTemperature=lambda device, sensor: state.celsius[device],
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda device: state.reasons,
        nvmlDeviceGetTotalEccErrors=lambda device, kind, counter: state.errors,
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(
            total=100e9, used=state.used[device] * 1e9, free=(100 - state.used[device]) * 1e9
        ),
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return state


def test_the_worst_gpu_decides(nvml: SimpleNamespace) -> None:
    """One of two is too hot, and is named; and one is too full."""
    assert look("what = 'gpu'\nthreshold = '90 C'").text == "GPU 1 has 95 C (limit 90 C)"
    assert look("what = 'gpu'\nthreshold = '96 C'").verdict is ReadingResult.UNDER
    assert look("what = 'gpu'\nthreshold = '85 % used'").text.startswith("GPU 1: 90.0 % used, 10 GB free")


def test_memory_that_torch_holds_and_does_not_use_counts_as_free(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers are asked, and only where the cheap reading is low."""
    asked = []

    def ask(path: str) -> Answer:
        asked.append(path)
        return Answer(cached={"1": int(10e9)})

    monkeypatch.setattr("elastic_agent.control.readings.gpu.ask", ask)
    job: Any = SimpleNamespace(workers=lambda: {0: 7, 1: 8}, answers=str)
    reader = reader_of(parse_table("[[watch]]\nwhat = 'gpu'\nthreshold = '85 % used'", "w").watches[0], job)
    assert reader.read(0).verdict is ReadingResult.UNDER
    assert asked == ["0", "1"]
    nvml.used = [10, 80]
    assert reader.read(1).verdict is ReadingResult.UNDER
    assert asked == ["0", "1"]
    nvml.used = [95, 10]
    assert reader.read(2).text == "GPU 0: 95.0 % used, 5 GB free (limit 85 % used)"


def test_a_power_cap_is_no_throttling(nvml: SimpleNamespace) -> None:
    """What an operator has set is no alarm; heat is."""
    assert look("what = 'gpu'\nthreshold = 'throttled'").verdict is ReadingResult.UNDER
    nvml.reasons |= 0x40
    assert look("what = 'gpu'\nthreshold = 'throttled'").verdict is ReadingResult.OVER


def test_uncorrected_errors_of_memory_count(nvml: SimpleNamespace) -> None:
    """One is enough."""
    assert look("what = 'gpu'\nthreshold = 'ecc'").verdict is ReadingResult.UNDER
    nvml.errors = 1
    assert look("what = 'gpu'\nthreshold = 'ecc'").verdict is ReadingResult.OVER


def test_a_critical_error_that_the_driver_reports_is_named(nvml: SimpleNamespace) -> None:
    """An Xid counts once, in the look after it; the reader listens to all devices."""
    [watch] = parse_table("[[watch]]\nwhat = 'gpu'\nthreshold = 'xid'", "w.toml").watches
    reader = reader_of(watch)
    assert reader.read(0).verdict is ReadingResult.UNDER
    assert nvml.listening == [0, 1]
    nvml.xids = [79, 79, 48]
    over = reader.read(1)
    assert (over.verdict, over.text) == (ReadingResult.OVER, "the driver reports Xid 79, 48 (NVIDIA's list of Xids)")
    assert reader.read(2).verdict is ReadingResult.UNDER
    reader.close()
    assert nvml.listening == []


def test_a_lost_gpu_is_over_whatever_is_watched(nvml: SimpleNamespace) -> None:
    """It has fallen off the bus, or is no longer counted."""
    nvml.lost = (0,)
    assert look("what = 'gpu'\nthreshold = '99 C'").text == "GPU 0 is lost: it has fallen off the bus"
    nvml.lost = ()
    [watch] = parse_table("[[watch]]\nwhat = 'gpu'", "w.toml").watches
    reader = reader_of(watch)
    assert reader.read(0).verdict is ReadingResult.UNDER
    nvml.count = 1
    assert reader.read(1).text == "1 of 2 GPUs are there"


def test_what_is_used_of_nvml_is_in_its_package() -> None:
    """The stand-in of these tests is no proof of that. The package needs no GPU, and says where there is no driver."""
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    used = set(re.findall(r"\bnvml\.(\w+)", Path(gpu.__file__).read_text()))
    used.discard("h")  # a comment's nvml.h
    assert len(used) > 15
    assert sorted(name for name in used if not hasattr(real, name)) == []
    harmful = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert sum(getattr(real, f"nvmlClocksThrottleReason{name}") for name in harmful) == gpu.HARMFUL_REASONS
    assert issubclass(real.NVMLError_GpuIsLost, real.NVMLError)
    assert issubclass(real.NVMLError_Timeout, real.NVMLError)
    if not Path("/dev/nvidiactl").exists():
        with pytest.raises(NoReading, match="NVML: "):
            look("what = 'gpu'")


def test_without_nvml_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no alarm, and no crash."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoReading, match="install nvidia-ml-py"):
        look("what = 'gpu'")


def gpu_reader(threshold: str) -> Reader:
    return reader_of(parse_table(f"[[watch]]\nwhat = 'gpu'\nthreshold = '{threshold}'", "w.toml").watches[0])


def test_another_module_of_that_name_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's file pynvml.py, say."""
    monkeypatch.setitem(sys.modules, "pynvml", ModuleType("pynvml"))
    with pytest.raises(NoReading, match="the module pynvml here is another one; install nvidia-ml-py"):
        look("what = 'gpu'")


def test_a_module_too_old_for_a_reading_says_what_it_lacks(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has is read all the same."""
    monkeypatch.delattr("pynvml.nvmlEventSetWait_v2")
    with pytest.raises(NoReading, match="pynvml here has no nvmlEventSetWait_v2; install a newer nvidia-ml-py"):
        look("what = 'gpu'\nthreshold = 'xid'")
    assert look("what = 'gpu'").verdict is ReadingResult.UNDER


@pytest.mark.parametrize("why", ["Driver Not Loaded", "RM has detected an NVML/RM version mismatch."])
def test_a_driver_that_is_replaced_under_the_agent_is_no_alarm_and_is_read_again(
    nvml: SimpleNamespace, why: str
) -> None:
    """Whether it is gone at the first look or later; and at the end it need not be there."""
    reader = gpu_reader("lost")
    for _ in range(2):
        nvml.unloaded = why
        for _ in range(2):
            with pytest.raises(NoReading, match=f"NVML: {why}"):
                reader.read(0)
        nvml.unloaded, nvml.begun = "", 0
        assert reader.read(1).verdict is ReadingResult.UNDER
        assert nvml.begun == 1
    nvml.unloaded = why
    reader.close()


def test_a_gpu_that_cannot_be_read_hides_no_other(nvml: SimpleNamespace) -> None:
    """It is told where no other is over."""
    nvml.broken = (0,)
    assert look("what = 'gpu'\nthreshold = '90 C'").text == "GPU 1 has 95 C (limit 90 C)"
    reading = look("what = 'gpu'\nthreshold = '96 C'")
    assert (reading.verdict, reading.text) == (ReadingResult.UNKNOWN, "GPU 0: NVML: Unknown Error")


def test_a_gpu_that_is_lost_is_over_for_a_watch_of_xids_too(nvml: SimpleNamespace) -> None:
    """Before it listens, and while it does; it holds nothing of a device that is gone."""
    reader = gpu_reader("xid")
    assert reader.read(0).verdict is ReadingResult.UNDER
    nvml.lost = (1,)
    for now in (1, 2):
        reading = reader.read(now)
        assert (reading.verdict, reading.text) == (ReadingResult.OVER, "a GPU is lost: it has fallen off the bus")
        assert nvml.listening == []
    nvml.lost = ()
    assert reader.read(3).verdict is ReadingResult.UNDER
    reader.close()


def test_devices_that_report_no_xids_are_said_and_leave_nothing_open(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of a virtual machine, whose driver does not support events."""

    def refuse(*_: object) -> None:
        raise _Error("Not Supported")

    freed: list[object] = []
    monkeypatch.setattr("pynvml.nvmlDeviceRegisterEvents", refuse)
    monkeypatch.setattr("pynvml.nvmlEventSetFree", freed.append)
    reader = gpu_reader("xid")
    for looks in (1, 2):
        with pytest.raises(NoReading, match="NVML: Not Supported"):
            reader.read(0)
        assert len(freed) == looks
    assert nvml.begun == 0


def test_a_driver_that_does_not_answer_delays_no_other_watch(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a device that has just fallen off the bus; the reading without a result is told."""
    answers, told, stop = threading.Event(), [], threading.Event()
    wanted = ("gpu: unknown: no result of the reading for 0.2", "memory: under: ")

    def hang() -> int:
        answers.wait(60)
        return 2

    def tell(line: str) -> None:
        told.append(line)
        if all(any(each.startswith(one) for each in told) for one in wanted):
            stop.set()

    monkeypatch.setattr("pynvml.nvmlDeviceGetCount", hang)
    monkeypatch.setattr(runner, "STUCK_S", 0.2)
    text = "".join(f"[[watch]]\nwhat = '{what}'\nevery = '0.1 s'\n{more}" for what, more in WATCHED)
    actor: Any = SimpleNamespace(act=lambda happening: None, close=lambda: None)
    running = runner.Runner(parse_table(text, "w.toml"), actor, tell)
    try:
        running.run(stop)
    finally:
        answers.set()
    assert {line for line in told if line.startswith("gpu")} == {line for line in told if line.startswith(wanted[0])}


WATCHED = (("gpu", ""), ("memory", "threshold = '99.9 % used'\n"))
