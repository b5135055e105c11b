"""What the kernel reports about a process: kills by the OOM killer, core dumps, whether a signal has suspended it.

Nothing is claimed without evidence: a counter of OOM kills counts only if it has risen since it was last read.
Sources: cgroups(7) and the kernel's Documentation/admin-guide/cgroup-v2.rst (`memory.events`) and cgroup-v1/memory.rst
(`memory.oom_control`), proc(5), core(5), Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import os
import signal

from ...rendezvous.text import shorten

KMSG_RECORD = 8192
"""Bytes of a read from the kernel's log: it gives no record to a smaller buffer."""
KMSG_RECORDS_MAX = 20000
"""More than the largest usual log holds; a log that grows as fast as it is read must not block the agent."""
KMSG_DRIFT_S = 5.0
"""By how much the clock of the kernel's log may differ from the monotonic one."""
KMSG_LINE_MAX = 200
"""Characters of the kernel's line that go into a note."""


class OomWatch:
    """The OOM killer's counter of this agent's memory cgroup, which its workers share unless they were moved."""

    def __init__(self, cgroups: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> None:
        self._files = _counter_files(cgroups, own)
        self._before: int | None = None

    def begin(self) -> None:
        """Remember the counter as it is before workers start."""
        self._before = self._count()

    def kills(self) -> int:
        """Processes of the cgroup that the OOM killer has killed since `begin`; 0 where there is no counter."""
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
    """What the OOM killer had to do with the kill of `pid` by SIGKILL, in one line; empty if nothing is known.

    `kills`: as `OomWatch.kills`. The kernel's log names the process, where this process may read it and both number
    processes alike. `since_s`: on this host's monotonic clock; older lines are about another process of that number."""
    if line := _kernel_kill(pid, since_s, kmsg):
        return f"the kernel's OOM killer killed it: {line}"
    if kills:
        killed = "1 process" if kills == 1 else f"{kills} processes"
        return f"the kernel's OOM killer killed {killed} in this memory cgroup since the round began"
    return ""


def core_note(pattern_file: str = "/proc/sys/kernel/core_pattern") -> str:
    """Where to look for the core of a process that left one."""
    pattern = _read(pattern_file).strip()
    if pattern.startswith("|"):
        return f"core dumped to the program {pattern[1:].split()[0] if pattern[1:].split() else '?'}"
    return f"core dumped to a file named by the pattern {pattern or 'core'}"


def is_suspended(pid: int) -> bool:
    """Whether a signal has stopped this process (state T, proc(5)), or a debugger has (t)."""
    after_name = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(after_name) and after_name[0] in ("T", "t")


def is_kill(exit_code: int) -> bool:
    """Whether SIGKILL ended the process; `exit_code` as `subprocess` has it."""
    return exit_code == -signal.SIGKILL


def _counter_files(cgroups: str, own: str) -> list[str]:
    """Where the counter is: in this process's own cgroup, else in the nearest one above that is visible, because in a
    container the paths of the host's cgroups do not exist."""
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
    """The kernel's own line about this kill; empty if there is none or the log cannot be read."""
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
                continue  # the record was overwritten before it was read; the next read goes on behind the gap
            if not record:
                break
            head, _, rest = record.decode(errors="replace").partition(";")
            line = rest.partition("\n")[0]
            if f"Killed process {pid} " in line and _moment_s(head) >= since_s - KMSG_DRIFT_S:
                found = shorten(line, KMSG_LINE_MAX)
    except OSError:
        return found  # EAGAIN: the end of the log
    finally:
        os.close(log)
    return found


def _moment_s(head: str) -> float:
    """Seconds since boot, from the head `priority,sequence,microseconds,flag` of a record."""
    fields = head.split(",")
    return int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdecimal() else 0.0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""  # a file that cannot be read is no evidence
