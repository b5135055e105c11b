"""GPUs by NVML, where nvidia-ml-py is installed: temperature, memory, throttling, ECC errors, lost devices."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from ..answers import ask
from ..commands import NoReading
from ..decisions.watches import Reading, ReadingResult
from ..job_view import JobView
from ..table.quantities import Dimension, size_text
from ..table.watch import Watch
from .reader import Reader, judged, stock

HARMFUL_REASONS = 0x8 | 0x20 | 0x40 | 0x80
"""nvml.h, nvmlClocksEventReasons: hardware slowdown, software thermal, hardware thermal, power brake. A power cap is a
setting, not a fault."""


XIDS_MAX = 100
"""Events that one look takes."""
_WORST = (ReadingResult.UNDER, ReadingResult.UNKNOWN, ReadingResult.OVER)
"""Of several devices, the one with the last of these is reported."""


class Gpu(Reader):
    """`gpu`: over while any device of this node is. One that was there at an earlier look and is not now is lost."""

    def __init__(self, watch: Watch, job: JobView | None = None) -> None:
        super().__init__(watch, job)
        self._nvml: Any = None  # an untyped module of another package
        self._events: Any = None

    def read(self, now: float) -> Reading:
        nvml = self._open()
        try:
            return self._read(nvml, now)
        except nvml.NVMLError as error:
            self.close()  # the next look begins anew, as after the driver was loaded again
            raise NoReading(f"NVML: {error}") from None
        except AttributeError as error:
            if error.obj is not nvml:
                raise
            raise NoReading(f"NVML: the module pynvml here has no {error.name}; install a newer nvidia-ml-py") from None

    def _read(self, nvml: Any, now: float) -> Reading:  # noqa: ANN401 - as above
        number = nvml.nvmlDeviceGetCount()
        most = max([number, *(int(before) for _, before in self.samples.get("devices", []))])
        self.samples["devices"] = [(now, most)]
        if number < most:
            return judged(True, f"{number} of {most} GPUs are there")
        if not number:
            raise NoReading("NVML finds no GPU here")
        if self._threshold.side == "xid":
            return self._xid(nvml, number)
        readings = [self._device(nvml, index) for index in range(number)]
        return max(readings, key=lambda reading: _WORST.index(reading.verdict))

    def _open(self) -> Any:  # noqa: ANN401 - as above
        if self._nvml is None:
            try:
                nvml = importlib.import_module("pynvml")
            except ImportError:
                raise NoReading("GPUs cannot be read: install nvidia-ml-py") from None
            if not hasattr(nvml, "nvmlInit"):
                raise NoReading("GPUs cannot be read: the module pynvml here is another one; install nvidia-ml-py")
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                raise NoReading(f"NVML: {error}") from None
            self._nvml = nvml
        return self._nvml

    def _device(self, nvml: Any, index: int) -> Reading:  # noqa: ANN401 - as above
        limit, name = self._threshold, f"GPU {index}"
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            if limit.dimension is Dimension.CELSIUS:
                degrees = nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)
                return judged(degrees >= limit.value, f"{name} has {degrees} C (limit {limit.text})")
            if limit.side == "throttled":
                reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device) & HARMFUL_REASONS
                return judged(bool(reasons), f"{name} is throttled (NVML's reasons {reasons:#x})")
            if limit.side == "ecc":
                kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
                errors = nvml.nvmlDeviceGetTotalEccErrors(device, *kinds)
                return judged(errors > 0, f"{name} has {errors} uncorrected ECC errors since the driver was loaded")
            memory = nvml.nvmlDeviceGetMemoryInfo(device)
            if limit.side == "lost":
                return judged(False, f"{name} is there")
            found = stock(limit, memory.total, memory.free, memory.used)
            if found.verdict is ReadingResult.OVER and self._job is not None:
                # Only now are the workers asked: torch keeps what it has freed, and would give it back.
                cached = min(self._cached(nvml, device), memory.used)
                found = stock(limit, memory.total, memory.free + cached, memory.used - cached)
                name += f", without the {size_text(cached)} that torch does not use" if cached else ""
            return Reading(found.verdict, f"{name}: {found.text}")
        except nvml.NVMLError_GpuIsLost:
            return judged(True, f"{name} is lost: it has fallen off the bus")
        except nvml.NVMLError as error:
            return Reading(ReadingResult.UNKNOWN, f"{name}: NVML: {error}")  # the others may be over

    def _cached(self, nvml: Any, device: Any) -> int:  # noqa: ANN401 - as above
        """Bytes on a device that the workers' torch holds and does not use."""
        if self._job is None:
            return 0
        uuid = nvml.nvmlDeviceGetUUID(device)
        uuid = (uuid.decode() if isinstance(uuid, bytes) else str(uuid)).removeprefix("GPU-")
        answers = [ask(self._job.answers(rank)) for rank in self._job.workers()]
        return sum(answer.cached.get(uuid, 0) for answer in answers if answer is not None)

    def _xid(self, nvml: Any, number: int) -> Reading:  # noqa: ANN401 - as above
        """Errors that the driver has reported since the last look; the first look begins to listen."""
        try:
            found = self._xids(nvml, number)
        except nvml.NVMLError_GpuIsLost:
            self._free_events(nvml)
            return judged(True, "a GPU is lost: it has fallen off the bus")
        if not found:
            return judged(False, "the driver reports no Xid")
        return judged(
            True, f"the driver reports Xid {', '.join(map(str, dict.fromkeys(found)))} (NVIDIA's list of Xids)"
        )

    def _xids(self, nvml: Any, number: int) -> list[int]:  # noqa: ANN401 - as above
        if self._events is None:
            self._events = nvml.nvmlEventSetCreate()
            for index in range(number):
                device = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(device, nvml.nvmlEventTypeXidCriticalError, self._events)
        found: list[int] = []
        while len(found) < XIDS_MAX:
            try:
                found.append(int(nvml.nvmlEventSetWait_v2(self._events, 0).eventData))
            except nvml.NVMLError_Timeout:
                break
        return found

    def close(self) -> None:
        if (nvml := self._nvml) is not None:
            self._nvml = None
            with contextlib.suppress(nvml.NVMLError):  # of a driver that is gone, nothing is held any more
                self._free_events(nvml)
                nvml.nvmlShutdown()

    def _free_events(self, nvml: Any) -> None:  # noqa: ANN401 - as above
        events, self._events = self._events, None
        if events is not None:
            nvml.nvmlEventSetFree(events)
