"""What the machine knows about the end of a process: the OOM killer's traces, core dumps, whether it stood still.

Nothing is claimed that is not there: a counter of OOM kills says so only if it has risen since it was read before.
Sources: cgroups(7) and the kernel's Documentation/admin-guide/cgroup-v2.rst (`memory.events`) and cgroup-v1/memory.rst
(`memory.oom_control`), proc(5), core(5), Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import os
import signal

KMSG_RECORD = 8192
"""The kernel refuses to hand a record to a smaller buffer."""
KMSG_RECORDS_MAX = 20000
"""More than the largest usual log holds; a log that grows as fast as it is read must not hold the agent."""
KMSG_DRIFT_S = 5.0
"""The clock of the kernel's log is not quite the monotonic one."""


class OomWatch:
    """The OOM killer's counter of this agent's memory cgroup, which its workers share unless somebody moved them."""

    def __init__(self, cgroups: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> None:
        self._files = _counter_files(cgroups, own)
        self._before: int | None = None

    def begin(self) -> None:
        """Remember the counter as it is before workers start."""
        self._before = self._count()

    def kills(self) -> int:
        """Processes of the cgroup that the OOM killer has killed since `begin`; 0 where nothing says so."""
        now = self._count()
        return max(0, now - self._before) if now is not None and self._before is not None else 0

    def _count(self) -> int | None:
        for path in self._files:
            for line in _read(path).splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill" and value.strip().isdecimal():
                    return int(value)
        return None


def oom_note(pid: int, kills: int, since_s: float, kmsg: str = "/dev/kmsg") -> str:
    """What is known of the OOM killer's part in the death of `pid` by SIGKILL; empty if nothing is.

    `kills`: as `OomWatch.kills`. The kernel's log names the process, where it may be read and numbers it as we do;
    `since_s`: on this host's monotonic clock, as older lines speak of another process of that number."""
    if line := _kernel_kill(pid, since_s, kmsg):
        return f"the kernel's OOM killer killed it: {line}"
    if kills:
        number = "a process" if kills == 1 else f"{kills} processes"
        return f"the kernel's OOM killer has killed {number} of this memory cgroup since the round began"
    return ""


def core_note(pattern_file: str = "/proc/sys/kernel/core_pattern") -> str:
    """Where to look for the core of a process that left one."""
    pattern = _read(pattern_file).strip()
    if pattern.startswith("|"):
        return f"core dumped to the program {pattern[1:].split()[0] if pattern[1:].split() else '?'}"
    return f"core dumped, named after the pattern {pattern or 'core'}"


def stands_still(pid: int) -> bool:
    """Whether a signal has stopped this process (state T, proc(5)), or a debugger holds it (t)."""
    after_name = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(after_name) and after_name[0] in ("T", "t")


def is_kill(exit_code: int) -> bool:
    """Whether SIGKILL ended it."""
    return exit_code == -signal.SIGKILL


def _counter_files(cgroups: str, own: str) -> list[str]:
    """Where the counter may be: of this process's own cgroup, else of the nearest one above that can be seen, for in a
    container the names of the host's cgroups lead nowhere."""
    files = []
    for line in _read(own).splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            files += [f"{place}/memory.events" for place in _upwards(cgroups, path)]
        elif "memory" in controllers.split(","):
            files += [f"{place}/memory.oom_control" for place in _upwards(f"{cgroups}/memory", path)]
    return [path for path in files if os.path.exists(path)][:1]


def _upwards(root: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    return ["/".join([root, *parts[:length]]) for length in range(len(parts), -1, -1)]


def _kernel_kill(pid: int, since_s: float, kmsg: str) -> str:
    """The kernel's own line about this kill; empty if it cannot be read or there is none."""
    try:
        log = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    found = ""
    try:
        for _ in range(KMSG_RECORDS_MAX):
            try:
                record = os.read(log, KMSG_RECORD)
            except BrokenPipeError:
                continue  # the log has wrapped around under us; the next read goes on behind the gap
            if not record:
                break
            head, _, rest = record.decode(errors="replace").partition(";")
            line = rest.partition("\n")[0]
            if f"Killed process {pid} " in line and _moment_s(head) >= since_s - KMSG_DRIFT_S:
                found = line[:200]
    except OSError:
        return found  # EAGAIN: the end of the log
    finally:
        os.close(log)
    return found


def _moment_s(head: str) -> float:
    """Seconds since boot, of the head `priority,sequence,microseconds,flag` of a record."""
    fields = head.split(",")
    return int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdecimal() else 0.0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""  # evidence that cannot be had is none
