"""Memory of the host, or of the cgroup that is tighter, and of single processes; and when a leak will reach the limit.

Only anonymous memory counts as growing: page cache is given back under pressure, and shared maps are of a size that
somebody chose.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...proto.frozen import dataclass
from ...rendezvous.text import duration
from ..commands import NoReading
from ..decisions import trend
from ..decisions.watches import Reading
from ..job_view import JobView
from ..table.kinds import Threshold
from ..table.quantities import Dimension, size_text
from ..table.watch import Watch
from .processes import rank_of
from .reader import Reader, judged, not_yet, stock

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")


@dataclass(frozen=True)
class Room:
    """What a host or a cgroup has, in bytes."""

    total: float
    available: float
    """Page cache that the kernel would give back counts as available."""
    anonymous: float
    where: str = ""
    """Of a cgroup: ` in its cgroup`."""


def host(proc: Path = PROC) -> Room:
    """The host's memory."""
    fields = _fields((proc / "meminfo").read_text())
    return Room(fields["MemTotal"] * 1024, fields["MemAvailable"] * 1024, fields["AnonPages"] * 1024)


def cgroup_rooms(pid: int, proc: Path = PROC, root: Path = CGROUPS) -> list[Room]:
    """Those of the process's memory cgroup, and of each above it, that have a limit."""
    rooms = []
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            files = ("memory.max", "memory.current", "anon", "file", "shmem", "slab_reclaimable")
            rooms += _limits(root, path, files)
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_rss", "total_cache", "total_shmem", "")
            rooms += _limits(root / "memory", path, files)
    return rooms


def _limits(root: Path, path: str, files: tuple[str, ...]) -> list[Room]:
    limit_file, usage_file, anonymous, cache, shared, slab = files
    here, rooms = root / path.lstrip("/"), []
    while here != root.parent:
        try:
            limit = float((here / limit_file).read_text())
            usage = float((here / usage_file).read_text())
            stat = _fields((here / "memory.stat").read_text())
        except (OSError, ValueError):
            limit = usage = 0.0  # not there, or "max"
            stat = {}
        if 0 < limit < 1 << 60:
            held = usage - max(0.0, stat.get(cache, 0.0) - stat.get(shared, 0.0)) - stat.get(slab, 0.0)
            rooms.append(Room(limit, max(0.0, limit - held), stat.get(anonymous, 0.0), " in its cgroup"))
        here = here.parent
    return rooms


def _fields(text: str) -> dict[str, float]:
    """`name: number` or `name number` lines."""
    pairs = (line.replace(":", " ").split() for line in text.splitlines())
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}


class Memory(Reader):
    """`memory`: of the host, or of the job's own cgroup where that has less left."""

    def __init__(self, watch: Watch, job: JobView | None = None, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        super().__init__(watch, job)
        self._proc, self._cgroups = proc, cgroups

    def read(self, now: float) -> Reading:
        room = self._tightest()
        if self._threshold.dimension is not Dimension.TIME:
            found = stock(self._threshold, room.total, room.available, room.total - room.available)
            return Reading(found.verdict, f"memory{room.where}: {found.text}")
        trend.keep(self.samples.setdefault("host", []), (now, room.anonymous), self._watch.window_s)
        return leak(self._threshold, self.samples["host"], room.available, f"memory{room.where}")

    def _tightest(self) -> Room:
        members = self._processes()[:1]
        try:
            rooms = [host(self._proc)]
            for pid in members or [os.getpid()]:
                rooms += cgroup_rooms(pid, self._proc, self._cgroups)
        except OSError as error:
            raise NoReading(f"memory cannot be read: {error.strerror}") from None
        return min(rooms, key=lambda room: room.available)


class Swap(Reader):
    """`swap`: of the host. Under where it has none."""

    def read(self, now: float) -> Reading:
        try:
            fields = _fields((PROC / "meminfo").read_text())
        except OSError as error:
            raise NoReading(f"swap cannot be read: {error.strerror}") from None
        total, free = fields["SwapTotal"] * 1024, fields["SwapFree"] * 1024
        return stock(self._threshold, total, free, total - free)


class WorkerMemory(Reader):
    """`worker-memory`: anonymous memory of the largest of the processes that match."""

    def read(self, now: float) -> Reading:
        used = {pid: size for pid in self._processes() if (size := anonymous_of(pid))}
        self.samples = {str(pid): self.samples.get(str(pid), []) for pid in used}
        if not used:
            return not_yet(f"no {self._whose}")
        if self._threshold.dimension is not Dimension.TIME:
            pid = max(used, key=lambda pid: used[pid])
            over = used[pid] >= self._threshold.value
            return judged(over, f"{rank_of(pid)} uses {size_text(used[pid])} (limit {self._threshold.text})")
        for pid, size in used.items():
            trend.keep(self.samples[str(pid)], (now, size), self._watch.window_s)
        readings = [self._leak(pid, used[pid]) for pid in used]
        return max(readings, key=lambda reading: (reading.verdict.value == "over", reading.verdict.value == "under"))

    def _leak(self, pid: int, used: float) -> Reading:
        room = self._watch.limit_b - used if self._watch.limit_b else host().available
        return leak(self._threshold, self.samples[str(pid)], max(0.0, room), rank_of(pid))


def leak(threshold: Threshold, samples: list[trend.Sample], available: float, what: str) -> Reading:
    """When memory that grows steadily will have used up what is available."""
    found = trend.leak(samples, available)
    if found is None:
        return not_yet(f"measuring how fast {what} grows")
    left, rate = found
    if left == float("inf"):
        return judged(False, f"{what} does not grow")
    growth = f"{what} grows by {size_text(60 * rate)} a minute, and {size_text(available)} are free for it"
    text = f"{growth}: {duration(left)} left"
    return judged(left <= threshold.value, f"{text} (limit {threshold.text})")


def anonymous_of(pid: int) -> float:
    """Bytes of anonymous memory of a process, what it has in swap included; 0 where it has ended."""
    try:
        fields = _fields(Path(f"/proc/{pid}/status").read_text(errors="replace"))
    except OSError:
        return 0.0
    return 1024 * (fields.get("RssAnon", 0.0) + fields.get("VmSwap", 0.0))
